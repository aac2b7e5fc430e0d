package rows

import (
	"runtime"
	"testing"
)

// Threads of ours never take a processor from the host's, and those that are gone
// leave no more behind than were there at once.
func TestThereIsAProcessorForEveryThread(t *testing.T) {
	callers := runtime.GOMAXPROCS(0)
	ReserveCallers(callers)
	OwnThreads(3)
	if n := runtime.GOMAXPROCS(0); n < callers+3 {
		t.Errorf("%d processors for %d callers and 3 threads of ours", n, callers)
	}
	before := runtime.GOMAXPROCS(0)
	for range 20 {
		OwnThreads(-3)
		OwnThreads(3)
	}
	ReserveCallers(1)
	if n := runtime.GOMAXPROCS(0); n != before {
		t.Errorf("%d processors after threads came and went, expected %d", n, before)
	}
	ReserveCallers(callers + 2)
	if n := runtime.GOMAXPROCS(0); n < callers+5 {
		t.Errorf("%d processors for %d callers and 3 threads of ours", n, callers+2)
	}
	before = runtime.GOMAXPROCS(0)
	OwnThreads(1000)
	if n := runtime.GOMAXPROCS(0); n > before+ownPerCPU*processors {
		t.Errorf("%d processors for a thousand threads", n)
	}
	OwnThreads(-1003)
}

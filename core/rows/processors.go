package rows

import (
	"runtime"
	"sync"
)

// processors is what the process may use, before anybody asked for more.
var processors = runtime.GOMAXPROCS(0)

// crowd is who may want a Go processor at once: threads of the host, and threads of
// ours. One of ours keeps a processor for up to some milliseconds after it went to
// sleep in the kernel, and a thread that comes back from the kernel without one is
// queued: 10 to 100 µs later, on another thread's initiative. So there is one for each.
// The sum never goes down, because every change stops the world.
var crowd = struct {
	sync.Mutex
	callers, own, most int
}{callers: processors}

// ownPerCPU bounds our part: a process with hundreds of caches gains nothing from as
// many processors, and the collector would start a quarter as many workers.
const ownPerCPU = 4

// OwnThreads says that n threads of ours begin to run beside the host's, or, with a
// negative n, that they have ended.
func OwnThreads(n int) {
	crowd.Lock()
	defer crowd.Unlock()
	if crowd.own += n; crowd.own > crowd.most {
		crowd.most = crowd.own
		admitCrowd()
	}
}

// ReserveCallers lets at least n threads of the host run at once.
func ReserveCallers(n int) {
	crowd.Lock()
	defer crowd.Unlock()
	if n > crowd.callers {
		crowd.callers = n
		admitCrowd()
	}
}

func admitCrowd() {
	if want := crowd.callers + min(crowd.most, ownPerCPU*processors); want > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(want)
	}
}

package gpu_test

import (
	"sync"
	"testing"
	"time"

	"libprefixcache/gpu"
)

// A wake that comes while a thread is on its way to sleep is not lost. Two threads
// take turns, so each of many thousand turns is such a race; a lost one sleeps until
// its deadline, which fails.
func TestParker_NoWakeIsLost(t *testing.T) {
	const turns = 40_000
	var mu sync.Mutex
	var p gpu.Parker
	turn := 0
	take := func(me int) {
		mu.Lock()
		defer mu.Unlock()
		for turn < turns {
			for turn%2 != me && turn < turns {
				if !p.Wait(&mu, gpu.Now()+int64(5*time.Second)) && turn%2 == me {
					t.Errorf("turn %d: slept until its deadline although it had been woken", turn)
					turn = turns
					p.Wake()
					return
				}
			}
			turn++
			p.Wake()
		}
	}
	var wg sync.WaitGroup
	for me := range 2 {
		wg.Go(func() { take(me) })
	}
	wg.Wait()
}

package gpu_test

import (
	"sync"
	"testing"

	"libprefixcache/gpu"
)

// wakesBetween is a lock whose holder is woken in the worst moment: when the lock is
// free already, and the thread does not sleep yet.
type wakesBetween struct {
	sync.Mutex
	p *gpu.Parker
}

func (l *wakesBetween) Unlock() {
	l.Mutex.Unlock()
	l.p.Wake()
}

// A wake that comes while a thread is on its way to sleep is not lost.
func TestParker_NoWakeIsLost(t *testing.T) {
	var p gpu.Parker
	l := &wakesBetween{p: &p}
	l.Lock()
	for i := range 3 {
		if !p.Wait(l, gpu.Now()+int64(hang)) {
			t.Fatalf("wait %d: slept until its deadline although it was woken", i)
		}
	}
	l.Mutex.Unlock()
}

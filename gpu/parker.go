package gpu

/*
#cgo noescape gpu_unpark
#cgo nocallback gpu_unpark
#cgo nocallback gpu_now
#cgo nocallback gpu_park
#include "park.h"
*/
import "C"

import (
	"math"
	"sync"
	"sync/atomic"
)

// NoDeadline is a deadline that never passes.
const NoDeadline = math.MaxInt64

// Now is the clock of deadlines: nanoseconds of CLOCK_MONOTONIC.
func Now() int64 { return int64(C.gpu_now()) }

// Parker is a place where threads sleep until somebody wakes them, in the manner
// of a condition variable with deadlines: Wait is called with the lock that
// guards the condition, and the condition is checked again after it. The zero
// value is ready; it must not be copied.
//
// Waking a sleeping thread costs the waker 7 to 10 µs on the machine this was
// measured on, whether through a futex, a sync.Cond or a channel: nearly all of
// it is the kernel's. So Wake looks for sleepers first and costs a few
// nanoseconds when there are none. A futex is used because it has a deadline
// without a timer, and because the sleeper holds no Go processor.
type Parker struct {
	word     uint32
	sleepers atomic.Int32
}

// Wait gives mu up, sleeps, and holds mu again when it returns: false once Now
// has reached deadline, true after a Wake or for no reason. mu is held by the
// caller.
func (p *Parker) Wait(mu sync.Locker, deadline int64) bool {
	// Read under mu: a Wake that comes after mu is released changes the word, and
	// the kernel then refuses to sleep.
	seen := atomic.LoadUint32(&p.word)
	p.sleepers.Add(1)
	mu.Unlock()
	late := C.gpu_park((*C.uint32_t)(&p.word), C.uint32_t(seen), C.int64_t(deadline)) != 0
	p.sleepers.Add(-1)
	mu.Lock()
	return !late
}

// Wake wakes everybody who is in Wait. The caller holds the lock that Wait takes,
// or has held it after it changed the condition.
func (p *Parker) Wake() {
	if p.sleepers.Load() == 0 {
		return
	}
	atomic.AddUint32(&p.word, 1)
	C.gpu_unpark((*C.uint32_t)(&p.word), math.MaxInt32)
}

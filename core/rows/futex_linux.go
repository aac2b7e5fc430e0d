package rows

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Numbers of <linux/futex.h>.
const (
	futexWaitPrivate = 0 | 128
	futexWakePrivate = 1 | 128
)

// futexWait sleeps while *word is seen, until a futexWake; it may also return for
// no reason.
func futexWait(word *atomic.Uint32, seen uint32) {
	_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitPrivate, uintptr(seen), 0, 0, 0)
}

// futexWake wakes at most n sleepers.
func futexWake(word *atomic.Uint32, n int) {
	if n > 0 {
		_, _, _ = syscall.RawSyscall(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWakePrivate, uintptr(n))
	}
}

package rows

import (
	"syscall"
	"unsafe"
)

// Numbers of <asm-generic/mman-common.h> that package syscall does not know.
const (
	madvDontFork      = 10
	madvHugePage      = 14
	madvDontDump      = 16
	madvPopulateWrite = 23 // Linux 5.14
)

// sysReserve maps private anonymous memory. NORESERVE, because a mirror is sized
// for every slot of the KV pool and only the slots that are used get pages.
func sysReserve(n int64) ([]byte, error) {
	return syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
}

func sysRelease(b []byte) error { return syscall.Munmap(b) }

// Advice is only advice: a system without huge pages is slower, not wrong.
func sysAdviseHuge(b []byte)     { _ = syscall.Madvise(b, madvHugePage) }
func sysAdviseDontDump(b []byte) { _ = syscall.Madvise(b, madvDontDump) }
func sysAdviseDontFork(b []byte) { _ = syscall.Madvise(b, madvDontFork) }

func sysDiscard(b []byte) { _ = syscall.Madvise(b, syscall.MADV_DONTNEED) }

func sysPopulate(b []byte) error { return syscall.Madvise(b, madvPopulateWrite) }

func sysMincore(b, vec []byte) error {
	_, _, e := syscall.Syscall(syscall.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(vec))))
	if e != 0 {
		return e
	}
	return nil
}

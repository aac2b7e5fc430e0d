package rows

import (
	"os"
	"strings"
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
	if err := fails("mmap"); err != nil {
		return nil, err
	}
	return syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
}

func sysRelease(b []byte) error { return syscall.Munmap(b) }

// sysProbe maps memory that counts where the system counts what may be written.
func sysProbe(n int64) ([]byte, error) {
	if err := fails("mmap"); err != nil {
		return nil, err
	}
	return syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
}

// Advice is only advice: a system without huge pages is slower, not wrong.

func sysAdviseHuge(b []byte) {
	if err := advise("hugepage", b, madvHugePage); err != nil {
		noHuge.warn("huge pages are not available (madvise: " + err.Error() + "): moving rows takes 1.3 to 1.8 times as long")
	}
}

func sysAdviseDontDump(b []byte) {
	if err := advise("dontdump", b, madvDontDump); err != nil {
		noDontDump.warn("rows and tokens cannot be kept out of core dumps (madvise: " + err.Error() + ")")
	}
}

func sysAdviseDontFork(b []byte) {
	if err := advise("dontfork", b, madvDontFork); err != nil {
		noDontFork.warn("memory cannot be kept out of children of fork (madvise: " + err.Error() + "): each fork makes it copy-on-write")
	}
}

func sysDiscard(b []byte) { _ = syscall.Madvise(b, syscall.MADV_DONTNEED) }

func sysPopulate(b []byte) error { return advise("populate", b, madvPopulateWrite) }

func advise(call string, b []byte, advice int) error {
	if err := fails(call); err != nil {
		return err
	}
	return syscall.Madvise(b, advice)
}

func sysMincore(b, vec []byte) error {
	if err := fails("mincore"); err != nil {
		return err
	}
	_, _, e := syscall.Syscall(syscall.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(vec))))
	if e != 0 {
		return e
	}
	return nil
}

// HugePagesFile is where the system keeps its setting for transparent huge pages.
const HugePagesFile = "/sys/kernel/mm/transparent_hugepage/enabled"

// HugePages is that setting: "always", "madvise" or "never", or "" when it cannot be
// read. With never, the advice to use them has no effect.
func HugePages() string {
	text, err := os.ReadFile(HugePagesFile)
	if err != nil {
		return ""
	}
	return chosen(string(text))
}

// chosen is the word in brackets of "always [madvise] never".
func chosen(text string) string {
	_, rest, _ := strings.Cut(text, "[")
	word, _, found := strings.Cut(rest, "]")
	if !found {
		return ""
	}
	return word
}

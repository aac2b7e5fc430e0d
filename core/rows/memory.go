package rows

import (
	"math"
	"sync/atomic"
	"unsafe"

	"libprefixcache/core/status"
)

const (
	// PageBytes is the granule in which memory is reserved and counted.
	PageBytes = 4 << 10
	// HugeBytes is the alignment of every Memory of that size or more, and the
	// size of the pages that are asked for there.
	HugeBytes = 2 << 20
	// maxReserve keeps every sum of sizes and offsets inside int64 and inside
	// the 47 bits of user address space.
	maxReserve = 1 << 46
)

// MemoryOptions are the choices of Reserve. The zero value is right for rows.
type MemoryOptions struct {
	// Purpose is the counter that the bytes are charged to.
	Purpose Purpose
	// SmallPages leaves out the advice to use huge pages: less memory when few
	// scattered rows are touched, 1.3 to 1.8 times slower row moves.
	SmallPages bool
	// DontDump keeps the bytes out of core dumps. They hold users' activations,
	// and a dump of a full mirror is of no use to anybody.
	DontDump bool
	// DontFork keeps the bytes out of children of fork, where an access faults.
	// Without it, a host that forks once makes every huge page of the parent
	// copy-on-write: the next store to each copies 2 MiB. Right for memory that
	// only the library reads; wrong for results, which are the user's.
	DontFork bool
}

// Memory is a range of reserved address space outside the Go heap. Its bytes
// read as zero until written; physical pages appear on first touch.
//
// Base, Size and At may be used from any thread. Free must not run while
// anybody still uses the bytes.
type Memory struct {
	base    unsafe.Pointer
	size    int64
	purpose Purpose
	freed   atomic.Bool
	raw     []byte // the whole mapping, larger than [base, base+size) by the alignment
}

// Reserve returns at least bytes bytes of zeroed memory, rounded up to whole
// pages; from HugeBytes on it is rounded and aligned to huge pages. Running out
// of address space is an OutOfMemory error that names the bytes asked for.
func Reserve(bytes int64, o MemoryOptions) (*Memory, error) {
	if bytes <= 0 {
		return nil, status.New(status.InvalidArgument, "rows: bytes is %d, expected more than 0", bytes)
	}
	if o.Purpose >= NumPurposes {
		return nil, status.New(status.InvalidArgument, "rows: purpose is %d, expected less than %d", o.Purpose, NumPurposes)
	}
	if bytes > maxReserve {
		return nil, status.New(status.OutOfMemory, "rows: cannot reserve %d bytes (%s): more than the address space", bytes, o.Purpose)
	}
	size, slack := roundUp(bytes, PageBytes), int64(0)
	huge := bytes >= HugeBytes
	if huge {
		size, slack = roundUp(bytes, HugeBytes), HugeBytes
	}
	raw, err := sysReserve(size + slack)
	if err != nil {
		return nil, status.New(status.OutOfMemory, "rows: cannot reserve %d bytes (%s): mmap: %v", bytes, o.Purpose, err)
	}
	m := &Memory{raw: raw, size: size, purpose: o.Purpose}
	m.base = unsafe.Pointer(unsafe.SliceData(raw))
	if huge {
		m.base = unsafe.Add(m.base, -int64(uintptr(m.base))&(HugeBytes-1))
		if !o.SmallPages {
			sysAdviseHuge(m.bytes())
		}
	}
	if o.DontDump {
		sysAdviseDontDump(m.bytes())
	}
	if o.DontFork {
		sysAdviseDontFork(m.bytes())
	}
	m.register()
	return m, nil
}

// Base is the address of byte 0, or nil after Free.
func (m *Memory) Base() unsafe.Pointer { return m.base }

// Size is the number of usable bytes: what was asked for, rounded up.
func (m *Memory) Size() int64 { return m.size }

// Purpose is the counter the bytes are charged to.
func (m *Memory) Purpose() Purpose { return m.purpose }

// At is the address of byte off. The caller has checked off.
func (m *Memory) At(off int64) unsafe.Pointer { return unsafe.Add(m.base, off) }

// Touch makes the pages of [off, off+n) present without changing a byte, so that
// no later store faults. It may run beside readers and writers, but it competes
// with them for memory bandwidth: use it at start-up or throttled.
func (m *Memory) Touch(off, n int64) error {
	if err := m.checkRange(off, n); err != nil || n == 0 {
		return err
	}
	lo, hi := off&^(PageBytes-1), roundUp(off+n, PageBytes)
	// In pieces, so that no single system call holds a processor for seconds.
	for ; lo < hi; lo += touchPiece {
		piece := unsafe.Slice((*byte)(m.At(lo)), min(touchPiece, hi-lo))
		if sysPopulate(piece) != nil {
			touchByHand(piece) // before Linux 5.14
		}
	}
	return nil
}

// touchByHand adds zero, atomically, to a word of each page. It is a store, so
// the page appears, and it cannot undo a store of somebody else.
func touchByHand(b []byte) {
	for i := 0; i < len(b); i += PageBytes {
		atomic.AddUint32((*uint32)(unsafe.Pointer(&b[i])), 0)
	}
}

const touchPiece = 64 << 20

// Discard gives the physical pages that lie wholly inside [off, off+n) back to
// the system. Their bytes read as zero afterwards.
func (m *Memory) Discard(off, n int64) error {
	if err := m.checkRange(off, n); err != nil {
		return err
	}
	lo, hi := roundUp(off, PageBytes), (off+n)&^(PageBytes-1)
	if lo < hi {
		sysDiscard(unsafe.Slice((*byte)(m.At(lo)), hi-lo))
	}
	return nil
}

// Wipe zeroes the bytes that have physical pages, and makes no page present. No part
// of the memory may be in use. Where the system cannot say what is present, all of
// it is dropped instead: the system clears it before anybody gets it.
func (m *Memory) Wipe() {
	var vec [touchPiece / PageBytes]byte
	for lo := int64(0); lo < m.size; lo += touchPiece {
		n := min(touchPiece, m.size-lo)
		part := vec[:n/PageBytes]
		if sysMincore(unsafe.Slice((*byte)(m.At(lo)), n), part) != nil {
			sysDiscard(unsafe.Slice((*byte)(m.At(lo)), n))
			continue
		}
		for i, b := range part {
			// A page that was only read is the system's page of zeros, which a store replaces.
			if page := unsafe.Slice((*byte)(m.At(lo+int64(i)*PageBytes)), PageBytes*int64(b&1)); !zero(page) {
				clear(page)
			}
		}
	}
}

// Resident counts the bytes that have physical pages. It costs a system call
// per 64 MiB of size and must not run beside Free of the same Memory.
func (m *Memory) Resident() int64 {
	var vec [touchPiece / PageBytes]byte
	var pages int64
	for lo := int64(0); lo < m.size; lo += touchPiece {
		n := min(touchPiece, m.size-lo)
		part := vec[:n/PageBytes]
		if sysMincore(unsafe.Slice((*byte)(m.At(lo)), n), part) != nil {
			continue
		}
		for _, b := range part {
			pages += int64(b & 1)
		}
	}
	return pages * PageBytes
}

// Free returns the address space. A second Free does nothing.
func (m *Memory) Free() {
	if m == nil || m.freed.Swap(true) {
		return
	}
	m.unregister()
	m.base = nil
	// munmap of our own mapping fails only when the kernel cannot split a
	// range, which unmapping a whole one never asks for.
	_ = sysRelease(m.raw)
	m.raw = nil
}

func (m *Memory) bytes() []byte { return unsafe.Slice((*byte)(m.base), m.size) }

func (m *Memory) checkRange(off, n int64) error {
	if off < 0 || off > m.size {
		return status.New(status.InvalidArgument, "rows: offset is %d, expected 0 to %d", off, m.size)
	}
	if n < 0 || n > m.size-off {
		return status.New(status.InvalidArgument, "rows: length is %d, expected 0 to %d at offset %d", n, m.size-off, off)
	}
	return nil
}

func roundUp(n, to int64) int64 { return (n + to - 1) &^ (to - 1) }

// mulOverflows reports whether a*b, both positive, leaves int64.
func mulOverflows(a, b int64) bool { return a > math.MaxInt64/b }

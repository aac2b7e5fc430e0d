package rows

import (
	"unsafe"

	"libprefixcache/core/status"
)

// MirrorOptions are the choices of NewMirror.
type MirrorOptions struct {
	SmallPages bool // see MemoryOptions
	DontDump   bool // see MemoryOptions
}

// Mirror holds the durable rows of one key: row s starts at byte s × RowBytes.
// The address space of every slot is reserved at once; pages appear when a slot
// is first written, and a slot never written reads as zeros.
//
// Methods that move rows may run on several threads at once as long as no two
// touch the same slot; who may touch which slot is decided in core/omni.
type Mirror struct {
	mem      *Memory
	base     unsafe.Pointer
	slots    int64
	rowBytes int64
}

// NewMirror reserves slots × rowBytes bytes. A product beyond the address space
// is an OutOfMemory error.
func NewMirror(slots, rowBytes int64, o MirrorOptions) (*Mirror, error) {
	if slots <= 0 {
		return nil, status.New(status.InvalidArgument, "rows: slots is %d, expected more than 0", slots)
	}
	if rowBytes <= 0 {
		return nil, status.New(status.InvalidArgument, "rows: row bytes is %d, expected more than 0", rowBytes)
	}
	if mulOverflows(slots, rowBytes) {
		return nil, status.New(status.OutOfMemory, "rows: cannot reserve %d slots of %d bytes (mirror): more than the address space", slots, rowBytes)
	}
	mem, err := Reserve(slots*rowBytes, MemoryOptions{
		Purpose: PurposeMirror, SmallPages: o.SmallPages, DontDump: o.DontDump, DontFork: true,
	})
	if err != nil {
		return nil, err
	}
	return &Mirror{mem: mem, base: mem.Base(), slots: slots, rowBytes: rowBytes}, nil
}

// Slots is the number of rows.
func (m *Mirror) Slots() int64 { return m.slots }

// RowBytes is the width of a row, which is also its stride.
func (m *Mirror) RowBytes() int64 { return m.rowBytes }

// Memory is the memory behind the rows, for registration and pre-faulting.
func (m *Mirror) Memory() *Memory { return m.mem }

// Row is the address of one row. The caller has checked slot.
func (m *Mirror) Row(slot int64) unsafe.Pointer {
	if invariants && (slot < 0 || slot >= m.slots) {
		panic(status.New(status.Internal, "rows: row %d of a mirror of %d slots", slot, m.slots))
	}
	return unsafe.Add(m.base, slot*m.rowBytes)
}

// Touch makes the pages of n slots from slot on present.
func (m *Mirror) Touch(slot, n int64) error {
	if slot < 0 || slot > m.slots || n < 0 || n > m.slots-slot {
		return status.New(status.InvalidArgument, "rows: %d slots from slot %d, expected a range inside 0 to %d", n, slot, m.slots)
	}
	return m.mem.Touch(slot*m.rowBytes, n*m.rowBytes)
}

// Free returns the address space. The mirror must not be used afterwards.
func (m *Mirror) Free() {
	m.base = nil
	m.mem.Free()
}

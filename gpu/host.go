package gpu

import (
	"sync"
	"time"
	"unsafe"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Host is the Device of a machine without a GPU: addresses are ordinary
// pointers, and everything is done when the call returns. So an event is reached
// as soon as it is recorded and a stream is always idle. Handles are checked as
// strictly as CUDA checks them. Safe for use by many threads; copies take no
// lock.
type Host struct {
	mu     sync.Mutex // everything below
	next   uintptr
	events map[Event]hostEvent
	stream map[Stream]bool
	memory map[uintptr]*rows.Memory
	pinned map[uintptr]int64 // registered, not allocated, by us
}

type hostEvent struct {
	timing bool
	at     time.Time // zero: never recorded
}

var _ Device = (*Host)(nil)

// handleBase keeps handles of Host apart from the implicit streams and from
// anything that could be an address.
const handleBase = 0x1000

// NewHost returns a Device over plain memory.
func NewHost() *Host {
	return &Host{
		next:   handleBase,
		events: map[Event]hostEvent{},
		stream: map[Stream]bool{},
		memory: map[uintptr]*rows.Memory{},
		pinned: map[uintptr]int64{},
	}
}

func (h *Host) Name() string { return "host" }
func (h *Host) IsHost() bool { return true }
func (h *Host) Bind() error  { return nil }

func (h *Host) Context() Context { return 0 }

func (h *Host) Enter() (leave func(), err error) { return func() {}, nil }

// admit refuses a stream that was never made: a CUDA stream that reached a cache
// without a device means its rows are not where the cache will look.
func (h *Host) admit(call string, s Stream) error {
	if s <= PerThreadStream {
		return nil
	}
	h.mu.Lock()
	known := h.stream[s]
	h.mu.Unlock()
	if !known {
		return status.New(status.InvalidArgument, "%s: stream is %#x, expected 0: this cache is on the host", call, uintptr(s))
	}
	return nil
}

func (h *Host) Check(s Stream, regions []Region) error {
	if s != UnnamedStream {
		if err := h.admit("check", s); err != nil {
			return err
		}
	}
	for i := range regions {
		if err := checkSpan(regions[i].Name, regions[i].Addr, regions[i].Bytes); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) Capturing(s Stream) (bool, error)    { return false, h.admit("capturing", s) }
func (h *Host) ContextOf(s Stream) (Context, error) { return 0, h.admit("context", s) }
func (h *Host) Idle(s Stream) (bool, error)         { return true, h.admit("query stream", s) }
func (h *Host) Drain(s Stream) error                { return h.admit("drain", s) }

// Pointer knows the memory that came from h.
func (h *Host) Pointer(addr uintptr) (PointerInfo, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for base, m := range h.memory {
		if addr-base < uintptr(m.Size()) {
			return PointerInfo{Known: true, Ordinal: -1, Base: base, Bytes: m.Size()}, nil
		}
	}
	for base, n := range h.pinned {
		if addr-base < uintptr(n) {
			return PointerInfo{Known: true, Ordinal: -1, Base: base, Bytes: n}, nil
		}
	}
	return PointerInfo{Ordinal: -1}, nil
}

func (h *Host) CopyToDevice(s Stream, dst Addr, src unsafe.Pointer, n int64) error {
	return h.copy("copy to device", s, hostPointer(uintptr(dst)), src, n)
}

func (h *Host) CopyToHost(s Stream, dst unsafe.Pointer, src Addr, n int64) error {
	return h.copy("copy to host", s, dst, hostPointer(uintptr(src)), n)
}

func (h *Host) CopyOnDevice(s Stream, dst, src Addr, n int64) error {
	const call = "copy on device"
	if n > 0 && dst != 0 && src != 0 && overlap(uintptr(dst), uintptr(src), n) {
		return overlapError(call, uintptr(dst), uintptr(src), n)
	}
	return h.copy(call, s, hostPointer(uintptr(dst)), hostPointer(uintptr(src)), n)
}

func (h *Host) copy(call string, s Stream, dst, src unsafe.Pointer, n int64) error {
	if n <= 0 || dst == nil || src == nil {
		return copySpan(call, uintptr(dst), uintptr(src), n)
	}
	if err := h.admit(call, s); err != nil {
		return err
	}
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
	return nil
}

func (h *Host) CopyRows(s Stream, c *Copy2D) error {
	const call = "copy rows"
	if empty, err := c.check(call); err != nil || empty {
		return err
	}
	if err := h.admit(call, s); err != nil {
		return err
	}
	dst, src := c.DstHost, c.SrcHost
	if dst == nil {
		dst = hostPointer(uintptr(c.Dst))
	}
	if src == nil {
		src = hostPointer(uintptr(c.Src))
	}
	for y := range c.Height {
		copy(unsafe.Slice((*byte)(unsafe.Add(dst, y*c.DstPitch)), c.Width), unsafe.Slice((*byte)(unsafe.Add(src, y*c.SrcPitch)), c.Width))
	}
	return nil
}

func (h *Host) Fill(s Stream, dst Addr, value byte, n int64) error {
	const call = "fill"
	if n <= 0 || dst == 0 {
		return checkSpan(call, uintptr(dst), n)
	}
	if err := h.admit(call, s); err != nil {
		return err
	}
	b := unsafe.Slice((*byte)(hostPointer(uintptr(dst))), n)
	if value == 0 {
		clear(b)
		return nil
	}
	for i := range b {
		b[i] = value
	}
	return nil
}

// Close reports what is live, like CUDA; there is nothing to give back.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, s, m, p := len(h.events), len(h.stream), len(h.memory), len(h.pinned); e|s|m|p != 0 {
		return status.New(status.Busy, "close: %d events, %d streams, %d blocks and %d registrations are live, expected none", e, s, m, p)
	}
	return nil
}

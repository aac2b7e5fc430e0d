package gpu

import (
	"time"
	"unsafe"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Events, streams and memory of Host. None of this is on a hot path: the caches
// make their events and buffers once.

func (h *Host) handle() uintptr {
	h.next++ // under mu; never reused, so a stale handle stays unknown
	return h.next
}

func (h *Host) NewEvent(flags EventFlags) (Event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := Event(h.handle())
	h.events[e] = hostEvent{timing: flags&Timing != 0}
	return e, nil
}

func (h *Host) FreeEvent(e Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.known("free event", e); err != nil {
		return err
	}
	delete(h.events, e)
	return nil
}

// known finds a live event. Caller holds mu.
func (h *Host) known(call string, e Event) (hostEvent, error) {
	if e == 0 {
		return hostEvent{}, nullEvent(call)
	}
	v, ok := h.events[e]
	if !ok {
		return hostEvent{}, status.New(status.InvalidArgument, "%s: event %#x was destroyed or never made by this device", call, uintptr(e))
	}
	return v, nil
}

func (h *Host) Record(e Event, s Stream) error {
	if err := h.admit("record", s); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	v, err := h.known("record", e)
	if err != nil {
		return err
	}
	v.at = time.Now()
	h.events[e] = v
	return nil
}

func (h *Host) CheckEvent(e Event) error { return h.Await(e) }

func (h *Host) WaitEvent(s Stream, e Event) error {
	if err := h.admit("wait", s); err != nil {
		return err
	}
	return h.Await(e)
}

func (h *Host) Done(e Event) (bool, error) {
	err := h.Await(e)
	return err == nil, err
}

// Await returns at once: what was recorded is done.
func (h *Host) Await(e Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.known("await", e)
	return err
}

func (h *Host) Elapsed(start, end Event) (float64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a, err := h.known("elapsed", start)
	if err != nil {
		return 0, err
	}
	b, err := h.known("elapsed", end)
	if err != nil {
		return 0, err
	}
	if !a.timing || !b.timing || a.at.IsZero() || b.at.IsZero() {
		return 0, status.New(status.InvalidArgument, "elapsed: events %#x and %#x, expected two recorded events made with Timing", uintptr(start), uintptr(end))
	}
	return b.at.Sub(a.at).Seconds() * 1e3, nil
}

func (h *Host) NewStream(StreamFlags) (Stream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Stream(h.handle())
	h.stream[s] = true
	return s, nil
}

func (h *Host) FreeStream(s Stream) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stream[s] {
		return status.New(status.InvalidArgument, "free stream: stream is %#x, expected one that was created", uintptr(s))
	}
	delete(h.stream, s)
	return nil
}

func (h *Host) AllocHost(bytes int64) (unsafe.Pointer, error) {
	m, err := rows.Reserve(bytes, rows.MemoryOptions{Purpose: rows.PurposeStaging, DontDump: true})
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.memory[uintptr(m.Base())] = m
	return m.Base(), nil
}

func (h *Host) FreeHost(p unsafe.Pointer) error { return h.free("free host", uintptr(p)) }

func (h *Host) Alloc(s Stream, bytes int64) (Addr, error) {
	if err := h.admit("alloc", s); err != nil {
		return 0, err
	}
	p, err := h.AllocHost(bytes)
	return Addr(uintptr(p)), err
}

func (h *Host) Free(s Stream, a Addr) error {
	if err := h.admit("free", s); err != nil {
		return err
	}
	return h.free("free", uintptr(a))
}

func (h *Host) free(call string, addr uintptr) error {
	h.mu.Lock()
	m := h.memory[addr]
	delete(h.memory, addr)
	h.mu.Unlock()
	if m == nil {
		return status.New(status.InvalidArgument, "%s: %#x is not the start of memory from this device", call, addr)
	}
	m.Free()
	return nil
}

func (h *Host) Register(p unsafe.Pointer, bytes int64) error {
	if err := checkPages("register", p, bytes); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.pinned[uintptr(p)]; ok {
		return status.New(status.InvalidArgument, "register: %#x is registered already", uintptr(p))
	}
	h.pinned[uintptr(p)] = bytes
	return nil
}

func (h *Host) Unregister(p unsafe.Pointer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.pinned[uintptr(p)]; !ok {
		return status.New(status.InvalidArgument, "unregister: %#x is not registered", uintptr(p))
	}
	delete(h.pinned, uintptr(p))
	return nil
}

package main

/*
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"libprefixcache/core/coordinator"
	"libprefixcache/core/status"
	"libprefixcache/gpu"
)

// pageTable is what a handle of a page table stands for: core's host state, and
// the device copy with the staging memory that uploads go through.
type pageTable struct {
	mu       markedMutex
	t        *coordinator.PageTable
	dev      gpu.Device
	mirror   gpu.Addr
	own      slab           // the mirror, where it is not the host's
	staging  unsafe.Pointer // pinned, the size of the mirror
	uploaded gpu.Event      // after the last upload (C-78)
	recorded bool           // uploaded was recorded at least once
	unmarked bool           // copies are on last that uploaded does not cover: a record failed
	last     gpu.Stream     // of the last upload
	commands []coordinator.Command
	pinned   int64 // bytes of staging, where it is page-locked
	sent     int64 // bytes so far
	waits    sharedWaits
	user     *contextCache // the coordinator that uses it, nil for none
	closing  bool          // destroy has begun
	most     memoryPlan
	entry    *entry // of the table's handle
}

// openDevice picks what carries out device work.
func openDevice(flags C.uint32_t, stream gpu.Stream) (gpu.Device, error) {
	if flags&C.PC_HOST_MEMORY != 0 {
		return gpu.NewHost(), nil
	}
	if err := gpu.Probe(); err != nil {
		tellNoDevice(err)
	} else {
		dev, err := gpu.OpenCUDA(stream)
		if dev == nil {
			return nil, err // not a nil *CUDA in a Device, which would not be nil
		}
		return dev, err // with an error when its pool could not be made: the caller closes it
	}
	return gpu.NewHost(), nil
}

const entryBytes = 4 // of a page table: int32

func (t *pageTable) rowBytes() int64 { return 2 * int64(t.t.Width()) * entryBytes }
func (t *pageTable) bytes() int64    { return int64(t.t.MaxBatch()) * t.rowBytes() }

//export pcgo_table_create
func pcgo_table_create(options *C.pc_table_options, table *C.pc_handle) (st C.pc_status) {
	defer guard(&st)
	if err := out("table", table); err != nil {
		return fail(err)
	}
	if options == nil {
		return failNew(status.InvalidArgument, "options: null, expected a pc_table_options")
	}
	if err := inSize("options", options, options.struct_size, unsafe.Sizeof(*options)); err != nil {
		return fail(err)
	}
	if options.flags&^C.PC_HOST_MEMORY != 0 {
		return failNew(status.Unsupported, "options.flags: %#x, expected PC_HOST_MEMORY or 0", uint32(options.flags))
	}
	for _, v := range [...]uint64{uint64(options.reserved1), uint64(options.reserved[0]), uint64(options.reserved[1])} {
		if err := reserved("options.reserved", v); err != nil {
			return fail(err)
		}
	}
	if options.device_address%entryBytes != 0 {
		return failNew(status.InvalidArgument, "options.device_address: %#x, expected a multiple of %d", uint64(options.device_address), entryBytes)
	}
	t := &pageTable{mirror: gpu.Addr(options.device_address)}
	if err := t.open(options); err != nil {
		_ = t.close()
		return fail(err)
	}
	h, herr := handles.add(kindTable, t)
	if herr != nil {
		_ = t.close()
		return fail(herr)
	}
	t.entry = handles.at(h.index())
	*table = C.pc_handle(h)
	return C.PC_OK
}

// open makes the table, and its device side. What it may take is told before it is taken:
// core writes to all of its rows at once.
func (t *pageTable) open(o *C.pc_table_options) (err error) {
	if err = coordinator.CheckPageTable(int32(o.max_batch), int32(o.row_width), int32(o.num_pages)); err != nil {
		return err
	}
	if t.dev, err = openDevice(o.flags, gpu.UnnamedStream); err != nil {
		return err
	}
	most := 3 * 2 * entryBytes * int64(o.max_batch) * int64(o.row_width) // core's two copies of the rows, and staging
	if t.mirror == 0 && t.dev.IsHost() {
		most += most / 3
	}
	tellMemory(&t.most, most, "page table", "lower max_batch or row_width")
	if t.t, err = coordinator.NewPageTable(int32(o.max_batch), int32(o.row_width), int32(o.num_pages)); err != nil {
		return err
	}
	t.commands = make([]coordinator.Command, t.t.UploadCommands())
	if t.mirror == 0 {
		if err = t.own.open(t.dev, t.bytes()); err != nil {
			return err
		}
		t.mirror = t.own.at
	} else if err = t.dev.Check(gpu.UnnamedStream, []gpu.Region{{Name: "options.device_address", Addr: uintptr(t.mirror), Bytes: t.bytes(), Place: gpu.OnDevice}}); err != nil {
		return err
	}
	if t.staging, err = t.dev.AllocHost(t.bytes()); err != nil {
		return err
	}
	if !t.dev.IsHost() {
		t.pinned = t.bytes()
	}
	t.uploaded, err = t.dev.NewEvent(0)
	return err
}

// close gives back what open got so far.
func (t *pageTable) close() error {
	t.most.end()
	if t.dev == nil {
		return nil
	}
	return giveBack("page table", t.dev, func(g *giving) {
		if t.uploaded != 0 {
			if t.t.UploadPending() && !g.back(t.settle) {
				return // a copy may still be under way: its memory stays
			}
			g.back(func() error { return t.dev.FreeEvent(t.uploaded) })
		}
		if t.staging != nil {
			g.back(func() error { return t.dev.FreeHost(t.staging) })
		}
		t.own.close(g, t.dev)
		g.back(t.dev.Close)
	})
}

// exec carries out one command of the three that belong to a table.
func (t *pageTable) exec(c *coordinator.Command, stream gpu.Stream) error {
	switch c.Kind {
	case coordinator.CmdWaitUpload:
		return t.settle()
	case coordinator.CmdUploadRows:
		offset, n := int64(c.Slot)*t.rowBytes(), int64(c.Count)*t.rowBytes()
		src := unsafe.Add(t.staging, offset)
		copy(unsafe.Slice((*int32)(src), n/entryBytes), t.t.Rows(c.Slot, c.Count))
		if err := t.dev.CopyToDevice(stream, t.mirror+gpu.Addr(offset), src, n); err != nil {
			return err
		}
		t.last, t.unmarked = stream, true
		t.sent += n
		return nil
	case coordinator.CmdRecordUpload:
		if err := t.dev.Record(t.uploaded, stream); err != nil {
			return err
		}
		t.recorded, t.unmarked = true, false
		return nil
	}
	return status.New(status.Internal, "page table: command %v is not of a table", c)
}

// breakOff follows an upload that failed. What it enqueued is marked after all, since its
// stream may be destroyed, as in CUDA, while the copies are under way. Failing that, what is
// on a stream of this thread's own is waited for: no other thread could do so later.
func (t *pageTable) breakOff() {
	if t.unmarked && t.dev.Record(t.uploaded, t.last) == nil {
		t.recorded, t.unmarked = true, false
	}
	if t.unmarked && t.last == gpu.PerThreadStream {
		t.unmarked = t.dev.Drain(t.last) != nil
	}
}

// settle waits until staging is free (C-78). The event does not cover copies of an
// upload that failed before its record, nor anything before the first one.
func (t *pageTable) settle() error {
	if (t.unmarked || t.recorded) && !t.dev.IsHost() { // which is never waited for
		defer func(began int64) { t.waits.add(gpu.Now() - began) }(gpu.Now())
	}
	switch {
	case t.unmarked:
		err := drainElsewhere(t.dev, t.last, t.uploaded)
		t.unmarked = err != nil
		return err
	case t.recorded:
		return t.dev.Await(t.uploaded)
	}
	return nil
}

func enterTable(h C.pc_handle) (*pageTable, *status.Error) {
	e, err := handles.enter(handle(h), kindTable, "table")
	if err != nil {
		return nil, err
	}
	t := e.object.(*pageTable)
	t.mu.Lock()
	if t.mu.broken {
		t.unlock()
		return nil, leftBroken(kindTable, "table")
	}
	return t, nil
}

func (t *pageTable) unlock() {
	t.mu.Unlock()
	t.entry.leave()
}

// leave is deferred by every export that enters: unlock and guard in one, as for a manager.
func (t *pageTable) leave(st *C.pc_status) {
	r := recover()
	if t != nil {
		if r != nil {
			t.mu.broken = true // before others come in
		}
		t.unlock()
	}
	if r != nil {
		caught(st, r) // without the lock: the host's log may call back
	}
}

// enterTableChange is enterTable for calls that change rows: not under the feet
// of a coordinator's requests.
func enterTableChange(h C.pc_handle) (*pageTable, *status.Error) {
	t, err := enterTable(h)
	if err == nil && t.user != nil && t.user.active.Load() > 0 {
		t.unlock()
		return nil, status.New(status.Busy, "table: the coordinator that uses it has live requests")
	}
	return t, err
}

//export pcgo_table_destroy
func pcgo_table_destroy(h *C.pc_handle) (st C.pc_status) {
	defer guard(&st)
	if err := aligned("table", h); err != nil {
		return fail(err)
	}
	if h == nil || *h == 0 {
		return C.PC_OK
	}
	t, err := enterTable(*h)
	if err != nil && err.Code != status.Internal { // one that a panic left unusable can still be let go
		return fail(err)
	}
	if err == nil {
		busy := t.user != nil
		t.closing = t.closing || !busy // from here on no coordinator takes it
		t.unlock()
		if busy {
			return failNew(status.Busy, "table: a coordinator uses it, expected it to be destroyed first")
		}
	}
	if _, err := handles.remove(handle(*h), kindTable, "table"); err != nil {
		return fail(err)
	}
	*h = 0
	if t == nil {
		return C.PC_OK
	}
	return fail(t.close())
}

//export pcgo_table_set_identity
func pcgo_table_set_identity(h C.pc_handle) (st C.pc_status) {
	t, serr := enterTableChange(h)
	defer t.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	return fail(t.t.SetIdentity())
}

//export pcgo_table_set_rows
func pcgo_table_set_rows(h C.pc_handle, slots *C.int32_t, numRows C.uint64_t, pages *C.int32_t, cuts *C.int64_t) (st C.pc_status) {
	t, serr := enterTableChange(h)
	defer t.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	s, serr := slice[int32]("slots", unsafe.Pointer(slots), numRows)
	if serr != nil {
		return fail(serr)
	}
	if len(s) > int(t.t.MaxBatch()) {
		return failNew(status.InvalidArgument, "num_rows: %d, expected at most %d", len(s), t.t.MaxBatch())
	}
	if len(s) == 0 {
		return C.PC_OK
	}
	o, serr := offsets("offsets", unsafe.Pointer(cuts), len(s))
	if serr != nil {
		return fail(serr)
	}
	p, serr := slice[int32]("pages", unsafe.Pointer(pages), o[len(s)])
	if serr != nil {
		return fail(serr)
	}
	updates := make([]coordinator.RowUpdate, len(s))
	for i := range s {
		updates[i] = coordinator.RowUpdate{Slot: s[i], Pages: p[o[i]:o[i+1]]}
	}
	return fail(t.t.SetRows(updates))
}

//export pcgo_table_compact_rows
func pcgo_table_compact_rows(h C.pc_handle, oldToNew *C.int32_t, count C.uint64_t, newBatch C.int32_t) (st C.pc_status) {
	t, serr := enterTableChange(h)
	defer t.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	m, serr := slice[int32]("old_to_new", unsafe.Pointer(oldToNew), count)
	if serr != nil {
		return fail(serr)
	}
	return fail(t.t.CompactRows(m, int32(newBatch)))
}

//export pcgo_table_upload
func pcgo_table_upload(h C.pc_handle, stream C.uint64_t, uploaded *C.uint32_t) (st C.pc_status) {
	t, serr := enterTableChange(h)
	defer t.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := aligned("uploaded", uploaded); err != nil {
		return fail(err)
	}
	n, err := t.t.PlanUpload(coordinator.Base, t.commands)
	if err != nil {
		return fail(err)
	}
	if n > 0 {
		s := streamOn(t.dev, stream)
		for i := 0; i < n && err == nil; i++ {
			err = t.exec(&t.commands[i], s)
		}
		if err != nil {
			t.breakOff()
		}
		t.t.FinishUpload(err == nil)
	}
	if err != nil {
		return fail(err)
	}
	if uploaded != nil {
		*uploaded = C.uint32_t(min(n, 1))
	}
	return C.PC_OK
}

// streamOn is the stream to enqueue on. Plain memory knows no streams: any
// number that a host without a GPU passes means "now".
func streamOn(dev gpu.Device, stream C.uint64_t) gpu.Stream {
	if dev.IsHost() {
		return gpu.LegacyStream
	}
	return gpu.Stream(stream)
}

//export pcgo_table_get_row
func pcgo_table_get_row(h C.pc_handle, slot C.int32_t, row *C.int32_t) (st C.pc_status) {
	t, serr := enterTable(h)
	defer t.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("row", row); err != nil {
		return fail(err)
	}
	if slot < 0 || int32(slot) >= t.t.MaxBatch() {
		return failNew(status.InvalidArgument, "slot: %d, expected 0 to %d", int32(slot), t.t.MaxBatch()-1)
	}
	copy(unsafe.Slice((*int32)(row), 2*int(t.t.Width())), t.t.Rows(int32(slot), 1))
	return C.PC_OK
}

//export pcgo_table_get_info
func pcgo_table_get_info(h C.pc_handle, info *C.pc_table_info) (st C.pc_status) {
	t, serr := enterTable(h)
	defer t.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("info", info); err != nil {
		return fail(err)
	}
	if err := outSize("info", info, info.struct_size, statsMinBytes); err != nil {
		return fail(err)
	}
	v := C.pc_table_info{max_batch: C.int32_t(t.t.MaxBatch()), row_width: C.int32_t(t.t.Width()), num_pages: C.int32_t(t.t.Pages()),
		device_address: C.uint64_t(t.mirror)}
	if t.t.IsIdentity() {
		v.is_identity = 1
	}
	for slot := range t.t.MaxBatch() {
		if t.t.Dirty(slot) {
			v.dirty_rows++
		}
	}
	fill(info, info.struct_size, v)
	return C.PC_OK
}

//export pcgo_table_check
func pcgo_table_check(h C.pc_handle) (st C.pc_status) {
	t, serr := enterTable(h)
	defer t.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	return fail(t.t.CheckInvariants())
}

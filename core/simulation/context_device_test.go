package simulation

import (
	"libprefixcache/core/coordinator"
)

// accelerator has one stream, as a coordinator wants it. Work is done late: at a
// synchronisation, when an upload is waited for, or when the scheduler says so. Cells
// of state are digests of the prefix that they were computed from.
type accelerator struct {
	p      int32
	kind   coordinator.Kind
	verify int32 // EAGLE: base cells that a decode step writes
	reach  int32 // EAGLE: draft cells that drafting writes beyond the ingested ones

	work    []modelWork
	head    int
	uploads [2]int  // work that has to be done before staging may be rewritten
	loose   [2]bool // an upload was enqueued, and its event not recorded

	tables  [2]*coordinator.PageTable
	staging [2][]int32
	mirror  [2][]int32
	kv      [2][]uint64 // K pages, then V pages

	lengths   [2][]int32
	active    [2]int32
	recurrent []uint64 // live slots
	snapshots []uint64
	partial   [][]uint64 // K, then V
	mapping   []int32
}

// modelWork is one piece of work on the stream: a command of the library, or the
// model's own.
type modelWork struct {
	kind     workKind
	cmd      coordinator.Command
	h        *history // whose pages it uses
	slot     int32
	from, to int32
	list     []int32
	slots    []int32
}

type workKind uint8

const (
	doCommand workKind = iota
	doLengths
	doMapping
	doPrefill
	doIngest // the draft's work on [from, to)
	doDecode
)

func newAccelerator(c *coordinator.Coordinator) *accelerator {
	cfg := c.Config()
	recurrent, partial := c.SnapshotCounts()
	d := &accelerator{p: cfg.TokensPerPage, kind: cfg.Kind, tables: [2]*coordinator.PageTable{cfg.Base.Table}}
	if cfg.Draft != nil {
		d.tables[1] = cfg.Draft.Table
		d.verify, d.reach = cfg.Spec.VerifySize, cfg.Spec.DraftingStep*cfg.Spec.DraftingTopK
	}
	for i, t := range d.tables {
		if t != nil {
			d.staging[i] = make([]int32, t.MaxBatch()*2*t.Width())
			d.mirror[i] = make([]int32, len(d.staging[i]))
			d.kv[i] = make([]uint64, 2*t.Pages()*d.p)
		}
		d.lengths[i] = make([]int32, cfg.MaxBatch)
	}
	d.recurrent = make([]uint64, cfg.MaxBatch)
	for i := range d.recurrent {
		d.recurrent[i] = ^uint64(i) // rubbish, until somebody zeroes it
	}
	d.snapshots = make([]uint64, recurrent)
	for range partial {
		d.partial = append(d.partial, make([]uint64, 2*d.p))
	}
	return d
}

func (d *accelerator) enqueue(k modelWork) {
	if d.head == len(d.work) {
		d.work, d.head, d.uploads = d.work[:0], 0, [2]int{}
	}
	d.work = append(d.work, k)
}

func (d *accelerator) queued() int { return len(d.work) - d.head }

// drain does work up to a place of the queue.
func (d *accelerator) drain(to int) {
	for d.head < to {
		k := &d.work[d.head]
		d.head++
		if k.h != nil && k.h.gone {
			failf("device: work of a request runs after its pages were given back")
		}
		d.do(k)
	}
}

func (d *accelerator) sync() { d.drain(len(d.work)) }

// cell is where a position of the sequence in a slot lies, by the mirror.
func (d *accelerator) cell(cache coordinator.Cache, slot, pos int32) (k, v *uint64) {
	w, pages := d.tables[cache].Width(), d.tables[cache].Pages()
	row := d.mirror[cache][slot*2*w : (slot+1)*2*w]
	kp, vp := row[pos/d.p], row[w+pos/d.p]
	if kp < 0 || vp != kp+pages {
		failf("device: slot %d, position %d of cache %d has no page in the mirror (K %d, V %d)", slot, pos, cache, kp, vp)
	}
	return &d.kv[cache][kp*d.p+pos%d.p], &d.kv[cache][vp*d.p+pos%d.p]
}

// read wants the state of a position that was computed before; write computes it.
func (d *accelerator) read(cache coordinator.Cache, slot, pos int32, want uint64) {
	if k, v := d.cell(cache, slot, pos); *k != want || *v != want+2 {
		failf("device: slot %d, position %d of cache %d holds the state of another prefix", slot, pos, cache)
	}
}

func (d *accelerator) write(cache coordinator.Cache, slot, pos int32, state uint64) {
	k, v := d.cell(cache, slot, pos)
	*k, *v = state, state+2
}

func (d *accelerator) page(id int32) (k, v []uint64) {
	n := d.tables[0].Pages()
	return d.kv[0][id*d.p : (id+1)*d.p], d.kv[0][(n+id)*d.p : (n+id+1)*d.p]
}

// execute enqueues a command of a list, or carries it out where it is host work.
func (d *accelerator) execute(c *coordinator.Coordinator, cmd coordinator.Command, h *history) {
	switch cmd.Kind {
	case coordinator.CmdWaitUpload:
		d.drain(d.uploads[cmd.Cache])
		if d.loose[cmd.Cache] { // no event says when that is done
			d.sync()
		}
	case coordinator.CmdUploadRows:
		d.stagingFree(cmd)
		stride := 2 * d.tables[cmd.Cache].Width()
		copy(d.staging[cmd.Cache][cmd.Slot*stride:], d.tables[cmd.Cache].Rows(cmd.Slot, cmd.Count))
		d.enqueue(modelWork{cmd: cmd})
		d.loose[cmd.Cache] = true
	case coordinator.CmdRecordUpload:
		d.uploads[cmd.Cache], d.loose[cmd.Cache] = len(d.work), false
	case coordinator.CmdSetReuseLengths:
		if int32(len(c.ReuseLengths())) != cmd.Count || int32(len(c.Slots())) != cmd.Count { // D-5
			failf("device: %v with %d lengths and %d slots", cmd, len(c.ReuseLengths()), len(c.Slots()))
		}
		d.active[cmd.Cache] = cmd.Count
		d.enqueue(modelWork{kind: doLengths, cmd: cmd, list: append([]int32(nil), c.ReuseLengths()...), slots: append([]int32(nil), c.Slots()...)})
	case coordinator.CmdUploadMapping:
		d.enqueue(modelWork{kind: doMapping, list: append([]int32(nil), c.CompactionMapping()...)})
	case coordinator.CmdSetActiveBatch:
		d.active[cmd.Cache] = cmd.New
	case coordinator.CmdSynchronize:
		d.sync()
	case coordinator.CmdZeroRecurrent, coordinator.CmdRestoreRecurrent, coordinator.CmdCaptureRecurrent,
		coordinator.CmdRestorePage, coordinator.CmdCapturePage, coordinator.CmdCompactState:
		d.enqueue(modelWork{cmd: cmd, h: h})
	default:
		failf("device: unexpected command %v", cmd)
	}
}

// stagingFree fails when rows of staging are about to be rewritten that a copy still
// has to read.
func (d *accelerator) stagingFree(cmd coordinator.Command) {
	for i := d.head; i < len(d.work); i++ {
		if k := &d.work[i]; k.kind == doCommand && k.cmd.Kind == coordinator.CmdUploadRows && k.cmd.Cache == cmd.Cache &&
			k.cmd.Slot < cmd.Slot+cmd.Count && cmd.Slot < k.cmd.Slot+k.cmd.Count {
			failf("device: staging of cache %d, rows %d to %d, is rewritten while it is being uploaded (C-78)", cmd.Cache, cmd.Slot, cmd.Slot+cmd.Count)
		}
	}
}

func (d *accelerator) do(k *modelWork) {
	switch k.kind {
	case doCommand:
		d.doCommand(&k.cmd)
	case doLengths:
		for i, slot := range k.slots {
			d.lengths[k.cmd.Cache][slot] = k.list[i]
		}
	case doMapping:
		d.mapping = k.list
	case doPrefill:
		d.prefill(k)
	case doIngest:
		if k.from > d.lengths[1][k.slot] {
			failf("device: the draft holds %d tokens of slot %d, work starts at %d", d.lengths[1][k.slot], k.slot, k.from)
		}
		for pos := range k.from {
			d.read(coordinator.Draft, k.slot, pos, k.h.draft(pos))
		}
		for pos := k.from; pos < k.to; pos++ {
			d.write(coordinator.Draft, k.slot, pos, k.h.draft(pos))
		}
		d.lengths[1][k.slot] = k.to
	case doDecode:
		d.decode(k)
	}
}

func (d *accelerator) doCommand(cmd *coordinator.Command) {
	switch cmd.Kind {
	case coordinator.CmdUploadRows:
		stride := 2 * d.tables[cmd.Cache].Width()
		from, to := cmd.Slot*stride, (cmd.Slot+cmd.Count)*stride
		copy(d.mirror[cmd.Cache][from:to], d.staging[cmd.Cache][from:to])
	case coordinator.CmdZeroRecurrent:
		d.recurrent[cmd.Slot] = 0
	case coordinator.CmdRestoreRecurrent:
		d.recurrent[cmd.Slot] = d.snapshots[cmd.Snapshot]
	case coordinator.CmdCaptureRecurrent:
		d.snapshots[cmd.Snapshot] = d.recurrent[cmd.Slot]
	case coordinator.CmdRestorePage:
		k, v := d.page(cmd.Page)
		copy(k[:cmd.Tokens], d.partial[cmd.Snapshot])
		copy(v[:cmd.Tokens], d.partial[cmd.Snapshot][d.p:])
	case coordinator.CmdCapturePage:
		k, v := d.page(cmd.Page)
		copy(d.partial[cmd.Snapshot][:cmd.Tokens], k)
		copy(d.partial[cmd.Snapshot][d.p:d.p+cmd.Tokens], v)
	case coordinator.CmdCompactState:
		if int32(len(d.mapping)) != cmd.Count {
			failf("device: %v, the mapping has %d entries", cmd, len(d.mapping))
		}
		for old, to := range d.mapping { // in place: survivors move down only
			if to >= 0 {
				d.lengths[cmd.Cache][to] = d.lengths[cmd.Cache][old]
				if cmd.Cache == coordinator.Base {
					d.recurrent[to] = d.recurrent[old]
				}
			}
		}
	}
}

func (d *accelerator) attention() bool { return d.kind != coordinator.KindPureRecurrent }
func (d *accelerator) hasState() bool {
	return d.kind == coordinator.KindHybrid || d.kind == coordinator.KindPureRecurrent
}

// prefill is the model's work over the suffix of a prompt; whatever was reused is read.
func (d *accelerator) prefill(k *modelWork) {
	start := d.lengths[0][k.slot]
	if start != k.from {
		failf("device: slot %d starts at %d, the host says %d", k.slot, start, k.from)
	}
	for pos := int32(0); d.attention() && pos < k.to; pos++ {
		if pos < start {
			d.read(coordinator.Base, k.slot, pos, k.h.base(pos))
		} else {
			d.write(coordinator.Base, k.slot, pos, k.h.base(pos))
		}
	}
	if d.hasState() {
		d.state(k.slot, k.h, start)
		d.recurrent[k.slot] = k.h.base(k.to - 1)
	}
	d.lengths[0][k.slot] = k.to
}

// state wants the recurrent state behind n tokens in a slot.
func (d *accelerator) state(slot int32, h *history, n int32) {
	want := uint64(0)
	if n > 0 {
		want = h.base(n - 1)
	}
	if d.recurrent[slot] != want {
		failf("device: slot %d, %d tokens, has the recurrent state of another prefix", slot, n)
	}
}

// decode is a step from k.from to k.to. Candidates that are rejected leave rubbish
// behind the accepted ones.
func (d *accelerator) decode(k *modelWork) {
	if d.lengths[0][k.slot] != k.from {
		failf("device: slot %d has %d tokens, the host says %d", k.slot, d.lengths[0][k.slot], k.from)
	}
	reach := k.from + 1
	if k.list != nil { // EAGLE
		reach = k.from + d.verify
	}
	for pos := int32(0); d.attention() && pos < reach; pos++ {
		switch {
		case pos < k.from:
			d.read(coordinator.Base, k.slot, pos, k.h.base(pos))
		case pos < k.to:
			d.write(coordinator.Base, k.slot, pos, k.h.base(pos))
		default:
			d.write(coordinator.Base, k.slot, pos, 3)
		}
	}
	if d.hasState() {
		d.state(k.slot, k.h, k.from)
		d.recurrent[k.slot] = k.h.base(k.to - 1)
	}
	for pos := k.from; k.list != nil && pos < k.from+d.reach; pos++ {
		d.write(coordinator.Draft, k.slot, pos, 5)
	}
	d.lengths[0][k.slot] = k.to
}

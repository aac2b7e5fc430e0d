package coordinator

import (
	"slices"
	"testing"

	"libprefixcache/core/prefix"
)

// device is a simulated accelerator with one stream. Everything that is
// enqueued runs late, at a synchronisation, so that staging which is rewritten
// too early, and pages which are freed too early, show up as wrong content.
//
// A cell of state is a 64-bit digest of the prefix it was computed from: that
// is what makes any wrong reuse visible.
type device struct {
	t       *testing.T
	p       int32
	queue   []func()
	uploads [2]int // length of the queue at the last recorded upload

	tables  [2]*PageTable
	staging [2][]int32
	mirror  [2][]int32
	kv      [2][]uint64 // [K pages then V pages][P]

	lengths   [2][]int32
	active    [2]int32
	recurrent []uint64 // live slots
	snapshots []uint64
	partial   [][]uint64 // [slot][2][P]
	mapping   []int32
}

func newDevice(t *testing.T, c *Coordinator) *device {
	d := &device{t: t, p: c.p, tables: c.tables()}
	for i, table := range d.tables {
		if table != nil {
			d.staging[i] = make([]int32, len(table.ids))
			d.mirror[i] = make([]int32, len(table.ids))
			d.kv[i] = make([]uint64, 2*table.pages*c.p)
		}
		d.lengths[i] = make([]int32, c.cfg.MaxBatch)
	}
	d.recurrent = make([]uint64, c.cfg.MaxBatch)
	for i := range d.recurrent {
		d.recurrent[i] = ^uint64(i) // rubbish until zeroed
	}
	d.snapshots = make([]uint64, c.snapshots[0])
	d.partial = make([][]uint64, c.snapshots[1])
	for i := range d.partial {
		d.partial[i] = make([]uint64, 2*c.p)
	}
	return d
}

func (d *device) enqueue(f func()) { d.queue = append(d.queue, f) }

// drain runs the first n enqueued pieces of work.
func (d *device) drain(n int) {
	for _, f := range d.queue[:n] {
		f()
	}
	d.queue = slices.Delete(d.queue, 0, n)
	for i := range d.uploads {
		d.uploads[i] = max(0, d.uploads[i]-n)
	}
}

func (d *device) sync() { d.drain(len(d.queue)) }

// cell is where position pos of the sequence in a slot lies, by the mirror.
func (d *device) cell(cache Cache, slot, pos int32) (k, v *uint64) {
	w := d.tables[cache].width
	row := d.mirror[cache][slot*2*w : (slot+1)*2*w]
	kp, vp := row[pos/d.p], row[w+pos/d.p]
	if kp < 0 || vp != kp+d.tables[cache].pages {
		d.t.Errorf("slot %d position %d has no page in the mirror (K %d, V %d)", slot, pos, kp, vp)
		return new(uint64), new(uint64)
	}
	return &d.kv[cache][kp*d.p+pos%d.p], &d.kv[cache][vp*d.p+pos%d.p]
}

func (d *device) page(id int32) (k, v []uint64) {
	n := d.tables[Base].pages
	return d.kv[Base][id*d.p : (id+1)*d.p], d.kv[Base][(n+id)*d.p : (n+id+1)*d.p]
}

// execute enqueues one command, or carries it out where it is host work.
func (d *device) execute(c *Coordinator, cmd Command) {
	switch cmd.Kind {
	case CmdWaitUpload:
		d.drain(d.uploads[cmd.Cache])
	case CmdUploadRows:
		stride := 2 * d.tables[cmd.Cache].width
		from, to := cmd.Slot*stride, (cmd.Slot+cmd.Count)*stride
		copy(d.staging[cmd.Cache][from:to], d.tables[cmd.Cache].Rows(cmd.Slot, cmd.Count))
		d.enqueue(func() { copy(d.mirror[cmd.Cache][from:to], d.staging[cmd.Cache][from:to]) })
	case CmdRecordUpload:
		d.uploads[cmd.Cache] = len(d.queue)
	case CmdZeroRecurrent:
		d.enqueue(func() { d.recurrent[cmd.Slot] = 0 })
	case CmdRestoreRecurrent:
		d.enqueue(func() { d.recurrent[cmd.Slot] = d.snapshots[cmd.Snapshot] })
	case CmdCaptureRecurrent:
		d.enqueue(func() { d.snapshots[cmd.Snapshot] = d.recurrent[cmd.Slot] })
	case CmdRestorePage, CmdCapturePage:
		if cmd.Tokens <= 0 || cmd.Tokens >= d.p {
			d.t.Errorf("%v: tokens out of range", cmd)
		}
		d.enqueue(func() {
			k, v := d.page(cmd.Page)
			s := d.partial[cmd.Snapshot]
			if cmd.Kind == CmdRestorePage {
				copy(k[:cmd.Tokens], s)
				copy(v[:cmd.Tokens], s[d.p:])
			} else {
				copy(s[:cmd.Tokens], k)
				copy(s[d.p:d.p+cmd.Tokens], v)
			}
		})
	case CmdSetReuseLengths:
		lengths, slots := slices.Clone(c.ReuseLengths()), slices.Clone(c.Slots())
		if int32(len(lengths)) != cmd.Count || len(slots) != len(lengths) { // D-5
			d.t.Errorf("%v: %d lengths and %d slots", cmd, len(lengths), len(slots))
		}
		d.active[cmd.Cache] = cmd.Count
		d.enqueue(func() {
			for i, slot := range slots {
				d.lengths[cmd.Cache][slot] = lengths[i]
			}
		})
	case CmdUploadMapping:
		mapping := slices.Clone(c.CompactionMapping())
		d.enqueue(func() { d.mapping = mapping })
	case CmdCompactState:
		d.enqueue(func() {
			if int32(len(d.mapping)) != cmd.Count {
				d.t.Errorf("%v: the device mapping has %d entries", cmd, len(d.mapping))
			}
			for old, to := range d.mapping { // in place: survivors move down only
				if to >= 0 {
					d.lengths[cmd.Cache][to] = d.lengths[cmd.Cache][old]
					if cmd.Cache == Base {
						d.recurrent[to] = d.recurrent[old]
					}
				}
			}
		})
	case CmdSetActiveBatch:
		d.active[cmd.Cache] = cmd.New
	case CmdSynchronize:
		d.sync()
	default:
		d.t.Errorf("command %v is unknown", cmd)
	}
}

// mix folds v into a prefix digest; 0 is left for "no state".
func mix(h uint64, v ...uint64) uint64 {
	for _, x := range v {
		h = (h ^ x) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return h | 1
}

// history is what a test knows of one sequence, independent of the cache.
type history struct {
	tokens []int32
	media  []prefix.Hash128
	extras *prefix.Extras
	prefix []uint64 // prefix[i]: digest of the first i tokens with everything that sets them apart

	prompt    int32 // length at the finalize
	committed int32
	common    int32 // draft state
}

func newHistory(in SequenceAdmission) *history {
	root := uint64(11)
	if e := in.Extras; e != nil {
		if e.Adapter.Present {
			root = mix(root, 1, e.Adapter.ID.Hi, e.Adapter.ID.Lo, e.Adapter.Generation)
		}
		for i, o := range [...]prefix.OptionalHash{e.Position, e.Embedding, e.Isolation} {
			if o.Present {
				root = mix(root, uint64(i)+2, o.Hash.Hi, o.Hash.Lo)
			}
		}
	}
	h := &history{media: in.Media, extras: in.Extras, prefix: []uint64{root}}
	h.add(in.Tokens...)
	return h
}

func (h *history) add(tokens ...int32) {
	for _, t := range tokens {
		i := len(h.tokens)
		last := h.prefix[i]
		if i < len(h.media) && !h.media[i].IsZero() {
			h.prefix = append(h.prefix, mix(last, 1, h.media[i].Hi, h.media[i].Lo))
		} else {
			h.prefix = append(h.prefix, mix(last, 0, uint64(uint32(t))))
		}
		h.tokens = append(h.tokens, t)
	}
}

func (h *history) len() int32 { return int32(len(h.tokens)) }

// base and draft are the state that belongs at a position. The draft's depends
// on the following token too (8.3).
func (h *history) base(pos int32) uint64  { return h.prefix[pos+1] }
func (h *history) draft(pos int32) uint64 { return mix(h.prefix[pos+2], 7) }

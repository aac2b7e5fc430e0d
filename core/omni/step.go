package omni

import (
	"strconv"
	"strings"
	"unsafe"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// stepCtx is everything Materialize may use of a saved step: spans, and the
// plans of its hits. It never looks at live tables of the engine. Contexts and
// their slices are recycled; how many there are follows the steps in use at once.
type stepCtx struct {
	index int32
	id    uint64 // 0: free
	page  int    // staging page, or -1 once given back

	starts []int64 // batch+1 entries: request b's new rows are [starts[b], starts[b+1])
	offs   []int64 // batch+1 entries, in the layout of results: its hit rows, then its new rows
	hits   []ctxHit
	keys   []ctxKey
	wait   uint64 // newest step that has to be written before plans are read

	plans    []plan
	spans    []rows.Span
	pieces   []piece
	readers  []reader
	overlays []overlay

	plansClosed bool
	moves       rows.Moves

	// Of a step with rows on a device: the memory of its page.
	base   unsafe.Pointer
	await  [1]Command
	landed bool // this thread has seen it land
}

// ctxHit is a hit whose request is in the batch of the step.
type ctxHit struct {
	req             uint64
	batch           int32
	first, firstEnd int32 // in Cache.hits.blocks, until the step is published
	tokens          int64
	hiddenAbsent    int64 // hidden rows that do not exist: an error when it is read
}

// ctxKey is a key that the step emits (R-17: the set is frozen here).
type ctxKey struct {
	id              KeyID
	k               *key
	segs            []*rows.Memory // k.store's, as they were when the lock was given up
	kept            bool           // new rows are on the staging page, not yet with the caller
	plans, plansEnd int32
	off             int64 // on the page of a device step
}

// newRows is where the step's rows of a key are while its page is held.
func (c *Cache) newRows(x *stepCtx, xk *ctxKey) unsafe.Pointer {
	if x.base != nil {
		return unsafe.Add(x.base, xk.off)
	}
	return xk.k.page(x.page, c.cfg.StagingCapacity)
}

// newRow is the row, in the layout of results, where request b's new rows begin.
func (x *stepCtx) newRow(b int64) int64 { return x.offs[b+1] - (x.starts[b+1] - x.starts[b]) }

// stepTable holds the contexts.
type stepTable struct {
	all  []*stepCtx
	free []int32
	open []int32 // unconsumed steps, in no order; at most StagingDepth (O-39)
}

// get returns a free context.
func (t *stepTable) get() *stepCtx {
	if n := len(t.free); n > 0 {
		x := t.all[t.free[n-1]]
		t.free = t.free[:n-1]
		return x
	}
	x := &stepCtx{index: int32(len(t.all)), page: -1}
	t.all = append(t.all, x)
	return x
}

// put makes a context free again.
func (t *stepTable) put(x *stepCtx) {
	x.id, x.page, x.wait, x.plansClosed, x.base, x.landed = 0, -1, 0, false, nil, false
	x.starts, x.offs, x.hits, x.keys = x.starts[:0], x.offs[:0], x.hits[:0], x.keys[:0]
	x.plans, x.spans, x.pieces, x.readers, x.overlays = x.plans[:0], x.spans[:0], x.pieces[:0], x.readers[:0], x.overlays[:0]
	t.free = append(t.free, x.index)
}

// pop consumes a step id, exactly once (O-21).
func (t *stepTable) pop(id uint64) (*stepCtx, error) {
	for i, n := range t.open {
		if x := t.all[n]; x.id == id && id != 0 {
			t.open[i] = t.open[len(t.open)-1]
			t.open = t.open[:len(t.open)-1]
			return x, nil
		}
	}
	return nil, status.New(status.Unmatch, "step context %d missing (have %s): already consumed or never saved", id, t.ids())
}

// has reports whether a step is unconsumed.
func (t *stepTable) has(id uint64) bool {
	for _, n := range t.open {
		if t.all[n].id == id {
			return true
		}
	}
	return false
}

// ids lists the unconsumed steps for an error text.
func (t *stepTable) ids() string {
	var b strings.Builder
	b.WriteByte('[')
	for last := uint64(0); ; {
		next := uint64(0)
		for _, n := range t.open {
			if id := t.all[n].id; id > last && (next == 0 || id < next) {
				next = id
			}
		}
		if next == 0 {
			break
		}
		if last != 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.FormatUint(next, 10))
		last = next
	}
	b.WriteByte(']')
	return b.String()
}

// endStep ends the reads of a context, gives its page back and frees it.
func (c *Cache) endStep(x *stepCtx) {
	c.closePlans(x)
	c.dropOverlays(x)
	c.givePageBack(x)
	c.steps.put(x)
}

func (c *Cache) givePageBack(x *stepCtx) {
	if x.page >= 0 {
		c.releasePage(x.page, pageByStep)
		x.page = -1
	}
}

// Discard consumes a step that nobody will read. Its rows reach the mirror all the
// same (O-24). It reports no earlier failure, and works during a save (O-47).
func (c *Cache) Discard(step uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, err := c.steps.pop(step)
	if err != nil {
		return err
	}
	c.endStep(x)
	if step == c.job.step {
		c.handOver()
	}
	c.stats.StepsDiscarded++
	return nil
}

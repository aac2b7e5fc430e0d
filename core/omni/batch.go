package omni

import (
	"math"
	"slices"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// batchLayout is what Save works out about the step it is given. It is scratch,
// reused by the next save, and only touched by the engine thread.
type batchLayout struct {
	n              int64
	starts, offs   []int64 // see stepCtx
	stretches      []stretch
	hits           []ctxHit
	immediate      int // carried immediate keys
	immediateBytes int64
	deferredBytes  int64

	device      int // keys whose rows are on a device
	byCommitter bool
	charged     int64 // of the budget, until publish hands it to writes
	page        int
	repeated    bool // a slot is listed twice: rows have to be moved in batch order
	moves       rows.Moves
	handles     []int32 // rows taken for deferred keys, key by key
	runs        []rows.Run
	pageOffs    []int64 // device step: byte of the page where each key's rows begin

	// The last batch that was checked: the same one again needs no new look-ups.
	known    bool
	requests []uint64
	index    batchIndex
	entries  []int32 // request entries, for deferred keys; valid while gen matches
	gen      uint64
}

// stretch is consecutive rows of the step that are consecutive in results too:
// they end where a hit begins.
type stretch struct{ row, n, off int64 }

// batchIndex finds a request's position in the batch.
type batchIndex struct {
	table []batchSlot
	epoch uint32
}

type batchSlot struct {
	num   uint64
	epoch uint32
	at    int32
}

// checkSave checks every argument and works out the layout. Nothing that can be
// seen changes.
func (c *Cache) checkSave(a *SaveArgs) error {
	s := &c.batch
	if len(a.Counts) != len(a.Requests) {
		return status.New(status.InvalidArgument, "counts has %d entries, expected %d, one for each request", len(a.Counts), len(a.Requests))
	}
	if len(a.Requests) > maxBatch {
		return status.New(status.InvalidArgument, "requests has %d entries, expected at most %d", len(a.Requests), maxBatch)
	}
	if err := c.checkBatch(a.Requests); err != nil {
		return err
	}
	if err := c.layOut(a); err != nil {
		return err
	}
	if int64(len(a.Slots)) != s.n {
		return status.New(status.Unmatch, "slot mapping covers %d of %d scheduled tokens; slot derivation is out of step with the batch", len(a.Slots), s.n)
	}
	if i := rows.FirstOutside(a.Slots, c.slots); i >= 0 {
		return status.New(status.Unmatch, "slots[%d] is %d, expected 0 to %d", i, a.Slots[i], c.slots-1)
	}
	if err := c.checkRows(a); err != nil {
		return err
	}
	if c.last == maxOwner {
		return status.New(status.Internal, "step ids are used up")
	}
	return nil
}

// checkBatch refuses a request that is listed twice. The batch of the last step is
// known to be good, which is what a decode step almost always is.
func (c *Cache) checkBatch(reqs []uint64) error {
	s := &c.batch
	if s.known && slices.Equal(reqs, s.requests) {
		return nil
	}
	s.known, s.gen = false, 0
	s.requests = s.requests[:0]
	s.index.reset(len(reqs))
	for i, num := range reqs {
		if first := s.index.put(num, int32(i)); first >= 0 {
			return status.New(status.InvalidArgument, "requests[%d] is req %s, which is requests[%d] already", i, c.nameOf(num), first)
		}
	}
	s.requests = append(s.requests, reqs...)
	s.known = true
	return nil
}

// layOut computes spans, result offsets and the hits of the batch.
func (c *Cache) layOut(a *SaveArgs) error {
	s := &c.batch
	// Hits are few and the batch is long: the hits look for their requests.
	s.hits, s.stretches = s.hits[:0], s.stretches[:0]
	s.starts, s.offs = append(s.starts[:0], 0), append(s.offs[:0], 0)
	for i := range c.hits.hits {
		h := &c.hits.hits[i]
		if b := s.index.at(h.req); b >= 0 { // else: announced, but not in this batch
			s.hits = append(s.hits, ctxHit{req: h.req, batch: b, tokens: h.tokens, first: h.first, firstEnd: h.first + int32(h.tokens/c.cfg.BlockSize)})
		}
	}
	slices.SortFunc(s.hits, func(a, b ctxHit) int { return int(a.batch) - int(b.batch) })
	n, off, next := int64(0), int64(0), 0
	open := stretch{}
	for b, count := range a.Counts {
		if count < 0 || count > maxStepRows-n {
			return status.New(status.InvalidArgument, "counts[%d] is %d, expected 0 to %d", b, count, maxStepRows-n)
		}
		// A hit opens a gap in the result, which ends the stretch before it.
		if next < len(s.hits) && int(s.hits[next].batch) == b {
			if open.n = n - open.row; open.n > 0 {
				s.stretches = append(s.stretches, open)
			}
			off += s.hits[next].tokens
			open = stretch{row: n, off: off}
			next++
		}
		n, off = n+count, off+count
		s.starts, s.offs = append(s.starts, n), append(s.offs, off)
	}
	if open.n = n - open.row; open.n > 0 {
		s.stretches = append(s.stretches, open)
	}
	s.n = n
	return nil
}

// checkRows checks the keys of the step and marks them as carried.
func (c *Cache) checkRows(a *SaveArgs) error {
	s := &c.batch
	s.immediate, s.immediateBytes, s.deferredBytes, s.device = 0, 0, 0, 0
	layout := s.offs[len(s.offs)-1]
	for i := range a.Rows {
		r := &a.Rows[i]
		k, err := c.key(r.Key)
		if err != nil {
			return err
		}
		if k.carried >= 0 { // uncarry runs in every way out of Save
			return status.New(status.InvalidArgument, "rows[%d] is key %s, which is rows[%d] already", i, k.name, k.carried)
		}
		k.carried = int32(i)
		switch {
		case s.n == 0 && !k.visible:
			return status.New(status.InvalidArgument, "rows[%d] is key %s, which no save has carried yet: a step without rows cannot emit it", i, k.name)
		case r.Key == c.hidden && !c.wantsHidden:
			return status.New(status.InvalidArgument, "rows[%d] is key %s, which the policy does not want", i, k.name)
		case s.n > 0 && r.Rows == nil:
			return status.New(status.InvalidArgument, "rows of key %s is null, expected %d rows", k.name, s.n)
		case s.n > 0 && (r.Stride < k.rowBytes || r.Stride > 1<<32):
			return status.New(status.InvalidArgument, "row_stride of key %s is %d, expected %d to %d", k.name, r.Stride, k.rowBytes, int64(1)<<32)
		case s.n > 0 && beyond(r.Rows, (s.n-1)*r.Stride+k.rowBytes):
			return status.New(status.InvalidArgument, "rows of key %s is %#x, expected an address with %d bytes behind it",
				k.name, uintptr(r.Rows), (s.n-1)*r.Stride+k.rowBytes)
		case layout > math.MaxInt64/k.rowBytes:
			return status.New(status.InvalidArgument, "key %s has %d rows of %d bytes in the results of this step, more than the address space",
				k.name, layout, k.rowBytes)
		case r.Dst != nil && r.DstBytes != layout*k.rowBytes:
			code := status.InvalidArgument
			if r.DstBytes < layout*k.rowBytes {
				code = status.BufferTooSmall
			}
			return status.New(code, "dst_bytes of key %s is %d, expected %d rows of %d bytes = %d", k.name, r.DstBytes, layout, k.rowBytes, layout*k.rowBytes)
		case beyond(r.Dst, r.DstBytes):
			return status.New(status.InvalidArgument, "dst of key %s is %#x, expected an address with %d bytes behind it",
				k.name, uintptr(r.Dst), r.DstBytes)
		case s.n > c.cfg.StagingCapacity && // also when this step would not be staged: the
			// limit must not depend on mode and size
			(k.sched == JoinNextStep || r.Dst == nil):
			return status.New(status.Unmatch, "step has %d rows of key %s to stage, staging capacity is %d", s.n, k.name, c.cfg.StagingCapacity)
		}
		if r.Place != OnHost && s.n > 0 {
			if err := c.checkDeviceRows(r, k); err != nil {
				return err
			}
			s.device++
		}
		if k.sched == JoinNextStep {
			s.immediate += btoi(s.n > 0)
			s.immediateBytes += s.n * k.rowBytes
		} else {
			s.deferredBytes += s.n * k.rowBytes
		}
	}
	if a.Event != 0 && s.device == 0 && s.n > 0 && len(a.Rows) > 0 {
		return status.New(status.InvalidArgument, "event is %#x, expected 0: no rows of this step are on a device, and those on the host are read at once", a.Event)
	}
	return c.checkOverlap(a)
}

// checkOverlap refuses destinations that overlap a source or each other.
func (c *Cache) checkOverlap(a *SaveArgs) error {
	s := &c.batch
	for i := range a.Rows {
		r := &a.Rows[i]
		if r.Dst == nil || r.DstBytes == 0 {
			continue
		}
		for j := range a.Rows {
			q := &a.Rows[j]
			if s.n > 0 && overlap(r.Dst, r.DstBytes, q.Rows, (s.n-1)*q.Stride+c.keys[q.Key].rowBytes) {
				return status.New(status.InvalidArgument, "dst of key %s overlaps the rows of key %s", c.keys[r.Key].name, c.keys[q.Key].name)
			}
			if j < i && q.Dst != nil && overlap(r.Dst, r.DstBytes, q.Dst, q.DstBytes) {
				return status.New(status.InvalidArgument, "dst of key %s overlaps the dst of key %s", c.keys[r.Key].name, c.keys[q.Key].name)
			}
		}
	}
	return nil
}

// findEntries looks up the request entries of the batch, for their open writes. A
// request that was never announced gets an entry too: its rows are rows.
func (c *Cache) findEntries(reqs []uint64) {
	s := &c.batch
	if s.gen == c.reqs.gen+1 && len(s.entries) == len(reqs) {
		return
	}
	s.entries = s.entries[:0]
	for _, num := range reqs {
		s.entries = append(s.entries, c.reqs.get(num))
	}
	s.gen = c.reqs.gen + 1
}

// reset makes the index empty and large enough for n requests.
func (t *batchIndex) reset(n int) {
	if size := max(len(t.table), 64); len(t.table) < 2*n || len(t.table) == 0 {
		for size < 2*n {
			size *= 2
		}
		t.table, t.epoch = make([]batchSlot, size), 0
	}
	if t.epoch++; t.epoch == 0 {
		clear(t.table)
		t.epoch = 1
	}
}

// put enters a request; if it is there already, its position, else -1.
func (t *batchIndex) put(num uint64, at int32) int32 {
	s := t.slot(num)
	if s.epoch == t.epoch {
		return s.at
	}
	*s = batchSlot{num: num, epoch: t.epoch, at: at}
	return -1
}

// at is the position of a request, or -1.
func (t *batchIndex) at(num uint64) int32 {
	if len(t.table) == 0 {
		return -1
	}
	if s := t.slot(num); s.epoch == t.epoch {
		return s.at
	}
	return -1
}

// slot is where num is, or the free place where it goes. The table is at most half
// full, and an entry of another epoch is free: reset costs nothing.
func (t *batchIndex) slot(num uint64) *batchSlot {
	h := num * 0x9E3779B97F4A7C15
	for i := int((h ^ h>>32) & uint64(len(t.table)-1)); ; i = (i + 1) & (len(t.table) - 1) {
		if s := &t.table[i]; s.epoch != t.epoch || s.num == num {
			return s
		}
	}
}

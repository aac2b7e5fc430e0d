package simulation

import (
	"strings"

	"libprefixcache/core/omni"
	"libprefixcache/core/status"
)

// savedStep is a step between Save and the call that consumes it.
type savedStep struct {
	id          uint64
	requests    []uint64
	counts      []int64
	rows        []int64 // of the result, by request
	carried     []bool  // by key
	buffers     [][]byte
	given       []bool // the buffer was given to Save
	want        [][]uint32
	missing     []bool // hidden rows of the request's hit do not exist
	wantsHidden bool
	reads       []omni.Read
}

func (w *omniWorld) newStep() *savedStep {
	if n := len(w.spare); n > 0 {
		s := w.spare[n-1]
		w.spare = w.spare[:n-1]
		s.requests, s.counts, s.rows = s.requests[:0], s.counts[:0], s.rows[:0]
		clear(s.carried)
		clear(s.given)
		return s
	}
	n := len(w.keys)
	return &savedStep{carried: make([]bool, n), buffers: make([][]byte, n), given: make([]bool, n), want: make([][]uint32, n), wantsHidden: w.wants}
}

// engineScratch is what the engine's calls are made of; one runs at a time.
type engineScratch struct {
	args     omni.SaveArgs
	finished []uint64
	arrivals []arrival
	requests []omni.NewRequest
	accepted []bool
	expected []bool
	taken    []bool // by slot
}

// engineCall begins a call of the engine's thread.
func (w *omniWorld) engineCall() {
	switch {
	case !w.announce || w.r.oneIn(8):
		w.drawOutput()
		w.engine.start(func() { w.begin(w.finished, w.arrivals) })
	case w.r.oneIn(40):
		w.engine.start(w.otherShape)
	default:
		w.engine.start(w.save)
	}
}

// drawOutput is one scheduler output.
func (w *omniWorld) drawOutput() {
	w.finished, w.arrivals = w.finished[:0], w.arrivals[:0]
	for q := range uint64(omniRequests) {
		if w.r.oneIn(8) {
			w.finished = append(w.finished, q)
		}
	}
	for range w.r.n(4) {
		a := arrival{request: uint64(w.r.n(omniRequests))}
		if !w.r.oneIn(3) {
			n := w.r.in(1, 3)
			for range n + w.r.n(2) {
				a.blocks = append(a.blocks, int64(w.r.n(int(w.cfg.NumBlocks))))
			}
			a.tokens = int64(n) * w.cfg.BlockSize
		}
		w.arrivals = append(w.arrivals, a)
	}
}

func (w *omniWorld) begin(finished []uint64, arrivals []arrival) {
	refuse := w.failed || w.closed
	w.requests, w.accepted, w.expected = w.requests[:0], w.accepted[:0], w.expected[:0]
	for _, a := range arrivals {
		w.requests = append(w.requests, omni.NewRequest{Request: a.request, HitTokens: a.tokens, Blocks: a.blocks})
		w.accepted, w.expected = append(w.accepted, false), append(w.expected, false)
	}
	if w.r.oneIn(10) && !refuse { // refused, so that nothing has changed; the same without the fault follows
		w.done.calls++
		bad := append(w.requests, omni.NewRequest{Request: 99, HitTokens: w.cfg.BlockSize, Blocks: []int64{w.cfg.NumBlocks}})
		if err := w.c.StepBegin(finished, bad, nil); status.CodeOf(err) != status.Unmatch && !w.closing {
			failf("StepBegin with a block that does not exist: %v", err)
		}
	}
	w.done.calls++
	err := w.c.StepBegin(finished, w.requests, w.accepted)
	w.say("step_begin finished %v, arrivals %v: %v %v", finished, arrivals, w.accepted, err)
	if !w.judge("step_begin", err, refuse) {
		return
	}
	w.announce = true
	w.m.begin(finished, arrivals, w.expected)
	for i := range w.expected {
		if w.accepted[i] != w.expected[i] {
			failf("step_begin: hit of request %d accepted %v, the model says %v", arrivals[i].request, w.accepted[i], w.expected[i])
		}
	}
}

// otherShape opens a visible key with another width: refused, and nothing changes.
func (w *omniWorld) otherShape() {
	k := w.r.in(1, len(w.keys)-1)
	if !w.m.keys[k].visible || w.closing {
		return
	}
	w.done.calls++
	if _, err := w.c.OpenKey(w.keys[k].name, w.keys[k].bytes+1, 1, w.keys[k].schedule); status.CodeOf(err) != status.KeyMismatch && !w.closing {
		failf("a visible key with another width: %v", err)
	}
}

// judge looks at what a call of a thread answered, and reports whether it did what it
// was asked for. refuse: it was begun when it had to fail.
func (w *omniWorld) judge(call string, err error, refuse bool) bool {
	t := w.running
	if err == nil {
		if refuse {
			failf("%s succeeded after a failed write (%v) or a shutdown (%v)", call, w.failed, w.closed)
		}
		if t.timedOut {
			failf("%s slept until its deadline although what it waited for had come: nobody woke it", call)
		}
		return true
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "write failed"):
		if !w.failing {
			failf("%s: %v, but no write was made to fail", call, err)
		}
		w.failed = true
	case strings.Contains(text, "already consumed or never saved") && w.freed: // nothing is left
	case strings.Contains(text, "shut down"):
		if !w.closing {
			failf("%s: %v, but nobody shut it down", call, err)
		}
	case strings.Contains(text, "did not reach done"), status.CodeOf(err) == status.StagingTimeout:
		if !t.timedOut && w.cfg.Timeout > 0 {
			failf("%s: %v, but it did not wait so long", call, err)
		}
	default:
		failf("%s: %v", call, err)
	}
	return false
}

// save is one step of the engine: rows of some requests, for some keys.
func (w *omniWorld) save() {
	r, s, a := w.r, w.newStep(), &w.args
	refuse := w.failed || w.closed
	w.drawBatch(s)
	firstTag := w.m.lastTag + 1
	w.m.lastTag += uint32(len(a.Slots))
	a.Rows, a.Stream, a.Event = a.Rows[:0], uint64(r.n(producers)), 0
	onDevice := false
	layout := int64(0)
	for _, n := range s.rows {
		layout += n
	}
	for k := range w.keys {
		key := &w.keys[k]
		if k == 0 && !w.wants || r.oneIn(4) || len(a.Slots) == 0 && !w.m.keys[k].visible {
			continue
		}
		s.carried[k] = true
		stride := key.bytes + int64(r.n(3))
		for i := range a.Slots {
			writeRow(key.sources[int64(i)*stride:][:key.bytes], k, firstTag+uint32(i))
		}
		rows := omni.KeyRows{Key: key.id, Rows: at(key.sources), Stride: stride}
		if need := int(layout * key.bytes); len(s.buffers[k]) < need+1 {
			s.buffers[k] = make([]byte, 2*need+16)
		}
		if w.dev != nil && len(a.Slots) > 0 && !r.oneIn(4) {
			rows.Place, onDevice = omni.OnDevice, true
			rows.Rows = w.dev.upload(key.sources[:int64(len(a.Slots)-1)*stride+key.bytes])
		} else if s.given[k] = r.oneIn(2); s.given[k] {
			rows.Dst, rows.DstBytes = at(s.buffers[k]), layout*key.bytes
		}
		a.Rows = append(a.Rows, rows)
	}
	if onDevice && r.oneIn(3) {
		a.Event = w.dev.late(a.Rows, (a.Stream+1)%producers)
	}
	if r.oneIn(12) && !refuse {
		w.saveRefused()
	}
	id, err := w.saveOn(r)
	w.say("save %d requests %v counts %v slots %v carried %v given %v: %v", id, s.requests, s.counts, a.Slots, s.carried, s.given, err)
	if !w.judge("save", err, refuse) {
		w.spare = append(w.spare, s)
		return
	}
	for i := range a.Rows { // the next forward overwrites what the step came from
		if a.Rows[i].Place == omni.OnDevice {
			w.dev.forward(a.Rows[i].Rows, a.Stream)
		}
	}
	for k := range w.keys {
		if s.carried[k] {
			fillBytes(w.keys[k].sources, 0xEE)
		}
	}
	s.id, w.announce = id, r.oneIn(8)
	w.m.save(s, a.Slots, firstTag)
	w.steps = append(w.steps, s)
}

// saveOn saves, sometimes while a device call fails. If it fails then, nothing has
// changed, and the very same save works.
func (w *omniWorld) saveOn(r *rng) (uint64, error) {
	w.done.calls++
	if w.dev == nil || !r.oneIn(12) {
		return w.c.Save(&w.args)
	}
	before := w.c.Stats()
	w.dev.failIn = r.in(1, 14)
	id, err := w.c.Save(&w.args)
	w.dev.failIn = 0
	if status.CodeOf(err) != status.Device {
		return id, err
	}
	if after := w.c.Stats(); after.StepsSaved != before.StepsSaved || after.RowsSaved != before.RowsSaved || after.FailedWrites != 0 && !w.failing {
		failf("a save that the device failed left a trace: %+v, before %+v", after, before)
	}
	w.done.calls++
	return w.c.Save(&w.args)
}

// saveRefused makes the save wrong in one way, which must change nothing.
func (w *omniWorld) saveRefused() {
	a := w.args
	a.Slots = append([]int64(nil), a.Slots...)
	a.Rows = append([]omni.KeyRows(nil), a.Rows...)
	a.Requests = append([]uint64(nil), a.Requests...)
	what := ""
	switch n := w.r.n(5); {
	case n == 0 && len(a.Slots) > 0:
		a.Slots[w.r.n(len(a.Slots))], what = w.slots, "a slot that does not exist"
	case n == 1 && len(a.Requests) > 1:
		a.Requests[0], what = a.Requests[1], "a request twice"
	case n == 2 && len(a.Rows) > 0:
		a.Rows, what = append(a.Rows, a.Rows[0]), "a key twice"
	case n == 3 && len(a.Rows) > 0 && len(a.Slots) > 0 && w.dev != nil:
		last := &a.Rows[len(a.Rows)-1]
		last.Place, last.Rows, last.Dst, last.DstBytes, what = omni.OnDevice, at(w.keys[1].sources), nil, 0, "host memory as device memory"
	default:
		a.Slots, what = append(a.Slots, 0), "one slot too many"
	}
	w.done.calls++
	if _, err := w.c.Save(&a); err == nil {
		failf("save with %s succeeded", what)
	}
}

// drawBatch draws the requests of a step, how many rows each has, and their slots.
func (w *omniWorld) drawBatch(s *savedStep) {
	r, a := w.r, &w.args
	for q := range uint64(omniRequests) {
		if len(w.m.hits[q]) > 0 && !r.oneIn(6) || w.m.live[q] && r.oneIn(2) || r.oneIn(20) {
			s.requests = append(s.requests, q)
		}
	}
	for i := len(s.requests) - 1; i > 0; i-- {
		j := r.n(i + 1)
		s.requests[i], s.requests[j] = s.requests[j], s.requests[i]
	}
	if w.taken == nil {
		w.taken = make([]bool, w.slots)
	}
	clear(w.taken)
	a.Slots = a.Slots[:0]
	twice, empty := r.oneIn(6), r.oneIn(16)
	for _, q := range s.requests {
		n := 0
		if !empty {
			n = r.n(w.pace.rows + 1)
		}
		next, count := int64(r.n(int(w.slots))), int64(0)
		for range n {
			if w.taken[next] && !twice {
				next = int64(r.n(int(w.slots)))
			}
			if w.taken[next] && !twice {
				continue
			}
			w.taken[next] = true
			a.Slots = append(a.Slots, next)
			count++
			if next = (next + 1) % w.slots; r.oneIn(4) {
				next = int64(r.n(int(w.slots)))
			}
		}
		s.counts = append(s.counts, count)
		s.rows = append(s.rows, count+int64(len(w.m.hits[q])))
	}
	a.Requests, a.Counts = s.requests, s.counts
}

// consume lets a builder's thread read or discard one of the steps.
func (w *omniWorld) consume(t *thread) {
	i := w.r.n(len(w.steps))
	s := w.steps[i]
	w.steps[i] = w.steps[len(w.steps)-1]
	w.steps = w.steps[:len(w.steps)-1]
	if w.r.oneIn(8) {
		t.start(func() {
			w.done.calls++
			w.say("discard %d", s.id)
			if err := w.c.Discard(s.id); err != nil && !w.freed {
				failf("discard: %v", err)
			}
			w.spare = append(w.spare, s)
		})
		return
	}
	t.start(func() { w.materialize(s) })
}

func (w *omniWorld) materialize(s *savedStep) {
	// All requests of the step, or some in a row; the same for every key.
	first, count := 0, len(s.requests)
	if w.r.oneIn(4) {
		first = w.r.n(count + 1)
		count = w.r.n(count - first + 1)
	}
	before, rows, missing := int64(0), int64(0), false
	for i, n := range s.rows[:first+count] {
		if i < first {
			before += n
		} else {
			rows += n
			missing = missing || s.missing[i]
		}
	}
	s.reads = append(s.reads[:0], omni.Read{Key: omni.NoKey, First: int64(first), Count: int64(count)})
	for k := range w.keys {
		if bytes := w.keys[k].bytes; s.carried[k] {
			s.reads = append(s.reads, omni.Read{Key: w.keys[k].id, First: int64(first), Count: int64(count),
				Dst: at(s.buffers[k][before*bytes:]), DstBytes: rows * bytes})
		}
	}
	refuse := w.failed || w.freed
	w.done.calls++
	err := w.c.Materialize(s.id, s.reads)
	w.say("materialize %d, %d requests from %d: %v", s.id, count, first, err)
	if w.r.oneIn(8) { // the id is used up, whatever became of the call
		w.done.calls++
		if err := w.c.Discard(s.id); err == nil {
			failf("step %d was consumed twice", s.id)
		}
	}
	if missing && !refuse && err != nil && strings.Contains(err.Error(), "absent slots") {
		w.spare = append(w.spare, s)
		return
	}
	if w.judge("materialize", err, refuse) {
		if missing {
			failf("materialize of step %d succeeded, although hidden rows of a hit are missing", s.id)
		}
		for k := range w.keys {
			if !s.carried[k] {
				continue
			}
			n := w.keys[k].bytes
			for i := before; i < before+rows; i++ {
				if row := s.buffers[k][i*n:][:n]; !isRow(row, k, s.want[k][i]) {
					failf("step %d, key %s: row %d of the result is %x, which is not its own (tag %d)", s.id, w.keys[k].name, i, row, s.want[k][i])
				}
			}
		}
	}
	w.spare = append(w.spare, s)
}

// inspect compares slots of a key as they are now with the model.
func (w *omniWorld) inspect(k, from, n int) {
	if w.closing || k == 0 && !w.wants {
		return
	}
	key := &w.keys[k]
	for slot := from; slot < min(from+n, int(w.slots)); slot++ {
		var st [1]omni.SlotState
		var row [16]byte
		w.done.calls++
		if err := w.c.Inspect(key.id, []int64{int64(slot)}, st[:], at(row[:]), key.bytes); err != nil {
			failf("inspect: %v", err)
		}
		tag := w.m.keys[k].rows[slot]
		there := st[0].State == omni.Committed || st[0].State == omni.InTransit
		if w.failing { // what a write that failed leaves behind is in transit for good (O-7)
			there = tag != 0
		}
		if there != (tag != 0) || w.finishing && st[0].State == omni.InTransit {
			failf("key %s, slot %d is %v, the model has tag %d", key.name, slot, st[0].State, tag)
		}
		if st[0].State == omni.Committed && !isRow(row[:key.bytes], k, tag) {
			failf("key %s, slot %d holds %x, which is not its tenant's row (tag %d)", key.name, slot, row[:key.bytes], tag)
		}
	}
}

package omni

import (
	"encoding/binary"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"libprefixcache/core/status"
)

// stepWaiter is a Waiter for one thread: a caller that would park runs onWait
// instead, which plays the other threads. When that has nothing to do either, time
// is taken to have run out.
type stepWaiter struct {
	onWait func(q Queue) bool
	waits  int
	woken  int // callers, while one waits
	asked  int // the committer was woken
	now    int64
}

func (w *stepWaiter) Now() int64 { return w.now }
func (w *stepWaiter) Wake(q Queue) {
	if q == Callers {
		w.woken++
	} else {
		w.asked++
	}
}
func (w *stepWaiter) Wait(mu *sync.Mutex, q Queue, deadline int64) bool {
	w.waits++
	if w.onWait == nil {
		w.now = max(w.now, deadline)
		return false
	}
	mu.Unlock()
	defer mu.Lock() // also when the test ends in there
	ok := w.onWait(q)
	if !ok {
		w.now = max(w.now, deadline)
	}
	return ok
}

// rig is a cache with keys by name and rows made of one number each, so that a
// test reads like the scenario it stands for.
type rig struct {
	t    testing.TB
	c    *Cache
	w    *stepWaiter
	keys map[string]KeyID
	size map[string]int64

	accepted map[uint64]int64 // hits of the coming save
	shapes   map[uint64]shape // of the saved steps
}

// shape is what a test needs to size the results of a step.
type shape struct {
	reqs   []uint64
	counts []int64
	hits   []int64
}

func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, w: &stepWaiter{}, keys: map[string]KeyID{}, size: map[string]int64{}, accepted: map[uint64]int64{}, shapes: map[uint64]shape{}}
	if cfg.NumBlocks == 0 {
		cfg.NumBlocks = 16
	}
	if cfg.BlockSize == 0 {
		cfg.BlockSize = 4
	}
	if cfg.Waiter == nil {
		cfg.Waiter = r.w
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.c = c
	r.w.onWait = func(Queue) bool { return r.commitOne() } // whoever waits, waits for the committer
	t.Cleanup(func() {
		if c.Broken() {
			return // its memory is given up
		}
		if c.fatal == nil {
			r.check()
		}
		c.Shutdown()
		if err := c.Free(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) check() {
	r.t.Helper()
	if err := r.c.Check(); err != nil {
		r.t.Fatal(err)
	}
}

// open opens a key: "h" is hidden, names that begin with d are deferred.
func (r *rig) open(name string) KeyID {
	r.t.Helper()
	if id, ok := r.keys[name]; ok {
		return id
	}
	full, sched, size := name, JoinNextStep, int64(8)
	if name == "h" {
		full = HiddenKey
	}
	if name[0] == 'd' {
		sched = JoinOnFinish
	}
	id, err := r.c.OpenKey(full, size, 7, sched)
	if err != nil {
		r.t.Fatal(err)
	}
	r.keys[name], r.size[name] = id, size
	return id
}

// begin runs StepBegin; a failure ends the test.
func (r *rig) begin(finished []uint64, arrivals ...NewRequest) {
	r.t.Helper()
	if err := r.tryBegin(finished, arrivals...); err != nil {
		r.t.Fatalf("StepBegin: %v", err)
	}
}

func (r *rig) tryBegin(finished []uint64, arrivals ...NewRequest) error {
	acc := make([]bool, len(arrivals))
	err := r.c.StepBegin(finished, arrivals, acc)
	if err == nil {
		clear(r.accepted)
		for i, ok := range acc {
			if ok {
				r.accepted[arrivals[i].Request] = arrivals[i].HitTokens
			}
		}
	}
	return err
}

// chunk is the rows of one request in a step: slots, and for each key the number
// that row i is made of is vals[key] + i.
type chunk struct {
	req   uint64
	slots []int64
}

// span lists the slots [from, to).
func span(from, to int64) (s []int64) {
	for ; from < to; from++ {
		s = append(s, from)
	}
	return s
}

// save saves chunks; rows of key k are vals[k], vals[k]+1, … in batch order. It
// leaves rows in the library. The sources are overwritten afterwards.
func (r *rig) save(vals map[string]uint64, chunks ...chunk) uint64 {
	r.t.Helper()
	step, err := r.trySave(vals, chunks...)
	if err != nil {
		r.t.Fatalf("Save: %v", err)
	}
	return step
}

func (r *rig) trySave(vals map[string]uint64, chunks ...chunk) (uint64, error) {
	r.t.Helper()
	a, src := r.args(vals, chunks...)
	return r.saveArgs(a, src)
}

// saveArgs saves, overwrites the sources, and remembers the shape of the result.
func (r *rig) saveArgs(a *SaveArgs, src [][]byte) (uint64, error) {
	step, err := r.c.Save(a)
	for _, b := range src {
		for i := range b {
			b[i] = 0xEE
		}
	}
	if err == nil {
		sh := shape{reqs: a.Requests, counts: a.Counts}
		for _, q := range a.Requests {
			sh.hits = append(sh.hits, r.accepted[q])
		}
		clear(r.accepted)
		r.shapes[step] = sh
	}
	return step, err
}

func (r *rig) args(vals map[string]uint64, chunks ...chunk) (*SaveArgs, [][]byte) {
	a := &SaveArgs{}
	for _, c := range chunks {
		a.Requests = append(a.Requests, c.req)
		a.Counts = append(a.Counts, int64(len(c.slots)))
		a.Slots = append(a.Slots, c.slots...)
	}
	var src [][]byte
	for name, v := range vals {
		id := r.open(name)
		b := make([]byte, max(8*len(a.Slots), 1))
		for i := range a.Slots {
			binary.LittleEndian.PutUint64(b[8*i:], v+uint64(i))
		}
		src = append(src, b)
		a.Rows = append(a.Rows, KeyRows{Key: id, Rows: unsafe.Pointer(&b[0]), Stride: 8})
	}
	return a, src
}

// read materializes one key of a whole step: for each request the numbers of its
// hit rows and new rows.
func (r *rig) read(step uint64, name string) map[uint64][]uint64 {
	r.t.Helper()
	out, err := r.tryRead(step, name)
	if err != nil {
		r.t.Fatalf("Materialize(%d, %s): %v", step, name, err)
	}
	return out
}

func (r *rig) tryRead(step uint64, name string) (map[uint64][]uint64, error) {
	r.t.Helper()
	sh := r.shapes[step]
	n := int64(0)
	for i := range sh.reqs {
		n += sh.hits[i] + sh.counts[i]
	}
	buf := make([]byte, 8*n+1)
	for i := range buf {
		buf[i] = 0xAA
	}
	err := r.c.Materialize(step, []Read{{Key: r.keys[name], Count: int64(len(sh.reqs)), Dst: unsafe.Pointer(&buf[0]), DstBytes: 8 * n}})
	if err != nil {
		return nil, err
	}
	out, at := map[uint64][]uint64{}, int64(0)
	for i, q := range sh.reqs {
		v := []uint64{}
		for range sh.hits[i] + sh.counts[i] {
			v = append(v, binary.LittleEndian.Uint64(buf[8*at:]))
			at++
		}
		out[q] = v
	}
	if buf[8*n] != 0xAA {
		r.t.Fatal("Materialize wrote past the end")
	}
	return out, nil
}

func (r *rig) discard(step uint64) {
	r.t.Helper()
	if err := r.c.Discard(step); err != nil {
		r.t.Fatal(err)
	}
}

// states of slots for a key.
func (r *rig) states(name string, slots ...int64) []SlotState {
	r.t.Helper()
	out := make([]SlotState, len(slots))
	if err := r.c.Inspect(r.keys[name], slots, out, nil, 0); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// rows of slots for a key as the mirror has them.
func (r *rig) rows(name string, slots ...int64) []uint64 {
	r.t.Helper()
	b := make([]byte, 8*len(slots)+1)
	if err := r.c.Inspect(r.keys[name], slots, nil, unsafe.Pointer(&b[0]), int64(len(b))); err != nil {
		r.t.Fatal(err)
	}
	out := make([]uint64, len(slots))
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return out
}

// commit carries out jobs until there are none.
func (r *rig) commit() (n int) {
	for r.commitOne() {
		n++
	}
	return n
}

func (r *rig) commitOne() bool {
	j, ok := r.c.NextJob()
	if ok {
		r.c.JobDone(&j, r.c.RunHost(&j))
	}
	return ok
}

// hit is an arrival with a hit on whole blocks, and one block of its own.
func hitOn(req uint64, tokens int64, blocks ...int64) NewRequest {
	return NewRequest{Request: req, HitTokens: tokens, Blocks: blocks}
}

func arrive(reqs ...uint64) (out []NewRequest) {
	for _, q := range reqs {
		out = append(out, NewRequest{Request: q})
	}
	return out
}

// seq is from, from+1, … n numbers.
func seq(from uint64, n int) (s []uint64) {
	for i := range n {
		s = append(s, from+uint64(i))
	}
	return s
}

func wantErr(t testing.TB, err error, code status.Code, fragment string) {
	t.Helper()
	if status.CodeOf(err) != code || err == nil || !strings.Contains(err.Error(), fragment) {
		t.Fatalf("error is %v (code %d), want code %d with %q", err, status.CodeOf(err), code, fragment)
	}
}

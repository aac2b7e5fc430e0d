package omnitest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"libprefixcache/core/omni"
	"libprefixcache/core/status"
)

// Device is where a trace has rows that are not on the host. It is also the executor
// of the cache.
type Device interface {
	omni.Executor
	// Stream is the stream that the rows of the next save are produced on.
	Stream() uint64
	// Upload gives device memory that has the bytes of b once Stream's work is done.
	Upload(b []byte) unsafe.Pointer
	// Overwrite is the next forward: on the stream of the last Upload, other bytes.
	Overwrite(p unsafe.Pointer, bytes int64)
	// Break lets one of the next driver calls fail, Mend none.
	Break(rng *rand.Rand)
	Mend()
}

// Trace is one random run of a cache against the model.
type Trace struct {
	Mode   string // "eager", "threaded" (small steps are written inline), "committer" or "shared" (eager, copies by three threads)
	Seed   uint64
	Steps  int
	Device Device // nil: all rows are on the host
}

// tracer drives a cache with random calls, other threads' calls included: whenever
// the cache is between two locked parts, or would park, it may run a call of
// another thread from there. Every result is compared with the model.
type tracer struct {
	t     testing.TB
	dev   Device
	rng   *rand.Rand
	c     *omni.Cache
	m     *model
	cfg   omni.Config
	keys  []traceKey
	steps []*traceStep

	depth    int // calls that are on the stack
	inEngine bool
	ending   bool      // no more calls from Preempt
	job      *omni.Job // taken and not done
	tick     byte
	log      []string
}

type traceKey struct {
	name  string
	bytes int64
	sched omni.Schedule
	id    omni.KeyID
	known bool
}

// traceStep is a step that was saved and is not consumed.
type traceStep struct {
	id     uint64
	reqs   []uint64
	counts []int64
	rows   []int64 // result rows of each request
	bufs   map[string][]byte
	keys   []traceKey
}

// Run drives a cache with random calls and compares every result with the model.
func Run(t testing.TB, trace Trace) {
	rng := rand.New(rand.NewPCG(trace.Seed, 99))
	mode := trace.Mode
	tr := &tracer{t: t, rng: rng, dev: trace.Device}
	blockSize := []int64{1, 3, 4, 16, 64, 70, 130}[rng.IntN(7)]
	tr.cfg = omni.Config{NumBlocks: 4 + rng.Int64N(12), BlockSize: blockSize, StagingDepth: 1 + rng.IntN(4),
		StagingCapacity: 4 * 130, BudgetBytes: 1 + rng.Int64N(20_000), CopyChunkBytes: 1 + rng.Int64N(256)}
	tr.cfg.Threaded = mode != "eager" && mode != "shared"
	if mode == "shared" {
		tr.cfg.CopyThreads, tr.cfg.ShareBytes = 3, 1
	}
	tr.cfg.ZeroOnRelease = trace.Seed%2 == 0 // then Check looks at the memory, too
	if mode == "committer" {
		tr.cfg.InlineBytes = -1
	}
	tr.cfg.Waiter = waiter{tr}
	if tr.dev != nil {
		tr.cfg.Executor = tr.dev
	}
	tr.cfg.Preempt = func() {
		if !tr.ending && tr.depth < 4 && tr.rng.IntN(4) == 0 {
			tr.other(false)
		}
	}
	wants := rng.IntN(5) > 0
	tr.m = newModel(blockSize, wants)
	var err error
	if tr.c, err = omni.New(tr.cfg); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			for _, l := range tr.log[max(0, len(tr.log)-40):] {
				t.Log(l)
			}
		}
	}()
	if err := tr.c.SetPolicy(wants); err != nil {
		t.Fatal(err)
	}
	if wants {
		tr.keys = append(tr.keys, traceKey{name: omni.HiddenKey, bytes: 16, sched: omni.JoinNextStep})
	}
	tr.keys = append(tr.keys, traceKey{name: "a", bytes: 1 + rng.Int64N(40), sched: omni.JoinNextStep},
		traceKey{name: "b", bytes: 8, sched: omni.JoinNextStep},
		traceKey{name: "d", bytes: 1 + rng.Int64N(70), sched: omni.JoinOnFinish},
		traceKey{name: "e", bytes: 4, sched: omni.JoinOnFinish})
	for range trace.Steps {
		tr.engineStep()
		if tr.rng.IntN(3) > 0 {
			tr.other(false)
		}
		if tr.rng.IntN(3) == 0 {
			tr.check()
		}
	}
	tr.finishAll()
}

func (tr *tracer) say(format string, args ...any) {
	tr.log = append(tr.log, fmt.Sprintf(format, args...))
}

// check verifies the structure: half of a trace's time. Traces on the host do so each
// time; what a device adds shows in rows, and in what the simulated driver reports.
func (tr *tracer) check() {
	if tr.dev != nil && !tr.ending && tr.rng.IntN(4) > 0 {
		return
	}
	if err := tr.c.Check(); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *tracer) fill(n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		tr.tick = tr.tick*31 + 7
		b[i] = tr.tick ^ byte(tr.rng.Uint32())
	}
	return b
}

// engineStep is one scheduler output and its save.
func (tr *tracer) engineStep() {
	tr.inEngine = true
	tr.depth++
	defer func() { tr.depth--; tr.inEngine = false }()
	var finished []uint64
	for q := range uint64(8) {
		if tr.rng.IntN(6) == 0 {
			finished = append(finished, q)
		}
	}
	var arrivals []omni.NewRequest
	for range tr.rng.IntN(4) {
		a := omni.NewRequest{Request: tr.rng.Uint64N(8)}
		if tr.rng.IntN(3) > 0 {
			n := 1 + tr.rng.Int64N(3)
			for range n + tr.rng.Int64N(2) {
				a.Blocks = append(a.Blocks, tr.rng.Int64N(tr.cfg.NumBlocks))
			}
			a.HitTokens = n * tr.cfg.BlockSize
		}
		arrivals = append(arrivals, a)
	}
	if tr.rng.IntN(8) == 0 { // refused: nothing may have changed, so the corrected retry is as good as the first
		bad := append(append([]omni.NewRequest(nil), arrivals...), omni.NewRequest{Request: 99, HitTokens: tr.cfg.BlockSize, Blocks: []int64{-1}})
		if err := tr.c.StepBegin(finished, bad, nil); status.CodeOf(err) != status.Unmatch {
			tr.t.Fatalf("block -1: %v", err)
		}
		tr.check()
	}
	got := make([]bool, len(arrivals))
	if err := tr.c.StepBegin(finished, arrivals, got); err != nil {
		tr.t.Fatal(err)
	}
	want := tr.m.begin(finished, arrivals)
	tr.say("begin finished %v arrivals %v accepted %v", finished, arrivals, got)
	if fmt.Sprint(got) != fmt.Sprint(want) && len(want) > 0 {
		tr.t.Fatalf("accepted %v, want %v", got, want)
	}
	if tr.rng.IntN(10) == 0 {
		return // announced, never saved
	}
	tr.save()
	if tr.rng.IntN(10) == 0 {
		tr.save() // no step_begin between: the hits are gone
	}
}

func (tr *tracer) save() {
	st := &traceStep{bufs: map[string][]byte{}}
	a := &omni.SaveArgs{}
	for q := range uint64(8) {
		if tr.m.live[q] && tr.rng.IntN(5) > 0 {
			a.Requests = append(a.Requests, q)
		}
	}
	tr.rng.Shuffle(len(a.Requests), func(i, j int) { a.Requests[i], a.Requests[j] = a.Requests[j], a.Requests[i] })
	slots := tr.cfg.NumBlocks * tr.cfg.BlockSize
	perm := tr.rng.Perm(int(slots))
	twice := tr.rng.IntN(6) == 0
	zero := tr.rng.IntN(12) == 0
	for range a.Requests {
		n := tr.rng.Int64N(2 + tr.rng.Int64N(min(slots, 40)))
		if zero {
			n = 0
		}
		a.Counts = append(a.Counts, n)
		for range n {
			s := tr.rng.Int64N(slots)
			if !twice && len(perm) > 0 {
				s, perm = int64(perm[0]), perm[1:]
			}
			if len(a.Slots) > 0 && tr.rng.IntN(2) == 0 && !twice { // a run, maybe
				if next := a.Slots[len(a.Slots)-1] + 1; next < slots {
					for i, p := range perm {
						if int64(p) == next {
							perm[i] = int(s)
							s = next
							break
						}
					}
				}
			}
			a.Slots = append(a.Slots, s)
		}
	}
	layout := tr.m.layout(a.Requests, a.Counts)
	for i, q := range a.Requests {
		st.rows = append(st.rows, int64(len(tr.m.hits[q]))+a.Counts[i])
	}
	var mk []modelKey
	var srcs [][]byte
	for i := range tr.keys {
		k := &tr.keys[i]
		if tr.rng.IntN(4) == 0 || len(a.Slots) == 0 && tr.m.visible[k.name] == 0 {
			continue
		}
		if !k.known {
			id, err := tr.c.OpenKey(k.name, k.bytes+1, 3, k.sched) // another width first: still invisible
			if err == nil {
				k.id, err = tr.c.OpenKey(k.name, k.bytes, 3, k.sched)
			}
			if err != nil || k.id != id {
				tr.t.Fatal(err)
			}
			k.known = true
		}
		stride := k.bytes + tr.rng.Int64N(3)
		src := tr.fill(stride*int64(len(a.Slots)) + 1)
		r := omni.KeyRows{Key: k.id, Rows: unsafe.Pointer(&src[0]), Stride: stride}
		onDevice := tr.dev != nil && len(a.Slots) > 0 && tr.rng.IntN(4) > 0
		if onDevice {
			r.Place, r.Rows, a.Stream = omni.OnDevice, tr.dev.Upload(src), tr.dev.Stream()
		} else if tr.rng.IntN(2) == 0 {
			buf := tr.fill(layout*k.bytes + 1)
			r.Dst, r.DstBytes = unsafe.Pointer(&buf[0]), layout*k.bytes
			st.bufs[k.name] = buf
		}
		a.Rows = append(a.Rows, r)
		st.keys = append(st.keys, *k)
		srcs = append(srcs, src)
		one := modelKey{name: k.name, bytes: k.bytes}
		for i := range a.Slots {
			one.rows = append(one.rows, string(src[int64(i)*stride:int64(i)*stride+k.bytes]))
		}
		mk = append(mk, one)
	}
	if tr.rng.IntN(10) == 0 && len(a.Slots) > 0 { // refused, no trace
		bad := *a
		bad.Slots = append([]int64(nil), a.Slots...)
		bad.Slots[tr.rng.IntN(len(bad.Slots))] = slots
		if _, err := tr.c.Save(&bad); status.CodeOf(err) != status.Unmatch {
			tr.t.Fatalf("slot %d: %v", slots, err)
		}
	}
	save := tr.c.Save
	if tr.dev != nil && tr.rng.IntN(8) == 0 {
		save = tr.saveBroken
	}
	id, err := save(a)
	if err != nil && tr.depth > 1 && (status.CodeOf(err) == status.StagingTimeout || strings.Contains(err.Error(), "did not reach done")) {
		// What it waits for is further down the stack and cannot go on. Then the
		// save must have left no trace; the next one that succeeds has the hits.
		tr.check()
		return
	}
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.say("save %d reqs %v counts %v slots %v keys %v", id, a.Requests, a.Counts, a.Slots, st.keys)
	for i, s := range srcs {
		if a.Rows[i].Place == omni.OnDevice {
			tr.dev.Overwrite(a.Rows[i].Rows, int64(len(s)))
		}
		for i := range s {
			s[i] = 0xEE
		}
	}
	st.id, st.reqs, st.counts = id, a.Requests, a.Counts
	tr.m.save(id, a.Requests, a.Counts, a.Slots, mk)
	tr.steps = append(tr.steps, st)
}

// saveBroken tries to save while a driver call fails. If that call is one of the
// save's, nothing may have changed, and the very same save works afterwards. If it
// is not, the step is saved.
func (tr *tracer) saveBroken(a *omni.SaveArgs) (id uint64, err error) {
	if tr.rng.IntN(3) == 0 {
		bad := *a
		bad.Rows = append([]omni.KeyRows(nil), a.Rows...)
		for i := range bad.Rows {
			if r := &bad.Rows[i]; r.Place == omni.OnDevice { // a host pointer where device memory is expected
				b := make([]byte, 1)
				r.Rows = unsafe.Pointer(&b[0])
				if _, err := tr.c.Save(&bad); status.CodeOf(err) != status.InvalidArgument {
					tr.t.Fatalf("host memory as device memory: %v", err)
				}
				tr.check()
				break
			}
		}
	}
	before := tr.c.Stats()
	tr.dev.Break(tr.rng)
	id, err = tr.c.Save(a)
	tr.dev.Mend()
	if status.CodeOf(err) != status.Device {
		return id, err
	}
	tr.say("save failed: %v", err)
	tr.check()
	after := tr.c.Stats()
	if after.StepsSaved != before.StepsSaved || after.RowsSaved != before.RowsSaved || after.FailedWrites != 0 {
		tr.t.Fatalf("a failed save left something: %+v, before %+v", after, before)
	}
	return tr.c.Save(a)
}

// other runs one call of another thread; must: because somebody waits for it.
func (tr *tracer) other(must bool) bool {
	tr.depth++
	defer func() { tr.depth-- }()
	for range 400 { // when it must, until something is found
		switch tr.rng.IntN(4) {
		case 0, 1:
			if len(tr.steps) > 0 {
				i := tr.rng.IntN(len(tr.steps))
				st := tr.steps[i]
				tr.steps = append(tr.steps[:i], tr.steps[i+1:]...)
				tr.consume(st)
				return true
			}
		case 2:
			if tr.committer() {
				return true
			}
		case 3:
			if !tr.inEngine && tr.depth < 4 && !must {
				tr.engineStep()
				return true
			}
		}
		if !must {
			return false
		}
	}
	return false
}

// committer takes a job, or finishes the one it took some calls ago.
func (tr *tracer) committer() bool {
	if !tr.cfg.Threaded {
		return false
	}
	if tr.job == nil {
		j, ok := tr.c.NextJob()
		if !ok {
			return false
		}
		tr.say("take %v %d%d", j.Kind, j.Step, j.Write)
		tr.job = &j
		if tr.rng.IntN(2) == 0 {
			return true
		}
	}
	j := tr.job
	if j.ID == 0 {
		return false // running, further down the stack
	}
	tr.job = &omni.Job{}
	err := tr.c.Run(j)
	tr.c.JobDone(j, err)
	tr.say("done %v %d%d", j.Kind, j.Step, j.Write)
	tr.job = nil
	return true
}

func (tr *tracer) consume(st *traceStep) {
	want, missing := tr.m.steps[st.id], tr.m.missing[st.id]
	delete(tr.m.steps, st.id)
	delete(tr.m.missing, st.id)
	if tr.rng.IntN(8) == 0 {
		tr.say("discard %d", st.id)
		if err := tr.c.Discard(st.id); err != nil {
			tr.t.Fatal(err)
		}
		return
	}
	// A random range of requests, the same for every key.
	first := tr.rng.IntN(len(st.reqs) + 1)
	count := tr.rng.IntN(len(st.reqs) - first + 1)
	if tr.rng.IntN(3) > 0 {
		first, count = 0, len(st.reqs)
	}
	var before, rows int64
	fails := false
	for i := range st.reqs {
		switch {
		case i < first:
			before += st.rows[i]
		case i < first+count:
			rows += st.rows[i]
			fails = fails || missing[st.reqs[i]]
		}
	}
	reads := []omni.Read{{Key: omni.NoKey, First: int64(first), Count: int64(count)}}
	var outs [][]byte
	for _, k := range st.keys {
		buf := st.bufs[k.name]
		if buf == nil {
			buf = tr.fill((before+rows)*k.bytes + 1)
		}
		reads = append(reads, omni.Read{Key: k.id, First: int64(first), Count: int64(count),
			Dst: unsafe.Pointer(&buf[before*k.bytes]), DstBytes: rows * k.bytes})
		outs = append(outs, buf)
	}
	tr.say("materialize %d requests %d+%d", st.id, first, count)
	err := tr.c.Materialize(st.id, reads)
	if err != nil && tr.depth > 1 && tr.job != nil && strings.Contains(err.Error(), "did not reach done") {
		return // the job it waits for is further down the stack
	}
	if fails {
		wantErr(tr.t, err, status.Unmatch, "absent slots")
		return
	}
	if err != nil {
		tr.t.Fatal(err)
	}
	for i, k := range st.keys {
		for r := before; r < before+rows; r++ {
			if got := string(outs[i][r*k.bytes : (r+1)*k.bytes]); got != want[k.name][r] {
				tr.t.Fatalf("step %d key %s row %d of result is %x, want %x", st.id, k.name, r, got, want[k.name][r])
			}
		}
	}
}

// finishAll drains everything; the mirror must then be the model's.
func (tr *tracer) finishAll() {
	tr.ending = true
	for len(tr.steps) > 0 {
		st := tr.steps[0]
		tr.steps = tr.steps[1:]
		tr.consume(st)
	}
	var all []uint64
	for q := range uint64(8) {
		all = append(all, q)
	}
	if err := tr.c.StepBegin(all, nil, nil); err != nil {
		tr.t.Fatal(err)
	}
	for tr.committer() {
	}
	tr.check()
	s := tr.c.Stats()
	if s.LiveRequests != 0 || s.UnconsumedSteps != 0 || s.PendingWrites != 0 || s.PendingReads != 0 || s.StagedBytes != 0 {
		tr.t.Fatalf("something is left: %+v", s)
	}
	for _, k := range tr.keys {
		if tr.m.visible[k.name] == 0 {
			continue
		}
		for slot := range tr.cfg.NumBlocks * tr.cfg.BlockSize {
			var st [1]omni.SlotState
			row := make([]byte, k.bytes)
			if err := tr.c.Inspect(k.id, []int64{slot}, st[:], unsafe.Pointer(&row[0]), k.bytes); err != nil {
				tr.t.Fatal(err)
			}
			want, ok := tr.m.rows[k.name][slot]
			if ok != (st[0].State == omni.Committed) || ok && string(row) != want {
				tr.t.Fatalf("key %s slot %d is %v with %x, want %v %x", k.name, slot, st[0].State, row, ok, want)
			}
		}
	}
	tr.c.Shutdown()
	if err := tr.c.Free(); err != nil {
		tr.t.Fatal(err)
	}
}

// waiter is the clock and the scheduler of a trace: whoever would park lets another
// thread's call run. When there is none, time is taken to have run out.
type waiter struct{ tr *tracer }

func (w waiter) Now() int64      { return 0 }
func (w waiter) Wake(omni.Queue) {}

func (w waiter) Wait(mu *sync.Mutex, _ omni.Queue, _ int64) bool {
	mu.Unlock()
	defer mu.Lock() // also when the test ends in there
	return w.tr.other(true)
}

func wantErr(t testing.TB, err error, code status.Code, fragment string) {
	t.Helper()
	if status.CodeOf(err) != code || err == nil || !strings.Contains(err.Error(), fragment) {
		t.Fatalf("error is %v (code %d), want code %d with %q", err, status.CodeOf(err), code, fragment)
	}
}

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
	if err != nil && tr.depth > 1 && strings.Contains(err.Error(), "did not reach done") {
		return // the write it waits for is further down the stack
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

package simulation

import (
	"libprefixcache/core/omni"
)

// omniWorld is one omni cache, the threads of its host, its device and its model.
type omniWorld struct {
	r    *rng // choices of the present operation
	cfg  omni.Config
	c    *omni.Cache
	m    omniModel
	dev  *simDevice // nil: all rows are on the host
	now  int64      // nanoseconds
	log  func(format string, args ...any)
	done counts

	threads                   []*thread
	engine, committer, closer *thread
	builders                  []*thread
	running                   *thread // whose code runs now; nil: the scheduler's

	keys  []simKey
	wants bool // the policy wants hidden rows
	slots int64

	steps []*savedStep // saved and not consumed
	spare []*savedStep

	// What has gone wrong so far, which says what calls may answer.
	failing, failed bool // a write failure was planted; some call reported it
	jobFault        int  // the next job fails: 1 before, 2 after its copies
	closing, closed bool
	freed           bool
	jobRuns         bool
	finishing       bool

	pace     omniPace
	announce bool // StepBegin since the last save

	engineScratch
}

// omniPace is what a run is like: drawn once, so that the runs of a seed range differ
// in kind and not only in luck.
type omniPace struct {
	engine, builder, committer, device int // how likely each is to go on
	preempt                            int // one in so many places where a thread may be interrupted
	hang                               bool
	fault                              bool
	close                              bool
	rows                               int // at most, of a request in a step
}

type simKey struct {
	name     string
	bytes    int64
	schedule omni.Schedule
	id       omni.KeyID
	sources  []byte
}

const omniRequests = 8

func newOmniWorld(r *rng) world {
	w := &omniWorld{r: r}
	blockSize := []int64{1, 2, 3, 4, 4, 8, 16, 66}[r.n(8)]
	blocks := int64(2 + r.n(4))
	if blockSize <= 4 {
		blocks += int64(r.n(8))
	}
	w.slots = blockSize * blocks
	w.cfg = omni.Config{NumBlocks: blocks, BlockSize: blockSize, StagingDepth: r.in(1, 4), StagingCapacity: 64,
		BudgetBytes: int64(r.in(1, 600)), CopyChunkBytes: int64(r.in(1, 64)), Timeout: 1_000_000, InlineBytes: -1}
	w.cfg.Threaded = !r.oneIn(3)
	if r.oneIn(3) {
		w.cfg.InlineBytes = int64(r.in(1, 200)) // small steps are written by the thread that saves
	}
	if r.oneIn(12) {
		w.cfg.Timeout = -1
	}
	w.cfg.ZeroOnRelease = r.oneIn(4) // the checker looks for what should be gone
	w.cfg.Waiter, w.cfg.Preempt = simWaiter{w}, w.preempt
	if r.oneIn(2) {
		w.dev = newSimDevice(w, w.cfg.StagingDepth)
		w.cfg.Executor = w.dev
	}
	w.pace = omniPace{engine: r.in(1, 6), builder: r.in(1, 6), committer: r.in(1, 6), device: r.in(1, 6), preempt: r.in(1, 6),
		hang: r.oneIn(4), fault: r.oneIn(8), close: r.oneIn(8), rows: r.in(1, 6)}
	var err error
	if w.c, err = omni.New(w.cfg); err != nil {
		failf("New: %v", err)
	}
	w.wants = !r.oneIn(4)
	if err := w.c.SetPolicy(w.wants); err != nil {
		failf("SetPolicy: %v", err)
	}
	width := func() int64 { return []int64{2, 3, 4, 4, 8, 8, 12, 16}[r.n(8)] }
	w.keys = []simKey{{name: omni.HiddenKey, bytes: 4}, {name: "a", bytes: width()}, {name: "b", bytes: width()},
		{name: "d", bytes: width(), schedule: omni.JoinOnFinish}, {name: "e", bytes: width(), schedule: omni.JoinOnFinish}}
	w.m = omniModel{blockSize: blockSize, keys: make([]modelKey, len(w.keys))}
	for i := range w.keys {
		if i == 0 && !w.wants {
			continue
		}
		w.open(i, r.oneIn(4))
	}
	w.engine, w.closer = newThread(w, "engine"), newThread(w, "closer")
	w.builders = []*thread{newThread(w, "builder 1"), newThread(w, "builder 2")}
	w.threads = append([]*thread{w.engine, w.closer}, w.builders...)
	if w.cfg.Threaded {
		w.committer = newThread(w, "committer")
		w.threads = append(w.threads, w.committer)
		w.committer.start(w.commit)
	}
	return w
}

// open opens a key; first with another width, which is fine while no save carried it.
func (w *omniWorld) open(i int, twice bool) {
	k := &w.keys[i]
	var err error
	if twice {
		_, err = w.c.OpenKey(k.name, k.bytes+1, 1, k.schedule)
	}
	if err == nil {
		k.id, err = w.c.OpenKey(k.name, k.bytes, 1, k.schedule)
	}
	if err != nil {
		failf("OpenKey %s: %v", k.name, err)
	}
	k.sources = make([]byte, 64*(k.bytes+2))
	w.m.keys[i].rows = make([]uint32, w.slots)
}

func (w *omniWorld) trace(say func(string, ...any)) {
	w.log = say
	say("%d blocks of %d, threaded %v, inline below %d bytes, depth %d, budget %d, timeout %d, device %v, zero %v, pace %+v", w.cfg.NumBlocks, w.cfg.BlockSize,
		w.cfg.Threaded, w.cfg.InlineBytes, w.cfg.StagingDepth, w.cfg.BudgetBytes, w.cfg.Timeout, w.dev != nil, w.cfg.ZeroOnRelease, w.pace)
}

func (w *omniWorld) say(format string, args ...any) {
	if w.log == nil {
		return
	}
	if w.running != nil {
		format = w.running.name + ": " + format
	}
	w.log(format, args...)
}

func (w *omniWorld) counts() counts { return w.done }
func (w *omniWorld) check() error   { return w.c.Check() }

// preempt is called by the cache wherever another thread may run.
func (w *omniWorld) preempt() {
	if t := w.running; t != nil && w.r.oneIn(w.pace.preempt) {
		t.pause(ready)
	}
}

// The actors among which the scheduler chooses.
const (
	actEngine = iota
	actBuilder1
	actBuilder2
	actCommitter
	actDevice
	actCloser
	actClock
	actFault
	actClose
	actInspect
	actors
)

// step lets one actor do one thing.
func (w *omniWorld) step(r *rng) {
	w.r = r
	w.done.operations++
	w.now += int64(r.n(200))
	var can [actors]int
	w.canGoOn(&can)
	if w.engine.state == idle && !w.finishing {
		can[actEngine] = w.pace.engine
		can[actInspect] = 1
		if w.failed || w.closed { // nothing is left to be seen but that it refuses
			can[actEngine] = 1
		}
	}
	for i, b := range w.builders {
		if b.state == idle && len(w.steps) > 0 {
			can[actBuilder1+i] = w.pace.builder
		}
	}
	if !w.finishing {
		if w.pace.hang && r.oneIn(64) && w.nextDeadline() < omni.NoDeadline {
			can[actClock] = 40
		}
		if w.pace.fault && !w.failing && r.oneIn(200) {
			can[actFault] = 40
		}
		if w.pace.close && !w.closing && r.oneIn(300) {
			can[actClose] = 40
		}
	}
	switch a := r.pick(can[:]); a {
	case actEngine, actBuilder1, actBuilder2, actCommitter, actCloser:
		t := w.actor(a)
		switch {
		case t.state != idle:
			t.resume()
		case a == actEngine:
			w.engineCall()
		default:
			w.consume(t)
		}
	case actDevice:
		for i := range r.in(1, producers+1) { // a random one that can
			if s := (i + r.n(producers+1)) % (producers + 1); w.dev.can(s) {
				w.dev.advance(s)
				break
			}
		}
	case actClock:
		w.say("time passes: nobody else got a turn")
		w.now = max(w.now, w.nextDeadline())
	case actFault:
		w.plantFault()
	case actClose:
		w.closing = true
		w.say("shutdown")
		w.closer.start(w.shutdown)
	case actInspect:
		w.inspect(r.n(len(w.keys)), r.n(int(w.slots)), 1+r.n(4))
		if w.jobRuns {
			if _, ok := w.c.NextJob(); ok {
				failf("two jobs run at once (O-33)")
			}
		}
	case -1:
		w.stuck()
	}
}

func (w *omniWorld) actor(a int) *thread {
	switch a {
	case actEngine:
		return w.engine
	case actCommitter:
		return w.committer
	case actCloser:
		return w.closer
	}
	return w.builders[a-actBuilder1]
}

// canGoOn weighs everybody who is in the middle of something and can go on.
func (w *omniWorld) canGoOn(can *[actors]int) {
	weigh := func(a int, t *thread, weight int) {
		if t != nil && t.runnable() {
			can[a] = weight
		}
	}
	weigh(actEngine, w.engine, w.pace.engine)
	weigh(actCommitter, w.committer, w.pace.committer)
	weigh(actCloser, w.closer, 3)
	for i, b := range w.builders {
		weigh(actBuilder1+i, b, w.pace.builder)
	}
	if w.dev != nil && (w.dev.can(0) || w.dev.can(1) || w.dev.can(copyStream)) {
		can[actDevice] = w.pace.device
	}
}

// stuck: nobody can go on and nothing can be begun. Then everybody rests, or somebody
// sleeps whom nobody is left to wake.
func (w *omniWorld) stuck() {
	for _, t := range w.threads {
		if t.state == waits || t.state == parked && t.deadline < omni.NoDeadline {
			failf("%s sleeps, and nobody is left to wake it", t.name)
		}
	}
}

// plantFault makes a write fail soon: one that a saving thread carries out, or a job
// of the committer's, which then fails before or after its copies.
func (w *omniWorld) plantFault() {
	w.failing = true
	if w.jobFault = w.r.n(3); w.jobFault == 0 || !w.cfg.Threaded {
		w.jobFault = 0
		w.c.FailWrite(uint64(w.r.in(1, 2)))
	}
	w.say("a write will fail")
}

// shutdown is the closer's thread. It frees at once, too, which is refused while
// somebody still uses the cache.
func (w *omniWorld) shutdown() {
	w.done.calls++
	w.c.Shutdown()
	w.closed = true
	if w.dev != nil && w.dev.busy() || w.r.oneIn(2) {
		return // its copies have to be waited for before
	}
	used := w.inCall()
	w.freed = !used // others may run before it returns
	err := w.c.Free()
	w.say("free: %v", err)
	if used != (err != nil) {
		failf("free after a shutdown: %v, a call is under way: %v", err, used)
	}
}

// inCall reports whether a thread, other than the closer, is in the middle of a call
// that uses memory of the cache.
func (w *omniWorld) inCall() bool {
	used := w.engine.state != idle || w.jobRuns
	for _, b := range w.builders {
		used = used || b.state != idle
	}
	return used
}

// commit is the committer's thread: what gpu.Committer does.
func (w *omniWorld) commit() {
	for {
		w.done.calls++
		j, ok := w.c.AwaitJob()
		if !ok {
			return
		}
		w.jobRuns = true
		w.say("takes %v %d", j.Kind, j.Step+j.Write)
		w.preempt()
		fault := w.jobFault
		w.jobFault = 0
		var err error
		if fault != 1 {
			err = w.c.Run(&j)
		}
		if fault != 0 {
			err = errDevice
		}
		w.preempt()
		w.done.calls++
		w.say("has done %v %d: %v", j.Kind, j.Step+j.Write, err)
		w.c.JobDone(&j, err)
		w.jobRuns = false
		if w.r.oneIn(8) {
			w.c.JobDone(&j, nil) // a second report means nothing
		}
		w.preempt()
	}
}

// finish lets everybody come to rest, looks at every row, and takes the cache apart.
func (w *omniWorld) finish(r *rng) {
	w.r, w.finishing = r, true
	w.rest()
	if !w.failing && !w.closing {
		w.engine.start(func() { w.begin([]uint64{0, 1, 2, 3, 4, 5, 6, 7}, nil) })
		w.rest()
		if err := w.c.Check(); err != nil {
			failf("%v", err)
		}
		s := w.c.Stats()
		if s.LiveRequests != 0 || s.UnconsumedSteps != 0 || s.PendingWrites != 0 || s.PendingReads != 0 || s.StagedBytes != 0 {
			failf("something is left when everything has ended: %+v", s)
		}
		for k := range w.keys {
			w.inspect(k, 0, int(w.slots))
		}
	}
	if !w.closing {
		w.closing = true
		w.closer.start(w.shutdown)
	}
	w.rest()
	for _, t := range w.threads {
		if t.state != idle {
			failf("%s did not end with the cache", t.name)
		}
	}
	if w.dev != nil {
		w.dev.settle() // as an embedder does before it frees
	}
	if err := w.c.Free(); err != nil {
		failf("Free: %v", err)
	}
	for page := 0; w.dev != nil && page < len(w.dev.pinned); page++ {
		if w.dev.pinned[page] != nil {
			failf("page %d is pinned when the cache is gone", page)
		}
	}
}

// rest runs until nobody can go on.
func (w *omniWorld) rest() {
	for range 100_000 {
		var can [actors]int
		w.canGoOn(&can)
		rest := len(w.steps) == 0
		for _, n := range can {
			rest = rest && n == 0
		}
		for _, t := range w.threads { // asleep until the clock reaches its deadline
			rest = rest && (t.state != parked || t.deadline == omni.NoDeadline)
		}
		if rest {
			w.stuck()
			return
		}
		r := rng{w.r.next()}
		was := w.r
		w.step(&r)
		w.r = was
	}
	failf("the threads do not come to rest")
}

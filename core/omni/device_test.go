package omni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"libprefixcache/core/status"
)

// fakeDevice carries commands out on host memory, as late as it may: frozen rows land
// when somebody waits for them. It keeps what it was asked for.
type fakeDevice struct {
	log    []string
	frozen []byte
	lands  map[int]func() // by page
	pins   map[int]int64
	failOn CommandKind
	failed int
}

var errFake = errors.New("CUDA_ERROR_FAKE")

func (d *fakeDevice) Execute(list []Command) error {
	for _, c := range list {
		if c.Kind == d.failOn {
			d.failed++
			return status.New(status.Device, "%v: %v", c.Kind, errFake)
		}
		d.log = append(d.log, fmt.Sprintf("%v %d %d %d %d", c.Kind, c.Page, c.Offset, c.Bytes, c.Rows))
		switch c.Kind {
		case PinPage:
			d.pins[c.Page] = c.Bytes
		case UnpinPage:
			delete(d.pins, c.Page)
		case ReserveFrozen:
			if int64(len(d.frozen)) < c.Bytes {
				d.frozen = make([]byte, c.Bytes)
			}
		case FreezeRows:
			for i := range c.Rows {
				p := c.Src + uintptr(i*c.Stride)
				src := unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), c.RowBytes)
				copy(d.frozen[c.Offset+i*c.RowBytes:], src)
			}
		case LandPage:
			to := unsafe.Slice((*byte)(c.Host), c.Bytes)
			for i := range to {
				to[i] = 0xDB
			}
			d.lands[c.Page] = func() { copy(to, d.frozen) }
		case AwaitLanded:
			if land := d.lands[c.Page]; land != nil {
				land()
				delete(d.lands, c.Page)
			}
		}
	}
	return nil
}

func newDeviceRig(t testing.TB, cfg Config) (*rig, *fakeDevice) {
	d := &fakeDevice{lands: map[int]func(){}, pins: map[int]int64{}}
	cfg.Executor = d
	r := newRig(t, cfg)
	r.w.onWait = func(Queue) bool { return r.runOne() }
	return r, d
}

func (r *rig) runOne() bool {
	j, ok := r.c.NextJob()
	if ok {
		r.c.JobDone(&j, r.c.Run(&j))
	}
	return ok
}

// saveOn is trySave with the rows of every key on the device.
func (r *rig) saveOn(vals map[string]uint64, chunks ...chunk) (uint64, error) {
	a, src := r.args(vals, chunks...)
	for i := range a.Rows {
		a.Rows[i].Place = OnDevice
	}
	a.Stream = 7
	return r.saveArgs(a, src)
}

func (d *fakeDevice) take() []string {
	l := d.log
	d.log = nil
	return l
}

// wantList compares what was asked of the device since the last time.
func (d *fakeDevice) wantList(t *testing.T, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, d.take()); diff != "" {
		t.Fatalf("the commands are not the expected ones (-want +got):\n%s", diff)
	}
}

// what a save asks of the device, in this order and no more, however many
// requests there are: check, freeze, event, landing.
func TestR01_DeviceCommandsOfASave(t *testing.T) {
	for _, batch := range []int{1, 5} {
		r, d := newDeviceRig(t, Config{Threaded: true})
		var chunks []chunk
		for i := range batch {
			chunks = append(chunks, chunk{uint64(i), span(int64(4*i), int64(4*i+2))})
		}
		n := 2 * batch
		if _, err := r.saveOn(map[string]uint64{"h": 10}, chunks...); err != nil {
			t.Fatal(err)
		}
		want := []string{
			fmt.Sprintf("CHECK_ROWS 0 0 0 %d", n),
			"PIN_PAGE 0 0 65536 0",
			fmt.Sprintf("RESERVE_FROZEN 0 0 %d 0", 8*n),
			fmt.Sprintf("FREEZE_ROWS 0 0 0 %d", n),
			"RECORD_FROZEN 0 0 0 0",
			"WAIT_FROZEN 0 0 0 0",
			fmt.Sprintf("LAND_PAGE 0 0 %d 0", 8*n),
			"RECORD_LANDED 0 0 0 0",
		}
		d.wantList(t, want)
		r.runOne()
		d.wantList(t, []string{"AWAIT_LANDED 0 0 0 0"})
		r.discard(1)
		// The second step finds everything in place.
		if _, err := r.saveOn(map[string]uint64{"h": 10}, chunks...); err != nil {
			t.Fatal(err)
		}
		d.wantList(t, append(want[:1:1], want[2:]...))
		r.discard(2)
	}
}

// Rows stay what they were at the save, whoever overwrites the source, whether
// they are read before or after the job, and a deferred key serves a hit from its
// rows in transit.
// An event behind which the rows are ready: their stream waits for it before they are
// frozen, and the device sees it with the addresses before anything else.
func TestR01_RowsBehindAnEvent(t *testing.T) {
	hook := &eventHook{fakeDevice: &fakeDevice{lands: map[int]func(){}, pins: map[int]int64{}}}
	r := newRig(t, Config{Threaded: true, Executor: hook})
	a, src := r.args(map[string]uint64{"h": 10}, chunk{1, span(0, 4)})
	a.Rows[0].Place, a.Stream, a.Event = OnDevice, 7, 9
	if _, err := r.saveArgs(a, src); err != nil {
		t.Fatal(err)
	}
	want := []string{"CHECK_ROWS 7 9", "RESERVE_FROZEN 7 0", "AWAIT_READY 7 9", "FREEZE_ROWS 7 0", "RECORD_FROZEN 7 0"}
	if diff := cmp.Diff(want, hook.ordered); diff != "" {
		t.Fatalf("on the stream (-want +got):\n%s", diff)
	}
	r.discard(1)
}

// eventHook notes streams and events.
type eventHook struct {
	*fakeDevice
	ordered []string
}

func (h *eventHook) Execute(list []Command) error {
	for _, c := range list {
		if c.Stream != 0 {
			h.ordered = append(h.ordered, fmt.Sprintf("%v %d %d", c.Kind, c.Stream, c.Event))
		}
	}
	return h.fakeDevice.Execute(list)
}

func TestR01_R03_DeviceRowsOfAStep(t *testing.T) {
	for _, jobFirst := range []bool{false, true} {
		r, _ := newDeviceRig(t, Config{Threaded: true})
		r.begin(nil, arrive(1)...)
		step, err := r.saveOn(map[string]uint64{"h": 100, "d": 200}, chunk{1, span(0, 4)})
		if err != nil {
			t.Fatal(err)
		}
		if jobFirst {
			r.runOne()
		}
		if got := r.read(step, "d")[1]; !reflect.DeepEqual(got, seq(200, 4)) {
			t.Fatalf("d: %v", got)
		}
		// A same-step hit: request 3 reads what request 2 computes in this step.
		r.begin(nil, hitOn(3, 4, 2), hitOn(4, 4, 0))
		r.accepted[3], r.accepted[4] = 4, 4
		step, err = r.saveOn(map[string]uint64{"h": 300, "d": 400}, chunk{2, span(8, 12)}, chunk{3, span(12, 13)}, chunk{4, span(16, 17)})
		if err != nil {
			t.Fatal(err)
		}
		got := r.read(step, "d")
		if !reflect.DeepEqual(got[3], append(seq(400, 4), 404)) || !reflect.DeepEqual(got[4], append(seq(200, 4), 405)) {
			t.Fatalf("hits on deferred rows: %v", got)
		}
		r.begin([]uint64{1, 2, 3, 4})
		for r.runOne() {
		}
		if got := r.rows("d", span(8, 12)...); !reflect.DeepEqual(got, seq(400, 4)) {
			t.Fatalf("d in the mirror: %v", got)
		}
		if got := r.rows("h", span(0, 4)...); !reflect.DeepEqual(got, seq(100, 4)) {
			t.Fatalf("h in the mirror: %v", got)
		}
	}
}

// Materialize waits for its own page and for nothing else; a step that is written is
// not waited for at all.
func TestO24_MaterializeWaitsOnlyForItsPage(t *testing.T) {
	r, d := newDeviceRig(t, Config{Threaded: true})
	first := r.mustSaveOn(map[string]uint64{"h": 1}, chunk{1, span(0, 2)})
	r.runOne()
	second := r.mustSaveOn(map[string]uint64{"h": 5}, chunk{1, span(2, 4)})
	d.take()
	r.read(first, "h")
	if got := d.take(); len(got) != 0 {
		t.Fatalf("a written step: %q", got)
	}
	if got := r.read(second, "h")[1]; !reflect.DeepEqual(got, seq(5, 2)) {
		t.Fatalf("rows %v", got)
	}
	if got := d.take(); !reflect.DeepEqual(got, []string{"AWAIT_LANDED 1 0 0 0"}) {
		t.Fatalf("a step on its way: %q", got)
	}
	third := r.mustSaveOn(map[string]uint64{"h": 5}, chunk{1, span(4, 6)})
	d.take()
	if err := r.c.Materialize(third, nil); err != nil {
		t.Fatal(err)
	}
	if got := d.take(); len(got) != 0 {
		t.Fatalf("nothing was asked for: %q", got)
	}
}

func (r *rig) mustSaveOn(vals map[string]uint64, chunks ...chunk) uint64 {
	r.t.Helper()
	step, err := r.saveOn(vals, chunks...)
	if err != nil {
		r.t.Fatal(err)
	}
	return step
}

// Whatever command of a save fails: no step, no page, no budget (R-15, S-3, S-4), and
// the same save works afterwards.
func TestR15_AFailedCommandLeavesNoTrace(t *testing.T) {
	for _, kind := range []CommandKind{CheckRows, PinPage, ReserveFrozen, FreezeRows, RecordFrozen, WaitFrozen, LandPage, RecordLanded} {
		t.Run(kind.String(), func(t *testing.T) {
			r, d := newDeviceRig(t, Config{Threaded: true, StagingDepth: 1, BudgetBytes: 64})
			d.failOn = kind
			r.begin(nil, arrive(1)...)
			for range 3 {
				_, err := r.saveOn(map[string]uint64{"h": 1, "d": 2}, chunk{1, span(0, 2)})
				wantErr(t, err, status.Device, "CUDA_ERROR_FAKE")
				if s := r.c.Stats(); s.StepsSaved != 0 || s.StagedBytes != 0 || s.UnconsumedSteps != 0 || s.PendingWrites != 0 || s.Keys != 0 {
					t.Fatalf("left: %+v", s)
				}
				r.check()
			}
			d.failOn = 0
			step := r.mustSaveOn(map[string]uint64{"h": 1, "d": 2}, chunk{1, span(0, 2)})
			if step != 1 {
				t.Fatalf("step %d", step)
			}
			if got := r.read(step, "h")[1]; !reflect.DeepEqual(got, seq(1, 2)) {
				t.Fatalf("rows %v", got)
			}
		})
	}
}

// A landing that fails after the save is a failed write: sticky, with its cause, for
// the waiter and for everybody after (R-10, O-42); page and bytes come back.
func TestR09_R10_AFailedLandingIsSticky(t *testing.T) {
	for _, eager := range []bool{false, true} {
		r, d := newDeviceRig(t, Config{Threaded: !eager, StagingDepth: 1})
		r.begin(nil, arrive(1)...)
		d.failOn = AwaitLanded
		step, err := r.saveOn(map[string]uint64{"h": 1}, chunk{1, span(0, 2)})
		if eager {
			wantErr(t, err, status.Unmatch, "write failed")
		} else {
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.tryRead(step, "h") // its own wait fails, whatever became of the job
			wantErr(t, err, status.Device, "CUDA_ERROR_FAKE")
			r.runOne()
		}
		d.failOn = 0
		wantErr(t, r.tryBegin(nil), status.Unmatch, "CUDA_ERROR_FAKE")
		if s := r.c.Stats(); s.FailedWrites != 1 || s.StagedBytes != 0 || s.UnconsumedSteps != 0 {
			t.Fatalf("left: %+v", s)
		}
		for p, h := range r.c.pages {
			if h != 0 {
				t.Fatalf("page %d is held by %b", p, h)
			}
		}
	}
}

// Memory that cannot be unpinned is not given back: the driver may write to it.
func TestFreeKeepsPagesThatStayPinned(t *testing.T) {
	d := &fakeDevice{lands: map[int]func(){}, pins: map[int]int64{}}
	c, err := New(Config{NumBlocks: 4, BlockSize: 4, Executor: d})
	if err != nil {
		t.Fatal(err)
	}
	id, _ := c.OpenKey("k", 8, 1, JoinNextStep)
	src := make([]byte, 8)
	binary.LittleEndian.PutUint64(src, 42)
	if _, err := c.Save(&SaveArgs{Requests: []uint64{1}, Counts: []int64{1}, Slots: []int64{0},
		Rows: []KeyRows{{Key: id, Place: OnDevice, Rows: unsafe.Pointer(&src[0]), Stride: 8}}}); err != nil {
		t.Fatal(err)
	}
	c.Shutdown()
	d.failOn = UnpinPage
	wantErr(t, c.Free(), status.Device, "CUDA_ERROR_FAKE")
	if c.devicePages[0].mem == nil || len(d.pins) != 1 {
		t.Fatal("a page that is pinned was given back")
	}
	d.failOn = 0
	if err := c.freePagesLocked(); err != nil || len(d.pins) != 0 || c.devicePages[0].mem != nil {
		t.Fatalf("afterwards: %v, pinned %v", err, d.pins)
	}
}

func (c *Cache) freePagesLocked() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.freePages()
}

// Arguments that only steps on a device have.
func TestDeviceRowsAreChecked(t *testing.T) {
	r, d := newDeviceRig(t, Config{StagingCapacity: 4})
	h := r.open("h")
	src, dst := make([]byte, 64), make([]byte, 64)
	try := func(c *Cache, k KeyRows, n int64) error {
		k.Key, k.Rows, k.Stride = h, unsafe.Pointer(&src[0]), 8
		_, err := c.Save(&SaveArgs{Requests: []uint64{1}, Counts: []int64{n}, Slots: span(0, n), Rows: []KeyRows{k}})
		return err
	}
	wantErr(t, try(r.c, KeyRows{Place: OnDevice, Dst: unsafe.Pointer(&dst[0]), DstBytes: 16}, 2), status.InvalidArgument, "expected null")
	wantErr(t, try(r.c, KeyRows{Place: 2}, 2), status.InvalidArgument, "place of key")
	wantErr(t, try(r.c, KeyRows{Place: OnDevice}, 5), status.Unmatch, "staging capacity is 4")
	_, err := r.c.Save(&SaveArgs{Requests: []uint64{1}, Counts: []int64{2}, Slots: span(0, 2), Event: 9,
		Rows: []KeyRows{{Key: h, Rows: unsafe.Pointer(&src[0]), Stride: 8}}})
	wantErr(t, err, status.InvalidArgument, "event is 0x9, expected 0")
	plain := newRig(t, Config{})
	plain.open("h")
	wantErr(t, try(plain.c, KeyRows{Place: OnDevice}, 2), status.Unsupported, "no device")
	if len(d.log) != 0 {
		t.Fatalf("refused saves asked the device for %q", d.log)
	}
}

// The deferred rows of a device step come with the step's job. When that fails, they
// never came: a deferred write that is queued behind it commits nothing.
func TestO28_DeferredRowsOfAFailedDeviceStepAreNotCommitted(t *testing.T) {
	r, d := newDeviceRig(t, Config{Threaded: true})
	r.begin(nil, arrive(1)...)
	step, err := r.saveOn(map[string]uint64{"a": 10, "d": 20}, chunk{1, span(0, 4)})
	if err != nil {
		t.Fatal(err)
	}
	r.begin([]uint64{1})
	d.failOn = AwaitLanded
	for r.runOne() {
	}
	if _, err := r.tryRead(step, "d"); status.CodeOf(err) != status.Unmatch {
		t.Fatalf("read after a failed write: %v", err)
	}
	for i, st := range r.states("d", span(0, 4)...) {
		if st.State != InTransit {
			t.Errorf("slot %d is %v with row %v, expected in transit for good (O-7)", i, st.State, r.rows("d", int64(i)))
		}
	}
}

// checkHook runs something of another thread while addresses are being checked.
type checkHook struct {
	*fakeDevice
	during func()
}

func (h *checkHook) Execute(list []Command) error {
	if f := h.during; f != nil && list[0].Kind == CheckRows {
		h.during = nil
		f()
	}
	return h.fakeDevice.Execute(list)
}

// The former step's write fails while a save has its addresses checked, without the
// lock. The save must not go on: that step may not have landed, and frozen memory is
// there once.
func TestO42_AWriteThatFailsWhileASaveChecksAddressesStopsIt(t *testing.T) {
	hook := &checkHook{fakeDevice: &fakeDevice{lands: map[int]func(){}, pins: map[int]int64{}}}
	r := newRig(t, Config{Threaded: true, Executor: hook})
	r.begin(nil, arrive(1)...)
	first, err := r.saveOn(map[string]uint64{"a": 10}, chunk{1, span(0, 4)})
	if err != nil {
		t.Fatal(err)
	}
	hook.during = func() {
		job, ok := r.c.NextJob()
		if !ok {
			t.Fatal("no job")
		}
		r.c.JobDone(&job, errFake) // before it waited for the page
	}
	if _, err := r.saveOn(map[string]uint64{"a": 20}, chunk{1, span(4, 8)}); status.CodeOf(err) != status.Unmatch {
		t.Fatalf("save: %v, expected the failed write of step %d", err, first)
	}
	if n := r.c.Stats().StepsSaved; n != 1 {
		t.Errorf("%d steps are saved, expected 1", n)
	}
}

// O-48: two threads would wait for one event if the save woke the committer, and one that
// reads the step would wait for its processor if it did. So the next step does, or whoever
// gives the step up or looks for its rows; while somebody reads, that one does at its end.
func TestO48_TheCommitterIsWokenWhenNobodyReads(t *testing.T) {
	read := func(r *rig, step uint64) { r.read(step, "h") }
	for _, c := range []struct {
		name string
		then func(r *rig, step uint64)
		want int
	}{
		{"materialize", read, 0},
		{"materialize, then the next step begins", func(r *rig, step uint64) { read(r, step); r.begin(nil) }, 1},
		{"the next step begins", func(r *rig, step uint64) { r.begin(nil); read(r, step) }, 1},
		{"discard, then the next step begins", func(r *rig, step uint64) { r.discard(step); r.begin(nil) }, 1},
		{"discard", func(r *rig, step uint64) { r.discard(step) }, 1},
		{"statistics", func(r *rig, step uint64) { r.c.Stats() }, 1},
		{"a look at slots", func(r *rig, step uint64) { r.states("h", 0) }, 1},
		{"nothing", func(*rig, uint64) {}, 0},
		{"the next step begins while somebody reads", func(r *rig, step uint64) {
			r.c.cfg.Preempt = func() { // in the middle of the read
				r.c.cfg.Preempt = nil
				if r.begin(nil); r.w.asked > 0 {
					r.t.Fatal("the committer was woken beside a reader")
				}
			}
			read(r, step)
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, _ := newDeviceRig(t, Config{Threaded: true})
			r.begin(nil, arrive(1)...)
			r.c.parked[Committer] = 1
			step, err := r.saveOn(map[string]uint64{"h": 10}, chunk{1, span(0, 4)})
			if err != nil {
				t.Fatal(err)
			}
			if r.w.asked > 0 {
				t.Fatal("the save woke the committer")
			}
			if c.then(r, step); r.w.asked != c.want {
				t.Fatalf("the committer was woken %d times, expected %d", r.w.asked, c.want)
			}
			r.c.parked[Committer] = 0
			r.runOne()
			if s := r.states("h", 0)[0]; s.State != Committed {
				t.Fatalf("slot 0 is %v", s.State)
			}
		})
	}
}

// O-48: whoever needs the write of a device step that nobody has begun does it.
func TestO48_WhoNeedsAWriteThatNobodyHasBegunDoesIt(t *testing.T) {
	r, _ := newDeviceRig(t, Config{Threaded: true, StagingDepth: 2})
	r.begin(nil, arrive(1)...)
	r.w.onWait = nil // a wait would have no end
	first, err := r.saveOn(map[string]uint64{"h": 10}, chunk{1, span(0, 4)})
	if err != nil {
		t.Fatal(err)
	}
	r.begin(nil, hitOn(2, 4, 1))
	second, err := r.saveOn(map[string]uint64{"h": 20}, chunk{1, span(4, 8)}, chunk{2, span(8, 9)}) // needs the first
	if err != nil {
		t.Fatal(err)
	}
	if got := r.rows("h", span(0, 4)...); !reflect.DeepEqual(got, seq(10, 4)) {
		t.Fatalf("rows of the former step are %v", got)
	}
	// A hit on rows of its own step needs that step's.
	if got := r.read(second, "h")[2]; !reflect.DeepEqual(got, seq(20, 5)) {
		t.Fatalf("rows of the step are %v", got)
	}
	if r.w.waits > 0 {
		t.Fatalf("%d waits, expected none", r.w.waits)
	}
	r.discard(first)
}

package gpu_test

import (
	"strings"
	"testing"

	"gorgonia.org/cu"

	"libprefixcache/core/status"
	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

// fixture is a device with one stream, a block on it and pinned memory.
type fixture struct {
	d    *gpu.CUDA
	s    gpu.Stream
	a    gpu.Addr
	host []byte
	e    gpu.Event
}

const blockBytes = 4096

func newFixture(t testing.TB, seed uint64) *fixture {
	d := open(t, seed)
	f := &fixture{d: d}
	f.s = must[gpu.Stream](t)(d.NewStream(0))
	f.a = must[gpu.Addr](t)(d.Alloc(f.s, blockBytes))
	f.e = must[gpu.Event](t)(d.NewEvent(0))
	f.host = pinned(t, d, blockBytes)
	ok(t, d.Drain(f.s))
	return f
}

// close frees all but the pinned memory, which has a cleanup of its own.
func (f *fixture) close(t testing.TB) {
	ok(t, f.d.Free(f.s, f.a))
	ok(t, f.d.Drain(f.s))
	ok(t, f.d.FreeEvent(f.e))
	ok(t, f.d.FreeStream(f.s))
}

// enqueues is every call that puts work on a stream.
func (f *fixture) enqueues(s gpu.Stream, a gpu.Addr) map[string]error {
	d := f.d
	_, alloc := d.Alloc(s, 64)
	return map[string]error{
		"to device": d.CopyToDevice(s, a, ptr(f.host), 64),
		"to host":   d.CopyToHost(s, ptr(f.host), a, 64),
		"on device": d.CopyOnDevice(s, a, a+128, 64),
		"rows":      d.CopyRows(s, &gpu.Copy2D{Dst: a, Src: a + 2048, DstPitch: 64, SrcPitch: 64, Width: 32, Height: 4}),
		"fill":      d.Fill(s, a, 1, 64),
		"record":    d.Record(f.e, s),
		"wait":      d.WaitEvent(s, f.e),
		"alloc":     alloc,
		"free":      d.Free(s, a),
	}
}

// nothing asserts that f enqueues nothing and calls nothing that would.
func nothing(t *testing.T, f func()) {
	t.Helper()
	before := simcuda.Queued() + simcuda.Ran()
	f()
	if after := simcuda.Queued() + simcuda.Ran(); after != before {
		t.Errorf("%d operations were enqueued by refused calls", after-before)
	}
}

func TestAdmission_CapturingStream(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Capture(uintptr(f.s), simcuda.Global)
	nothing(t, func() {
		for name, err := range f.enqueues(f.s, f.a) {
			t.Run(name, func(t *testing.T) { refused(t, err, status.WrongState, "being captured") })
		}
		refused(t, f.d.Check(f.s, nil), status.WrongState, "being captured")
	})
	if c := must[bool](t)(f.d.Capturing(f.s)); !c {
		t.Error("Capturing is false")
	}
	// The capture itself must not have been spoiled by being asked about.
	if !simcuda.EndCapture(uintptr(f.s)) {
		t.Error("the refused calls invalidated the capture")
	}
	f.close(t)
}

func TestAdmission_LegacyStreamWhileAnotherCaptures(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Capture(uintptr(f.s), simcuda.Global)
	nothing(t, func() {
		for name, err := range f.enqueues(gpu.LegacyStream, f.a) {
			t.Run(name, func(t *testing.T) { refused(t, err, status.WrongState, "being captured") })
		}
	})
	if !simcuda.EndCapture(uintptr(f.s)) {
		t.Error("the refused calls invalidated the capture")
	}
	f.close(t)
}

// Where the driver notices: it need not.
func TestAdmission_DestroyedStream(t *testing.T) {
	f := newFixture(t, 1)
	gone := must[gpu.Stream](t)(f.d.NewStream(gpu.NonBlocking))
	ok(t, f.d.FreeStream(gone))
	const why = "was destroyed or is none (cuStreamGetCtx: CUDA_ERROR_INVALID_HANDLE)"
	nothing(t, func() {
		for name, err := range f.enqueues(gone, f.a) {
			t.Run(name, func(t *testing.T) { refused(t, err, status.InvalidArgument, why) })
		}
		refused(t, f.d.Check(gone, nil), status.InvalidArgument, why)
		refused(t, f.d.Drain(gone), status.InvalidArgument, why)
		_, err := f.d.Idle(gone)
		refused(t, err, status.InvalidArgument, why)
		_, err = gpu.OpenCUDA(gone)
		refused(t, err, status.InvalidArgument, why)
		simcuda.NoContext()
		_, err = gpu.OpenCUDA(gone)
		refused(t, err, status.InvalidArgument, why)
	})
	simcuda.SetDevice(t, 0)
	f.close(t)
	if !strings.Contains(faults(), "was destroyed") {
		t.Error("the simulator did not notice a destroyed stream")
	}
}

func TestAdmission_StreamOfAnotherContext(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Devices(2)
	simcuda.SetDevice(t, 1)
	foreign, err := cu.MakeStream(0)
	ok(t, err)
	simcuda.SetDevice(t, 0)
	raw := gpu.Stream(uintptrOf(foreign))
	nothing(t, func() {
		for name, err := range f.enqueues(raw, f.a) {
			t.Run(name, func(t *testing.T) { refused(t, err, status.InvalidArgument, "another CUDA context") })
		}
	})
	ok(t, foreign.Destroy())
	f.close(t)
}

func TestAdmission_ThreadWithAnotherContext(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Devices(2)
	simcuda.SetDevice(t, 1)
	nothing(t, func() {
		for name, err := range f.enqueues(f.s, f.a) {
			t.Run(name, func(t *testing.T) { refused(t, err, status.InvalidArgument, "another CUDA context is current") })
		}
		_, err := f.d.NewEvent(0)
		refused(t, err, status.InvalidArgument, "another CUDA context is current")
	})
	simcuda.SetDevice(t, 0)
	f.close(t)
}

// Waiting puts nothing on a stream: a thread with any context may, and keeps it. On the
// implicit streams it is the device's stream that is waited for.
func TestWaits_ThreadWithAnotherContext(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Devices(2)
	simcuda.Policy(simcuda.Late)
	for _, s := range []gpu.Stream{f.s, gpu.LegacyStream, gpu.PerThreadStream} {
		ok(t, f.d.Fill(s, f.a, 7, 64))
		simcuda.SetDevice(t, 1)
		must[bool](t)(f.d.Idle(s))
		ok(t, f.d.Drain(s))
		if n := simcuda.Queued(); n != 0 {
			t.Errorf("stream %#x: drained, and %d operations are queued", uintptr(s), n)
		}
		if now := must[cu.Device](t)(cu.CurrentDevice()); now != 1 {
			t.Errorf("stream %#x: afterwards device %d is current on the thread", uintptr(s), now)
		}
		simcuda.SetDevice(t, 0)
	}
	f.close(t)
}

// A context that cannot be made current for the moment is no reason to take the thread's.
func TestWaits_AContextThatCannotBePushedIsNotPopped(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Devices(2)
	simcuda.SetDevice(t, 1)
	pushes := simcuda.Calls("cuCtxPushCurrent_v2")
	simcuda.FailNth(simcuda.Ask, 2, 201) // the first asks what is current
	refused(t, f.d.Drain(f.s), status.Device, "CUDA_ERROR_INVALID_CONTEXT")
	if n := simcuda.Calls("cuCtxPushCurrent_v2") - pushes; n != 1 {
		t.Fatalf("%d contexts were pushed, expected one that fails", n)
	}
	if now := must[cu.Device](t)(cu.CurrentDevice()); now != 1 {
		t.Errorf("device %d is current on the thread, expected its own", now)
	}
	simcuda.SetDevice(t, 0)
	f.close(t)
}

// The driver ends a capture whose stream is asked for its progress.
func TestWaits_CapturingStream(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Capture(uintptr(f.s), simcuda.Relaxed)
	_, err := f.d.Idle(f.s)
	refused(t, err, status.WrongState, "being captured")
	refused(t, f.d.Drain(f.s), status.WrongState, "being captured")
	if !simcuda.EndCapture(uintptr(f.s)) {
		t.Error("the refused calls ended the capture")
	}
	f.close(t)
}

func TestAdmission_ThreadWithoutContextGetsOurs(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.NoContext()
	ok(t, f.d.Fill(f.s, f.a, 7, 64))
	simcuda.NoContext()
	ok(t, f.d.Drain(f.s))
	f.close(t)
}

func TestAdmission_HostPointerAsDeviceAddress(t *testing.T) {
	f := newFixture(t, 1)
	pageable := make([]byte, 4096)
	for name, bad := range map[string]gpu.Addr{
		"pinned":   gpu.Addr(uintptr(ptr(f.host))),
		"pageable": gpu.Addr(uintptr(ptr(pageable))),
		"freed":    must[gpu.Addr](t)(freedBlock(f)),
	} {
		nothing(t, func() {
			for call, err := range map[string]error{
				"to device": f.d.CopyToDevice(f.s, bad, ptr(f.host), 64),
				"to host":   f.d.CopyToHost(f.s, ptr(f.host), bad, 64),
				"on device": f.d.CopyOnDevice(f.s, f.a, bad, 64),
				"fill":      f.d.Fill(f.s, bad, 1, 64),
				"free":      f.d.Free(f.s, bad),
			} {
				t.Run(name+" "+call, func(t *testing.T) { refused(t, err, status.InvalidArgument, "not device memory") })
			}
			region := []gpu.Region{{Name: "rows", Addr: uintptr(bad), Bytes: 64, Place: gpu.OnDevice}}
			refused(t, f.d.Check(f.s, region), status.InvalidArgument, "rows is")
		})
	}
	f.close(t)
}

func freedBlock(f *fixture) (gpu.Addr, error) {
	a, err := f.d.Alloc(f.s, 256)
	if err == nil {
		err = f.d.Free(f.s, a)
	}
	if err == nil {
		err = f.d.Drain(f.s)
	}
	return a, err
}

func TestAdmission_MemoryOfAnotherDevice(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Devices(2)
	simcuda.SetDevice(t, 1)
	other, err := cu.MemAlloc(256)
	ok(t, err)
	simcuda.SetDevice(t, 0)
	nothing(t, func() {
		refused(t, f.d.Fill(f.s, gpu.Addr(other), 1, 64), status.InvalidArgument, "another device")
		refused(t, f.d.Check(f.s, []gpu.Region{{Name: "rows", Addr: uintptr(other), Bytes: 64}}), status.InvalidArgument, "device 1")
	})
	ok(t, cu.MemFree(other))
	f.close(t)
}

// A region whose end is no device memory is refused before a copy of it fails, or goes on
// into somebody else's memory.
func TestCheck_TheEndOfARegion(t *testing.T) {
	f := newFixture(t, 1)
	check := func(offset, bytes int64) error {
		return f.d.Check(f.s, []gpu.Region{{Name: "rows", Addr: uintptr(f.a) + uintptr(offset), Bytes: bytes}})
	}
	nothing(t, func() {
		ok(t, check(0, blockBytes))
		ok(t, check(blockBytes-1, 1))
		refused(t, check(0, blockBytes+1), status.InvalidArgument, "with 4097 bytes, of which 4096 are memory of device 0")
		refused(t, check(4000, 97), status.InvalidArgument, "with 97 bytes, of which 96 are memory of device 0")
		refused(t, check(64, 1<<40), status.InvalidArgument, "of which 4032 are")
	})
	// Other memory of the device behind a gap is none of it.
	simcuda.Adjacent()
	pieces := []gpu.Addr{must[gpu.Addr](t)(f.d.Alloc(f.s, blockBytes))}
	refused(t, check(0, int64(pieces[0]-f.a)+1), status.InvalidArgument, "of which 4096 are")
	// Pieces side by side are one piece.
	for range 2 {
		pieces = append(pieces, must[gpu.Addr](t)(f.d.Alloc(f.s, blockBytes)))
	}
	first := int64(pieces[0] - f.a)
	ok(t, check(first+8, 3*blockBytes-8))
	refused(t, check(first+8, 3*blockBytes-7), status.InvalidArgument, "with 12281 bytes, of which 12280 are")
	for _, p := range pieces {
		ok(t, f.d.Free(f.s, p))
	}
	f.close(t)
}

func TestAdmission_DeviceMemoryAsHost(t *testing.T) {
	f := newFixture(t, 1)
	region := []gpu.Region{{Name: "dst", Addr: uintptr(f.a), Bytes: 64, Place: gpu.OnHost}}
	refused(t, f.d.Check(f.s, region), status.InvalidArgument, "device memory; expected host memory")
	f.close(t)
}

func TestEvent_DestroyedIsRefused(t *testing.T) {
	f := newFixture(t, 1)
	e := must[gpu.Event](t)(f.d.NewEvent(0))
	ok(t, f.d.FreeEvent(e))
	nothing(t, func() {
		refused(t, f.d.CheckEvent(e), status.InvalidArgument, "was destroyed or is none (cuEventQuery: CUDA_ERROR_INVALID_HANDLE)")
		refused(t, f.d.WaitEvent(f.s, e), status.Device, "CUDA_ERROR_INVALID_HANDLE")
		refused(t, f.d.Record(e, f.s), status.Device, "CUDA_ERROR_INVALID_HANDLE")
		refused(t, f.d.Await(e), status.Device, "CUDA_ERROR_INVALID_HANDLE")
	})
	if !strings.Contains(faults(), "was destroyed") {
		t.Error("the simulator did not notice a destroyed event")
	}
}

// A wait for an event that a capture recorded would pull our stream into the graph.
func TestEvent_OfACaptureIsRefused(t *testing.T) {
	f := newFixture(t, 1)
	model, err := cu.MakeStream(0)
	ok(t, err)
	simcuda.Capture(uintptrOf(model), simcuda.Relaxed)
	ev, err := cu.MakeEvent(0)
	ok(t, err)
	_ = ev.Record(model) // the model records into its own graph: legal, and seen by the simulator
	raw := gpu.Event(uintptrOf(ev))
	nothing(t, func() {
		refused(t, f.d.CheckEvent(raw), status.WrongState, "CUDA_ERROR_CAPTURED_EVENT")
	})
	faults()
}

// Polling and waiting while some other thread captures in global mode fails and
// spoils the capture unless the caller is in relaxed mode.
func TestWaits_DoNotSpoilACaptureElsewhere(t *testing.T) {
	f := newFixture(t, 3)
	ok(t, f.d.Fill(f.s, f.a, 1, 64))
	ok(t, f.d.Record(f.e, f.s))
	model, err := cu.MakeStream(cu.NonBlocking)
	ok(t, err)
	simcuda.Capture(uintptrOf(model), simcuda.Global)
	if _, err := f.d.Done(f.e); err != nil {
		t.Error(err)
	}
	if _, err := f.d.Idle(f.s); err != nil {
		t.Error(err)
	}
	ok(t, f.d.Await(f.e))
	ok(t, f.d.Drain(f.s))
	if !simcuda.EndCapture(uintptrOf(model)) {
		t.Error("a wait of ours invalidated the capture of another stream")
	}
	ok(t, model.Destroy())
	f.close(t)
}

func TestOpen_NeedsAContext(t *testing.T) {
	simcuda.Start(t, 1)
	s, err := cu.MakeStream(0)
	ok(t, err)
	simcuda.NoContext()
	_, err = gpu.OpenCUDA(0)
	refused(t, err, status.InvalidArgument, "no CUDA context")
	// A stream names its context, so a thread without one can still open.
	d, err := gpu.OpenCUDA(gpu.Stream(uintptrOf(s)))
	ok(t, err)
	ok(t, d.Close())
	ok(t, s.Destroy())
}

func TestClose_RefusesWhileThingsLive(t *testing.T) {
	f := newFixture(t, 1)
	refused(t, f.d.Close(), status.Busy, "1 events, 1 streams, 1 device blocks, 1 pinned")
	f.close(t)
}

func TestErrors_CarryTheCUDAName(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.FailNth(simcuda.Enqueue, 1, simcuda.OutOfMemory)
	err := f.d.CopyToHost(f.s, ptr(f.host), f.a, 64)
	refused(t, err, status.Device, "cuMemcpyDtoHAsync: CUDA_ERROR_OUT_OF_MEMORY")
	simcuda.FailNth(simcuda.Create, 1, simcuda.OutOfMemory)
	_, err = f.d.AllocHost(64)
	refused(t, err, status.Device, "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY")
	// So do those of the checks in front of a call.
	for n, want := range []string{"cuCtxGetCurrent", "cuStreamGetCtx", "cuStreamIsCapturing", "cuPointerGetAttributes", "cuPointerGetAttributes"} {
		simcuda.FailNth(simcuda.Ask, n+1, simcuda.OutOfMemory)
		err = f.d.CopyOnDevice(f.s, f.a, f.a+128, 64)
		refused(t, err, status.Device, "copy on device: "+want+": CUDA_ERROR_OUT_OF_MEMORY")
	}
	simcuda.NoContext()
	simcuda.FailNth(simcuda.Ask, 2, simcuda.OutOfMemory)
	refused(t, f.d.Fill(f.s, f.a, 1, 64), status.Device, "fill: cuCtxSetCurrent: CUDA_ERROR_OUT_OF_MEMORY")
	simcuda.FailNth(simcuda.Ask, 2, simcuda.OutOfMemory)
	refused(t, f.d.Drain(f.s), status.Device, "drain: cuCtxPushCurrent: CUDA_ERROR_OUT_OF_MEMORY")
	simcuda.SetDevice(t, 0)
	f.close(t)
}

func TestErrors_AFaultOnTheDeviceIsForGood(t *testing.T) {
	f := newFixture(t, 1)
	simcuda.Policy(simcuda.Late)
	simcuda.FailOperation(1, simcuda.IllegalAddress)
	ok(t, f.d.Fill(f.s, f.a, 1, 64))
	err := f.d.Drain(f.s)
	refused(t, err, status.Device, "CUDA_ERROR_ILLEGAL_ADDRESS")
	refused(t, f.d.Fill(f.s, f.a, 1, 64), status.Device, "CUDA_ERROR_ILLEGAL_ADDRESS")
	faults() // nothing can be freed on a lost context
}

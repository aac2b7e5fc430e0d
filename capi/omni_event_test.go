package main

import (
	"bytes"
	"testing"
	"unsafe"

	"libprefixcache/core/omni"
	"libprefixcache/core/status"
	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

// eventStage is a cache whose rows are made on another stream than the one that it is
// given: an event between the two is all that orders them.
type eventStage struct {
	*stage
	cache    *omni.Cache
	producer gpu.Stream
	key      omni.KeyID
}

func newEventStage(t testing.TB, seed uint64) *eventStage {
	s := &eventStage{stage: newStage(t, seed)}
	s.landed = make([]gpu.Event, 4)
	s.producer = must[gpu.Stream](t)(s.model.NewStream(gpu.NonBlocking))
	s.cache = must[*omni.Cache](t)(omni.New(omni.Config{NumBlocks: 4, BlockSize: 4, Threaded: true, Executor: s}))
	s.key = must[omni.KeyID](t)(s.cache.OpenKey("k", 64, 1, omni.JoinNextStep))
	return s
}

// save is a step of one row that is at p.
func (s *eventStage) save(p gpu.Addr, event gpu.Event) (uint64, error) {
	return s.cache.Save(&omni.SaveArgs{Requests: []uint64{1}, Counts: []int64{1}, Slots: []int64{3}, Stream: s.Stream(), Event: uint64(event),
		Rows: []omni.KeyRows{{Key: s.key, Place: omni.OnDevice, Rows: pointer(p), Stride: 64}}})
}

func (s *eventStage) end(t testing.TB) {
	s.cache.Shutdown()
	ok(t, given(s.quiesce))
	ok(t, s.cache.Free())
	ok(t, given(s.close))
	ok(t, s.model.Drain(s.producer))
	ok(t, s.model.FreeStream(s.producer))
	s.stage.end()
}

// the rows are read when the event is reached and not before, whatever the order
// that streams run in. The simulator reports a read that nothing orders behind the write.
func TestTheEventOfTheRowsIsWaitedFor(t *testing.T) {
	simcuda.EachSeed(t, seeds(100), func(t testing.TB, seed uint64) {
		s := newEventStage(t, seed)
		if seed%3 == 0 {
			simcuda.Policy(simcuda.Late)
		}
		ready := must[gpu.Event](t)(s.model.NewEvent(0))
		p := must[gpu.Addr](t)(s.model.Alloc(s.producer, 64))
		row := bytes.Repeat([]byte{byte(seed + 1)}, 64)
		ok(t, s.model.CopyToDevice(s.producer, p, unsafe.Pointer(&row[0]), 64))
		ok(t, s.model.Record(ready, s.producer))
		step := must[uint64](t)(s.save(p, ready))
		// The event may be recorded again, and destroyed, behind the save.
		ok(t, s.model.Record(ready, s.stream))
		ok(t, s.model.FreeEvent(ready))
		ok(t, s.model.Free(s.stream, p))
		got := make([]byte, 64)
		ok(t, s.cache.Materialize(step, []omni.Read{{Key: s.key, Count: 1, Dst: unsafe.Pointer(&got[0]), DstBytes: 64}}))
		if !bytes.Equal(got, row) {
			t.Errorf("seed %d: the row is %x", seed, got)
		}
		s.end(t)
	})
}

// An event that cannot be waited for is a clear error, and nothing is enqueued. Of one that
// was recorded into a graph the driver says so while the capture goes on, which it ends
// for that, and after it that the event has no value.
func TestAnEventThatCannotBeWaitedForIsRefused(t *testing.T) {
	s := newEventStage(t, 2)
	p := must[gpu.Addr](t)(s.model.Alloc(s.stream, 64))
	ok(t, s.model.Drain(s.stream))

	gone := must[gpu.Event](t)(s.model.NewEvent(0))
	ok(t, s.model.FreeEvent(gone))
	record := func() gpu.Event {
		e := must[gpu.Event](t)(s.model.NewEvent(0))
		simcuda.Capture(uintptr(s.producer), simcuda.Relaxed)
		simcuda.Record(uintptr(e), uintptr(s.producer)) // by the model, into its own graph
		return e
	}
	former := record()
	if !simcuda.EndCapture(uintptr(s.producer)) {
		t.Error("the model's capture was spoiled")
	}
	captured := record()

	for _, c := range []struct {
		what  string
		event gpu.Event
		code  status.Code
		text  string
	}{
		{"destroyed", gone, status.InvalidArgument, "was destroyed or is none (cuEventQuery: CUDA_ERROR_INVALID_HANDLE)"},
		{"an address of the host", 0x1230, status.InvalidArgument, "event 0x1230 was destroyed or is none"},
		{"recorded into a graph that is done", former, status.WrongState, "was recorded into a CUDA graph (cuEventQuery: CUDA_ERROR_INVALID_VALUE)"},
		{"recorded into a graph", captured, status.WrongState, "was recorded into a CUDA graph (cuEventQuery: CUDA_ERROR_CAPTURED_EVENT)"},
	} {
		before := simcuda.Ran() + simcuda.Queued()
		_, err := s.save(p, c.event)
		if e, is := err.(*status.Error); !is || e.Code != c.code || !bytes.Contains([]byte(err.Error()), []byte(c.text)) {
			t.Errorf("%s: %v, expected code %d with %q", c.what, err, c.code, c.text)
		}
		if n := simcuda.Ran() + simcuda.Queued() - before; n != 0 {
			t.Errorf("%s: %d operations were enqueued", c.what, n)
		}
	}
	if simcuda.EndCapture(uintptr(s.producer)) {
		t.Error("the capture whose event was asked for went on, which no driver allows")
	}
	// The cache is as before: a save without an event goes on.
	if step := must[uint64](t)(s.save(p, 0)); step != 1 {
		t.Errorf("the refused saves used %d ids", step-1)
	}
	simcuda.Reset(0) // the simulator has noted that such events were asked for
}

package gpu

import (
	"gorgonia.org/cu"

	"libprefixcache/core/status"
)

func nullEvent(call string) error {
	return status.New(status.InvalidArgument, "%s: event is 0, expected a recorded event (torch's cuda_event is 0 until it is recorded)", call)
}

func (d *CUDA) NewEvent(flags EventFlags) (Event, error) {
	if err := d.admitThread("new event"); err != nil {
		return 0, err
	}
	var f cu.EventFlags
	if flags&Timing == 0 {
		f |= cu.DisableTiming
	}
	if flags&SpinWait == 0 {
		f |= cu.BlockingSyncEvent
	}
	e, err := cu.MakeEvent(f)
	if err != nil {
		return 0, wrap("cuEventCreate", err, "")
	}
	d.events.Add(1)
	return rawEvent(e), nil
}

func (d *CUDA) FreeEvent(e Event) error {
	if e == 0 {
		return nullEvent("free event")
	}
	c := e.cu()
	if err := cu.DestroyEvent(&c); err != nil {
		return wrap("cuEventDestroy", err, "event %#x", uintptr(e))
	}
	d.events.Add(-1)
	return nil
}

func (d *CUDA) Record(e Event, s Stream) error {
	if e == 0 {
		return nullEvent("record")
	}
	if err := d.admit("record", s, 0, 0); err != nil {
		return err
	}
	if err := e.cu().Record(s.cu()); err != nil {
		return wrap("cuEventRecord", err, "event %#x, stream %#x", uintptr(e), uintptr(s))
	}
	return nil
}

// CheckEvent asks for the state of e. Waiting for an event that was recorded into a
// graph would pull the waiting stream into that capture without an error. The query
// tells, at the price of a capture that still goes on, which the driver then fails: it
// has no call that asks for less. Whether it notices a destroyed event is up to it.
func (d *CUDA) CheckEvent(e Event) error {
	if e == 0 {
		return nullEvent("check")
	}
	switch code := eventQuery(d.ctx, e); code {
	case 0, notReady:
		return nil
	case invalidHandle:
		return status.New(status.InvalidArgument, "event %#x was destroyed or is none (cuEventQuery: %s), expected an event that lives", uintptr(e), errorName(code))
	case capturedEvent, invalidValue: // while the capture goes on, and after it
		return status.New(status.WrongState, "event %#x was recorded into a CUDA graph (cuEventQuery: %s), expected one that a stream reaches", uintptr(e), errorName(code))
	default:
		return cudaError("cuEventQuery", code, "event %#x", uintptr(e))
	}
}

func (d *CUDA) WaitEvent(s Stream, e Event) error {
	if e == 0 {
		return nullEvent("wait")
	}
	if err := d.admit("wait", s, 0, 0); err != nil {
		return err
	}
	if err := s.cu().Wait(e.cu(), 0); err != nil {
		return wrap("cuStreamWaitEvent", err, "stream %#x, event %#x", uintptr(s), uintptr(e))
	}
	return nil
}

func (d *CUDA) Done(e Event) (bool, error) {
	if e == 0 {
		return false, nullEvent("query")
	}
	return ready("cuEventQuery", eventQuery(d.ctx, e), uintptr(e))
}

func (d *CUDA) Await(e Event) error {
	if e == 0 {
		return nullEvent("await")
	}
	if code := eventWait(d.ctx, e); code != 0 {
		return cudaError("cuEventSynchronize", code, "event %#x", uintptr(e))
	}
	return nil
}

func (d *CUDA) Elapsed(start, end Event) (float64, error) {
	if start == 0 || end == 0 {
		return 0, nullEvent("elapsed")
	}
	ms, err := start.cu().Elapsed(end.cu())
	if err != nil {
		return 0, wrap("cuEventElapsedTime", err, "events %#x and %#x", uintptr(start), uintptr(end))
	}
	return ms, nil
}

func (d *CUDA) NewStream(flags StreamFlags) (Stream, error) {
	if err := d.admitThread("new stream"); err != nil {
		return 0, err
	}
	var f cu.StreamFlags
	if flags&NonBlocking != 0 {
		f = cu.NonBlocking
	}
	priority := 0 // the default; the lowest is the largest number
	if flags&LowPriority != 0 {
		var err error
		if priority, _, err = cu.StreamPriorityRange(); err != nil {
			return 0, wrap("cuCtxGetStreamPriorityRange", err, "")
		}
	}
	s, err := cu.MakeStreamWithPriority(priority, f)
	if err != nil {
		return 0, wrap("cuStreamCreateWithPriority", err, "")
	}
	d.streams.Add(1)
	return rawStream(s), nil
}

func (d *CUDA) FreeStream(s Stream) error {
	if s <= PerThreadStream {
		return status.New(status.InvalidArgument, "free stream: stream is %#x, expected one that was created", uintptr(s))
	}
	c := s.cu()
	if err := c.Destroy(); err != nil {
		return wrap("cuStreamDestroy", err, "stream %#x", uintptr(s))
	}
	d.streams.Add(-1)
	return nil
}

// Idle and Drain work on a thread with any context. A stream that is being captured is
// refused: the driver would end the capture.

func (d *CUDA) Idle(s Stream) (bool, error) {
	refused, code := streamQuery(d.ctx, d.ordinal, s)
	if refused != 0 {
		return false, refuse("query stream", refused, d.ordinal, s, 0, 0)
	}
	return ready("cuStreamQuery", code, uintptr(s))
}

func (d *CUDA) Drain(s Stream) error {
	refused, code := streamWait(d.ctx, d.ordinal, s)
	if refused != 0 {
		return refuse("drain", refused, d.ordinal, s, 0, 0)
	}
	if code != 0 {
		return cudaError("cuStreamSynchronize", code, "stream %#x", uintptr(s))
	}
	return nil
}

func (d *CUDA) Capturing(s Stream) (bool, error) {
	c, code := streamCapturing(s)
	if code != 0 {
		return false, cudaError("cuStreamIsCapturing", code, "stream %#x", uintptr(s))
	}
	return c, nil
}

func (d *CUDA) ContextOf(s Stream) (Context, error) {
	c, code := streamContext(s)
	if code != 0 {
		return 0, cudaError("cuStreamGetCtx", code, "stream %#x", uintptr(s))
	}
	return c, nil
}

// ready turns the outcome of a query into a yes or no.
func ready(call string, code int, handle uintptr) (bool, error) {
	switch code {
	case 0:
		return true, nil
	case notReady:
		return false, nil
	}
	return false, cudaError(call, code, "%#x", handle)
}

package main

import (
	"sync/atomic"

	"libprefixcache/core/omni"
	"libprefixcache/gpu"
)

// stopwatch times the two copies of a step whose rows are on a device, by events on
// the streams that make them: nobody waits for a figure. Of the steps of watchedBytes
// and more, the first of every watchedSteps is timed: the driver calls for it are half as
// many as those of the step itself, and a bandwidth needs no more. What was measured is
// read when the next large step begins: every former step has landed by then.
type stopwatch struct {
	events [4]gpu.Event // freeze: begin, end; landing: begin, end
	bytes  [2]int64     // of the step that they were recorded in
	armed  bool
	large  uint64 // steps of watchedBytes and more
	clone  deviceTime
	land   deviceTime
}

// deviceTime is read by any thread.
type deviceTime struct{ bytes, nanoseconds atomic.Int64 }

const (
	watchedBytes = 1 << 20
	watchedSteps = 16
)

// start decides whether the list is timed.
func (w *stopwatch) start(dev gpu.Device, list []omni.Command) bool {
	var clone, land int64
	for i := range list {
		switch c := &list[i]; c.Kind {
		case omni.FreezeRows:
			clone += c.Rows * c.RowBytes
		case omni.LandPage:
			land += c.Bytes
		}
	}
	if clone < watchedBytes {
		return false
	}
	w.read(dev)
	w.large++
	if w.large%watchedSteps != 1 {
		return false
	}
	for i := range w.events {
		if w.events[i] == 0 {
			var err error
			if w.events[i], err = dev.NewEvent(gpu.Timing); err != nil {
				w.events[i] = 0
				return false // a figure is not worth a failed step
			}
		}
	}
	w.bytes = [2]int64{clone, land}
	return true
}

// mark records an event; one that fails spoils this step's figures and nothing else.
func (w *stopwatch) mark(dev gpu.Device, event int, s gpu.Stream) bool {
	return dev.Record(w.events[event], s) == nil
}

// read takes what the last large step measured.
func (w *stopwatch) read(dev gpu.Device) {
	if !w.armed {
		return
	}
	w.armed = false
	for i, t := range [...]*deviceTime{&w.clone, &w.land} {
		if ms, err := dev.Elapsed(w.events[2*i], w.events[2*i+1]); err == nil {
			t.nanoseconds.Add(int64(ms * 1e6))
			t.bytes.Add(w.bytes[i])
		}
	}
}

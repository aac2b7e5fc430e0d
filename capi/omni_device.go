package main

import (
	"libprefixcache/core/omni"
	"libprefixcache/core/status"
	"libprefixcache/gpu"
)

// omniDevice carries out the commands of an omni cache whose rows are on a GPU. It
// is opened by the first good step that has such rows, in the context of the thread that
// saves it; a cache that never sees one never touches a driver.
//
// Engine calls do not overlap, so everything but the landed events has one user at a
// time. A landed event is made before its page is published and freed after the
// cache is quiet, which is what lets any thread wait for it.
type omniDevice struct {
	dev    gpu.Device
	copies gpu.Stream // the cache's own: nobody else waits for its work

	frozen      gpu.Addr // one step's rows as they were when it was saved
	frozenBytes int64
	marked      gpu.Event // after the freeze, on the producer's stream
	landed      []gpu.Event

	// The producer's stream of a list that failed and could not be waited for: its
	// copies may still write to frozen memory.
	loose   bool
	looseOn gpu.Stream

	unlanded error // why quiesce could not wait: copies may still write to pages

	regions []gpu.Region
	watch   stopwatch
	log     *limiter // of the cache
	bound   bool     // the committer's thread; nobody else looks
}

// Execute implements omni.Executor.
func (d *omniDevice) Execute(list []omni.Command) error {
	if list[0].Kind == omni.AwaitLanded { // any thread: not one word of d is written
		return d.dev.Await(d.landed[list[0].Page])
	}
	if list[0].Kind == omni.CheckRows {
		return d.check(list)
	}
	if err := d.settle(false); err != nil {
		return err
	}
	timed := list[0].Kind == omni.ReserveFrozen && d.watch.start(d.dev, list)
	for i := range list {
		if timed && list[i].Kind == omni.RecordFrozen {
			timed = d.watch.mark(d.dev, 1, gpu.Stream(list[i].Stream))
		}
		if err := d.exec(&list[i]); err != nil {
			if list[0].Kind == omni.ReserveFrozen {
				d.loose, d.looseOn = true, gpu.Stream(list[0].Stream)
				_ = d.settle(true) // what fails again is tried before anything else begins
			}
			return err
		}
		if timed {
			switch list[i].Kind {
			case omni.ReserveFrozen, omni.AwaitReady:
				if list[i+1].Kind == omni.FreezeRows {
					timed = d.watch.mark(d.dev, 0, gpu.Stream(list[i].Stream))
				}
			case omni.WaitFrozen:
				timed = d.watch.mark(d.dev, 2, d.copies)
			case omni.LandPage:
				timed = d.watch.mark(d.dev, 3, d.copies)
			}
		}
	}
	d.watch.armed = d.watch.armed || timed
	return nil
}

// settle waits until no copy of a failed list is under way. here: on the thread of that
// list, which alone can wait for a stream of its own.
func (d *omniDevice) settle(here bool) error {
	if !d.loose {
		return nil
	}
	var err error
	if here {
		err = d.dev.Drain(d.looseOn)
	} else {
		err = drainElsewhere(d.dev, d.looseOn, d.marked)
	}
	if err != nil {
		return err
	}
	if err := d.dev.Drain(d.copies); err != nil {
		return err
	}
	d.loose = false
	return nil
}

// check has every address of a step looked at, with the stream and the event, before
// the first call that enqueues. The event comes last: to ask about one that a capture
// recorded ends that capture, which is often the one of the stream.
func (d *omniDevice) check(list []omni.Command) error {
	if d.dev == nil {
		return d.open(list)
	}
	return d.admit(d.dev, list)
}

func (d *omniDevice) admit(dev gpu.Device, list []omni.Command) error {
	d.regions = d.regions[:0]
	for i := range list {
		c := &list[i]
		d.regions = append(d.regions, gpu.Region{Name: c.Name, Addr: c.Src, Bytes: (c.Rows-1)*c.Stride + c.RowBytes, Place: gpu.OnDevice})
	}
	if err := dev.Check(gpu.Stream(list[0].Stream), d.regions); err != nil {
		return err
	}
	if e := gpu.Event(list[0].Event); e != 0 {
		return dev.CheckEvent(e)
	}
	return nil
}

func (d *omniDevice) exec(c *omni.Command) (err error) {
	stream := gpu.Stream(c.Stream)
	switch c.Kind {
	case omni.PinPage:
		if d.landed[c.Page] == 0 {
			if d.landed[c.Page], err = d.dev.NewEvent(0); err != nil {
				return err
			}
		}
		if err = d.dev.Register(c.Host, c.Bytes); err != nil {
			_ = d.freeEvent(&d.landed[c.Page])
			tellPinning(d.log, c.Bytes, err)
		}
	case omni.UnpinPage:
		if d.unlanded != nil {
			return d.unlanded
		}
		if err = twice(func() error { return d.dev.Unregister(c.Host) }); err == nil {
			_ = d.freeEvent(&d.landed[c.Page])
		}
	case omni.ReserveFrozen:
		err = d.reserve(stream, c.Bytes)
	case omni.FreezeRows:
		dst := d.frozen + gpu.Addr(c.Offset)
		if c.Stride == c.RowBytes || c.Rows == 1 {
			return d.dev.CopyOnDevice(stream, dst, gpu.Addr(c.Src), c.Rows*c.RowBytes)
		}
		return d.dev.CopyRows(stream, &gpu.Copy2D{Dst: dst, DstPitch: c.RowBytes, Src: gpu.Addr(c.Src), SrcPitch: c.Stride, Width: c.RowBytes, Height: c.Rows})
	case omni.AwaitReady:
		return d.dev.WaitEvent(stream, gpu.Event(c.Event))
	case omni.RecordFrozen:
		return d.dev.Record(d.marked, stream)
	case omni.WaitFrozen:
		return d.dev.WaitEvent(d.copies, d.marked)
	case omni.LandPage:
		return d.dev.CopyToHost(d.copies, c.Host, d.frozen, c.Bytes)
	case omni.RecordLanded:
		return d.dev.Record(d.landed[c.Page], d.copies)
	default:
		err = status.New(status.Internal, "omni device: unexpected command %v", c.Kind)
	}
	return err
}

// reserve makes frozen memory for a step. Every former step has landed, so the
// memory is at rest; it comes from stream and is freed on the copy stream, which
// waits for whatever was frozen in it.
func (d *omniDevice) reserve(stream gpu.Stream, bytes int64) error {
	if bytes <= d.frozenBytes {
		return nil
	}
	if d.frozen != 0 {
		if err := twice(func() error { return d.dev.Free(d.copies, d.frozen) }); err != nil {
			return err
		}
		d.frozen, d.frozenBytes = 0, 0
	}
	size := int64(minFrozenBytes)
	for size < bytes {
		size *= 2
	}
	a, err := d.dev.Alloc(stream, size)
	if err != nil {
		return err
	}
	d.frozen, d.frozenBytes = a, size
	return nil
}

const minFrozenBytes = 64 << 10

// open adopts the context of the thread that saves, once. A step that is refused may have
// come in the wrong one, so the next decides anew.
func (d *omniDevice) open(list []omni.Command) error {
	dev, err := gpu.OpenCUDA(gpu.Stream(list[0].Stream))
	if dev == nil {
		return err
	}
	var copies gpu.Stream
	if err == nil {
		err = d.admit(dev, list)
	}
	if err == nil {
		copies, err = dev.NewStream(gpu.NonBlocking)
	}
	if err == nil {
		if d.marked, err = dev.NewEvent(0); err == nil {
			d.dev, d.copies = dev, copies
			return nil
		}
		_ = twice(func() error { return dev.FreeStream(copies) })
	}
	_ = twice(dev.Close)
	dev.PutBack()
	return err
}

// bind prepares the committer's thread before it waits for the first time.
func (d *omniDevice) bind() error {
	if d.bound {
		return nil
	}
	err := d.dev.Bind()
	d.bound = err == nil
	return err
}

// close gives back what open and the steps took; the cache's pages are unpinned
// already, and no call runs.
func (d *omniDevice) close(g *giving) {
	if d.dev == nil {
		return
	}
	g.back(func() error { return d.dev.Drain(d.copies) })
	if d.frozen != 0 && !d.loose { // else it stays: nobody knows what still writes to it
		g.back(func() error { return d.dev.Free(d.copies, d.frozen) })
	}
	for i := range d.landed {
		g.came(d.freeEvent(&d.landed[i]))
	}
	g.came(d.freeEvent(&d.marked))
	for i := range d.watch.events {
		g.came(d.freeEvent(&d.watch.events[i]))
	}
	g.back(func() error { return d.dev.FreeStream(d.copies) })
	g.back(d.dev.Close)
}

// freeEvent keeps an event that could not be destroyed, for close to try again.
func (d *omniDevice) freeEvent(e *gpu.Event) error {
	if *e == 0 {
		return nil
	}
	err := twice(func() error { return d.dev.FreeEvent(*e) })
	if err == nil {
		*e = 0
	}
	return err
}

// quiesce waits for copies that nobody waited for: of a step that shutdown dropped.
// Pages may be unpinned afterwards; if it could not wait, they stay.
func (d *omniDevice) quiesce(g *giving) {
	if d.dev != nil {
		g.back(func() error { return d.settle(false) })
		d.unlanded = twice(func() error { return d.dev.Drain(d.copies) })
		g.came(d.unlanded)
	}
}

var _ omni.Executor = (*omniDevice)(nil)

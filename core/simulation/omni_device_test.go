package simulation

import (
	"unsafe"

	"libprefixcache/core/omni"
	"libprefixcache/core/status"
)

// simDevice stands for package gpu: the executor of the cache, over streams whose
// work is done when the scheduler says so. Work of one stream is done in order;
// between streams only a wait for a mark orders anything. Memory that may not be
// read yet is filled with rubbish, so that whoever reads early gets it.
//
//	producer 0, 1:  upload … freeze … mark … overwrite (the next forward)
//	the other one:  arrive … ready                     (of rows behind an event)
//	copy stream:    wait for the mark … land … landed
type simDevice struct {
	w       *omniWorld
	streams [copyStream + 1]stream
	memory  [deviceBuffers][]byte
	buffer  int
	frozen  []byte
	marks   uint64 // recorded
	reached uint64 // the last mark that was passed
	ready   []bool // by event, from 1 on: passed

	pinned   []unsafe.Pointer // by page
	recorded []int            // landings recorded, by page
	landed   []int            // of these, passed

	failIn int // the command that fails, counted from the next one; 0: none
}

const (
	producers     = 2
	copyStream    = producers
	deviceBuffers = 64
	bufferBytes   = 1 << 12
	rubbish       = 0xDB
	// A device address is a number that the cache never follows.
	deviceBase = uintptr(1) << 44
)

type stream struct {
	work []deviceWork
	head int
}

type deviceWork struct {
	kind                          deviceKind
	buffer, page                  int
	from, offset                  int64 // in the buffer, in frozen memory
	bytes, stride, rowBytes, rows int64
	host                          unsafe.Pointer
	mark                          uint64
	image                         []byte // that arrive
}

type deviceKind uint8

const (
	freeze deviceKind = iota
	mark
	waitMark
	land
	landedMark
	overwrite
	arrive
	arrived
	waitReady
)

func newSimDevice(w *omniWorld, pages int) *simDevice {
	return &simDevice{w: w, pinned: make([]unsafe.Pointer, pages), recorded: make([]int, pages), landed: make([]int, pages)}
}

func (s *stream) push(k deviceWork) {
	if s.head == len(s.work) {
		s.work, s.head = s.work[:0], 0
	}
	s.work = append(s.work, k)
}

// can reports whether a stream has work that may be done now.
func (d *simDevice) can(i int) bool {
	s := &d.streams[i]
	if s.head == len(s.work) {
		return false
	}
	switch k := &s.work[s.head]; k.kind {
	case waitMark:
		return k.mark <= d.reached
	case waitReady:
		return d.ready[k.mark]
	}
	return true
}

// advance does the next piece of work of a stream.
func (d *simDevice) advance(i int) {
	s := &d.streams[i]
	k := &s.work[s.head]
	s.head++
	switch k.kind {
	case freeze:
		for r := range k.rows {
			copy(d.frozen[k.offset+r*k.rowBytes:][:k.rowBytes], d.memory[k.buffer][k.from+r*k.stride:])
		}
	case mark:
		d.reached = max(d.reached, k.mark)
	case land:
		if d.pinned[k.page] != k.host {
			failf("device: a copy to page %d runs when its memory is not pinned any more (R-14)", k.page)
		}
		copy(unsafe.Slice((*byte)(k.host), k.bytes), d.frozen)
	case landedMark:
		d.landed[k.page]++
	case overwrite:
		fillBytes(d.memory[k.buffer], 0xEE)
	case arrive:
		copy(d.memory[k.buffer], k.image)
	case arrived:
		d.ready[k.mark] = true
	}
}

func fillBytes(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// settle does all work that is queued.
func (d *simDevice) settle() {
	for busy := true; busy; {
		busy = false
		for i := range d.streams {
			for d.can(i) {
				d.advance(i)
				busy = true
			}
		}
	}
	for i := range d.streams {
		if s := &d.streams[i]; s.head < len(s.work) {
			failf("device: stream %d waits for a mark that nobody recorded", i)
		}
	}
}

func (d *simDevice) busy() bool {
	for i := range d.streams {
		if d.streams[i].head < len(d.streams[i].work) {
			return true
		}
	}
	return false
}

func (d *simDevice) hasLanded(page int) bool {
	return d.landed[page] >= d.recorded[page]
}

// upload gives the device address of memory that holds b.
func (d *simDevice) upload(b []byte) unsafe.Pointer {
	d.buffer = (d.buffer + 1) % deviceBuffers
	if d.memory[d.buffer] == nil {
		d.memory[d.buffer] = make([]byte, bufferBytes)
	}
	// A buffer comes round again long after its step; its work has to be done then.
	for i := range producers {
		s := &d.streams[i]
		for j := s.head; j < len(s.work); j++ {
			if s.work[j].buffer == d.buffer && (s.work[j].kind == freeze || s.work[j].kind == overwrite || s.work[j].kind == arrive) {
				d.settle()
			}
		}
	}
	copy(d.memory[d.buffer], b)
	addr := deviceBase + uintptr(d.buffer)*bufferBytes
	return *(*unsafe.Pointer)(unsafe.Pointer(&addr))
}

// late has rows that were uploaded come from another stream instead, and gives the event
// behind which they are there.
func (d *simDevice) late(list []omni.KeyRows, stream uint64) uint64 {
	if len(d.ready) == 0 {
		d.ready = append(d.ready, false)
	}
	for i := range list {
		if list[i].Place == omni.OnDevice {
			b := d.bufferOf(uintptr(list[i].Rows))
			d.streams[stream].push(deviceWork{kind: arrive, buffer: b, image: append([]byte(nil), d.memory[b]...)})
			fillBytes(d.memory[b], rubbish)
		}
	}
	event := uint64(len(d.ready))
	d.ready = append(d.ready, false)
	d.streams[stream].push(deviceWork{kind: arrived, mark: event})
	return event
}

// forward is the model's next forward: it overwrites a static buffer, in order on the
// stream that produced it.
func (d *simDevice) forward(p unsafe.Pointer, stream uint64) {
	d.streams[stream].push(deviceWork{kind: overwrite, buffer: d.bufferOf(uintptr(p))})
}

func (d *simDevice) bufferOf(addr uintptr) int { return int((addr - deviceBase) / bufferBytes) }

func (d *simDevice) known(c *omni.Command) bool {
	end := c.Src + uintptr((c.Rows-1)*c.Stride+c.RowBytes)
	return c.Src >= deviceBase && end <= deviceBase+deviceBuffers*bufferBytes && d.bufferOf(c.Src) == d.bufferOf(end-1)
}

var errDevice = status.New(status.Device, "simulated driver: the call failed")

// Execute implements omni.Executor. Other threads may run between its commands.
func (d *simDevice) Execute(list []omni.Command) error {
	t := d.w.running
	if list[0].Kind == omni.AwaitLanded {
		if page := list[0].Page; t != nil && !d.hasLanded(page) {
			t.page = page
			t.pause(waits)
			t.page = -1
		}
		return nil
	}
	for i := range list {
		if d.failIn > 0 {
			if d.failIn--; d.failIn == 0 {
				d.w.say("%v fails", list[i].Kind)
				d.settle() // nothing that this list began is under way when it returns
				return errDevice
			}
		}
		if err := d.exec(&list[i]); err != nil {
			return err
		}
		if t != nil {
			d.w.preempt()
		}
	}
	return nil
}

func (d *simDevice) exec(c *omni.Command) error {
	switch c.Kind {
	case omni.CheckRows:
		if !d.known(c) {
			return status.New(status.InvalidArgument, "rows of key %s are not device memory", c.Name)
		}
	case omni.PinPage:
		if d.pinned[c.Page] != nil {
			failf("device: page %d is pinned twice", c.Page)
		}
		d.pinned[c.Page] = c.Host
	case omni.UnpinPage:
		if d.pinned[c.Page] != c.Host {
			failf("device: page %d is unpinned at another address than it was pinned at", c.Page)
		}
		d.pinned[c.Page] = nil
	case omni.ReserveFrozen:
		if c.Bytes > int64(len(d.frozen)) {
			d.frozen = make([]byte, 2*c.Bytes) // what was frozen has landed, so nothing is moved over
		}
		// Nobody may want anything from it now.
		if d.streams[copyStream].head < len(d.streams[copyStream].work) {
			failf("device: frozen memory is written again before the step that it holds has landed")
		}
		fillBytes(d.frozen, rubbish)
	case omni.FreezeRows:
		d.streams[c.Stream].push(deviceWork{kind: freeze, buffer: d.bufferOf(c.Src), from: int64((c.Src - deviceBase) % bufferBytes),
			offset: c.Offset, stride: c.Stride, rowBytes: c.RowBytes, rows: c.Rows})
	case omni.AwaitReady:
		d.streams[c.Stream].push(deviceWork{kind: waitReady, mark: c.Event})
	case omni.RecordFrozen:
		d.marks++
		d.streams[c.Stream].push(deviceWork{kind: mark, mark: d.marks})
	case omni.WaitFrozen:
		d.streams[copyStream].push(deviceWork{kind: waitMark, mark: d.marks})
	case omni.LandPage:
		if d.landed[c.Page] != d.recorded[c.Page] {
			failf("device: page %d is landed on while a copy to it is under way (O-41)", c.Page)
		}
		fillBytes(unsafe.Slice((*byte)(c.Host), c.Bytes), rubbish)
		d.streams[copyStream].push(deviceWork{kind: land, page: c.Page, host: c.Host, bytes: c.Bytes})
	case omni.RecordLanded:
		d.recorded[c.Page]++
		d.streams[copyStream].push(deviceWork{kind: landedMark, page: c.Page})
	default:
		failf("device: unexpected command %v", c.Kind)
	}
	return nil
}

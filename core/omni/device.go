package omni

import (
	"math/bits"
	"unsafe"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// A step with rows on a device differs from one on the host in how its rows get to
// the staging page, and in nothing else:
//
//	model's buffers ──FreezeRows, producer's stream──▶ frozen memory (behind Event)
//	frozen memory ──LandPage, copy stream──▶ staging page ──job──▶ mirror, row store
//
// The page is one piece for all keys, so a step is one copy whatever it carries,
// and the number of commands depends on its keys alone. The commands are carried
// out before the step is published: if one fails, there was no step.
//
// One step's frozen memory is enough: the next save waits for the former step's
// job, which has seen the page land, before it freezes anything.
//
// Deferred rows cross with their step and then wait in the row store like those of
// a host step. Materialize needs them on the host in any case; kept on the device as
// well they would take memory from the model and cross a second time. (The whole
// reasoning, and why no row goes straight to the mirror, is in docs/architecture.md.)

const (
	pageAlign    = 256 // of a key's rows on a page: what device copies like
	minPageBytes = 64 << 10
	maxPitch     = 1<<31 - 1 // of a copy in two dimensions
)

// devicePage is the memory of a staging page that rows land on. It appears with the
// first step that needs the page and grows with the largest.
type devicePage struct {
	mem *rows.Memory // pinned, or nil
}

// checkDeviceRows checks what is particular about rows on a device.
func (c *Cache) checkDeviceRows(r *KeyRows, k *key) error {
	switch {
	case r.Place > OnDevice:
		return status.New(status.InvalidArgument, "place of key %s is %d, expected 0 or 1", k.name, r.Place)
	case c.cfg.Executor == nil:
		return status.New(status.Unsupported, "rows of key %s are on a device, expected host memory: this cache has no device", k.name)
	case c.batch.n > 1 && r.Stride > maxPitch && r.Stride != k.rowBytes:
		return status.New(status.InvalidArgument, "row_stride of key %s is %d, expected at most %d for rows on a device", k.name, r.Stride, maxPitch)
	case r.Dst != nil:
		return status.New(status.InvalidArgument, "dst of key %s is set, expected null: rows on a device stay in the cache until the step is consumed", k.name)
	}
	return nil
}

// admitRows has every device address checked before anything changes. The lock is
// given up meanwhile.
func (c *Cache) admitRows(a *SaveArgs) error {
	list := c.commands[:0]
	for i := range a.Rows {
		if r := &a.Rows[i]; r.Place == OnDevice {
			k := c.keys[r.Key]
			list = append(list, Command{Kind: CheckRows, Stream: a.Stream, Event: a.Event, Name: k.name,
				Src: uintptr(r.Rows), Stride: r.Stride, RowBytes: k.rowBytes, Rows: c.batch.n})
		}
	}
	c.commands = list
	return c.execute(list)
}

// execute carries commands out without the lock.
func (c *Cache) execute(list []Command) (err error) {
	c.unlocked(func() { err = c.cfg.Executor.Execute(list) })
	return err
}

// stageDevice gets the step's rows on their way to its page, which prepare has
// claimed, or gives the page back.
func (c *Cache) stageDevice(a *SaveArgs) error {
	s := &c.batch
	land, total := c.layPage(a)
	if c.cfg.ZeroOnRelease {
		c.pageUse[s.page].bytes = total
	}
	err := c.growPage(s.page, total)
	if err == nil {
		base := c.devicePages[s.page].mem.Base()
		list := append(c.commands[:0], Command{Kind: ReserveFrozen, Stream: a.Stream, Bytes: land})
		if a.Event != 0 {
			list = append(list, Command{Kind: AwaitReady, Stream: a.Stream, Event: a.Event})
		}
		for i := range a.Rows {
			if r := &a.Rows[i]; r.Place == OnDevice {
				k := c.keys[r.Key]
				list = append(list, Command{Kind: FreezeRows, Stream: a.Stream, Name: k.name, Offset: s.pageOffs[i],
					Src: uintptr(r.Rows), Stride: r.Stride, RowBytes: k.rowBytes, Rows: s.n})
			}
		}
		c.commands = append(list,
			Command{Kind: RecordFrozen, Stream: a.Stream},
			Command{Kind: WaitFrozen},
			Command{Kind: LandPage, Page: s.page, Host: base, Bytes: land},
			Command{Kind: RecordLanded, Page: s.page})
		if err = c.execute(c.commands); err == nil {
			host := s.immediateBytes + s.deferredBytes
			for i := range a.Rows {
				if r := &a.Rows[i]; r.Place == OnDevice {
					host -= s.n * c.keys[r.Key].rowBytes
				}
			}
			c.stats.Moves[MoveClone].Bytes += uint64(s.immediateBytes + s.deferredBytes - host)
			c.stats.Moves[MoveLand].Bytes += uint64(land)
			var took int64
			c.unlocked(func() {
				began := c.clock(host)
				c.stageHost(a, base)
				took = c.since(began)
			})
			c.stats.Moves[MoveSave].add(host, took)
			err = c.stopped()
		}
	}
	if err != nil {
		c.releasePage(s.page, pageByStep)
	}
	return err
}

// layPage gives every key its place on the page: first the rows that land, as one
// piece, then the rows that the host brings.
func (c *Cache) layPage(a *SaveArgs) (land, total int64) {
	s := &c.batch
	s.pageOffs = s.pageOffs[:0]
	for range a.Rows {
		s.pageOffs = append(s.pageOffs, 0)
	}
	for _, place := range [...]Place{OnDevice, OnHost} {
		for i := range a.Rows {
			if a.Rows[i].Place == place {
				s.pageOffs[i] = total
				total += s.n * c.keys[a.Rows[i].Key].rowBytes
				if place == OnDevice {
					land = total
				}
				total = (total + pageAlign - 1) &^ (pageAlign - 1)
			}
		}
	}
	return land, total
}

// growPage makes sure that a claimed page has memory for a step. A page that was
// free has no copy under way.
func (c *Cache) growPage(page int, bytes int64) error {
	p := &c.devicePages[page]
	if p.mem != nil && p.mem.Size() >= bytes {
		return nil
	}
	if err := c.dropPage(page); err != nil {
		return err
	}
	size := max(minPageBytes, int64(1)<<bits.Len64(uint64(bytes-1)))
	m, err := rows.Reserve(size, rows.MemoryOptions{Purpose: rows.PurposeStaging, DontDump: true, DontFork: true})
	if err != nil {
		return err
	}
	if err := c.execute(append(c.commands[:0], Command{Kind: PinPage, Page: page, Host: m.Base(), Bytes: m.Size()})); err != nil {
		m.Free()
		return err
	}
	p.mem = m
	return nil
}

// dropPage gives the memory of a page back. Memory that cannot be unpinned is kept:
// the driver may still write to it.
func (c *Cache) dropPage(page int) error {
	p := &c.devicePages[page]
	if p.mem == nil {
		return nil
	}
	if err := c.execute(append(c.commands[:0], Command{Kind: UnpinPage, Page: page, Host: p.mem.Base(), Bytes: p.mem.Size()})); err != nil {
		return err
	}
	if c.cfg.ZeroOnRelease {
		p.mem.Wipe()
	}
	p.mem.Free()
	p.mem = nil
	return nil
}

// stageHost copies the rows that a device step has on the host: to the page, and to
// the caller's destination.
func (c *Cache) stageHost(a *SaveArgs, base unsafe.Pointer) {
	s := &c.batch
	for i := range a.Rows {
		r := &a.Rows[i]
		if r.Place == OnDevice {
			continue
		}
		k := c.keys[r.Key]
		page := unsafe.Add(base, s.pageOffs[i])
		rows.CopyRows(page, k.rowBytes, r.Rows, r.Stride, k.rowBytes, s.n)
		if r.Dst != nil {
			c.copyOut(k, r)
		}
	}
}

// writeDevice makes the job that moves a published step from its page to where its
// rows belong. Eager: this thread carries it out, and so waits for the copy.
func (c *Cache) writeDevice(a *SaveArgs, x *stepCtx) (uint64, error) {
	s, j := &c.batch, &c.job
	x.base = c.devicePages[s.page].mem.Base()
	for i := range x.keys {
		x.keys[i].off = s.pageOffs[i]
	}
	j.step, j.stepTaken, j.stepPage, j.stepBytes, j.stepLands = x.id, false, s.page, s.immediateBytes, true
	c.pages[s.page] |= pageByWrite
	j.stepCopies = c.appendPageCopies(j.stepCopies[:0], a, x.base)
	if c.cfg.Threaded {
		j.stepHeld = true
		return x.id, nil
	}
	id := x.id
	if err := c.drainInline(); err != nil {
		if x, gone := c.steps.pop(id); gone == nil {
			c.endStep(x)
		}
		return 0, err
	}
	return id, nil
}

// appendPageCopies lists the copies from the page: immediate rows into the mirror,
// deferred ones into the rows that publish took for them. Such a row is written even
// if it is lost by then: a planned read may hold it.
func (c *Cache) appendPageCopies(dst []Copy, a *SaveArgs, base unsafe.Pointer) []Copy {
	s := &c.batch
	handles := s.handles
	s.runs = rows.AppendRuns(s.runs[:0], a.Slots)
	for i := range a.Rows {
		k := c.keys[a.Rows[i].Key]
		src := unsafe.Add(base, s.pageOffs[i])
		if k.sched == JoinOnFinish {
			dst = k.store.appendFill(dst, handles[:s.n], src)
			handles = handles[s.n:]
			continue
		}
		for _, r := range s.runs {
			dst = append(dst, Copy{Dst: k.mirror.Row(r.Slot), Src: src, Bytes: r.Len * k.rowBytes})
			src = unsafe.Add(src, r.Len*k.rowBytes)
		}
	}
	return dst
}

// appendFill lists the copies that fill rows of the store from rows without gaps.
func (s *rowStore) appendFill(dst []Copy, handles []int32, src unsafe.Pointer) []Copy {
	for i := 0; i < len(handles); {
		j := i + 1
		for j < len(handles) && s.follows(handles[j-1], handles[j]) {
			j++
		}
		n := int64(j-i) * s.rowBytes
		dst = append(dst, Copy{Dst: s.at(handles[i]), Src: src, Bytes: n})
		src = unsafe.Add(src, n)
		i = j
	}
	return dst
}

// awaitLanded waits until the page of a step has its rows, if any of the reads wants
// one. A step that is written has landed. No other step is waited for.
func (c *Cache) awaitLanded(x *stepCtx, reads []Read) error {
	if x.id <= c.written || !x.readsPage(reads) {
		return nil
	}
	defer c.waited(WaitLanded, c.now())
	x.await[0] = Command{Kind: AwaitLanded, Page: x.page}
	err := c.execute(x.await[:])
	x.landed = err == nil
	if err != nil && c.fatal != nil {
		return c.fatal // the committer met the same
	}
	return err
}

func (x *stepCtx) readsPage(reads []Read) bool {
	for i := range reads {
		if r := &reads[i]; r.Key != NoKey && x.key(r.Key).kept && x.starts[r.First+r.Count] > x.starts[r.First] {
			return true
		}
	}
	return false
}

// freePages gives the memory of every page back. Caller holds mu; nobody else uses
// the cache any more.
func (c *Cache) freePages() (err error) {
	for p := range c.devicePages {
		if e := c.dropPage(p); e != nil && err == nil {
			err = e
		}
	}
	return err
}

package omni

import (
	"strings"
	"testing"

	"libprefixcache/core/status"
)

// put changes one thing of a cache and returns what undoes it.
func put[T any](p *T, v T) (undo func()) {
	old := *p
	*p = v
	return func() { *p = old }
}

// damaged builds a cache in which all that Check looks at is there: open and queued
// deferred writes, free rows, an unconsumed step with planned reads, rows that were
// copied aside for them, and a step that waits for the committer.
func damaged(t *testing.T) *rig {
	r := newRig(t, Config{Threaded: true, InlineBytes: -1, ZeroOnRelease: true, StagingDepth: 6})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 100, "d": 100}, chunk{1, span(0, 8)}))
	r.begin([]uint64{1})
	r.commit() // slots 0 to 7 are in the mirror, and the rows of d are free again
	r.begin(nil, hitOn(9, 8, 0, 1))
	r.save(map[string]uint64{"h": 500, "d": 500}, chunk{9, span(8, 10)})
	r.commit()
	r.begin([]uint64{9}, arrive(2, 3)...) // 9: a queued write
	r.discard(r.save(map[string]uint64{"h": 700}, chunk{2, span(0, 2)}))
	r.discard(r.save(map[string]uint64{"d": 800}, chunk{3, span(20, 23)})) // 3: an open write
	r.check()
	return r
}

// Check is what every random test and every host relies on: it must see each kind of
// damage, and say which.
func TestCheck_NoticesEveryKindOfDamage(t *testing.T) {
	entry := func(c *Cache, num uint64) *request { return &c.reqs.slab[c.reqs.find(num)] }
	hidden := func(c *Cache) *key { return c.keys[c.byName[HiddenKey]] }
	deferred := func(c *Cache) *key { return c.keys[c.byName["d"]] }
	reading := func(t *testing.T, c *Cache) *stepCtx {
		for _, x := range c.steps.all {
			if x.id != 0 && len(x.plans) > 0 && !x.plansClosed {
				return x
			}
		}
		t.Fatal("no step has planned reads")
		return nil
	}
	openWrite := func(c *Cache) *write { return &c.defs.writes[entry(c, 3).open] }
	firstRow := func(c *Cache) *rowMeta {
		return &deferred(c).store.meta[c.defs.strands[openWrite(c).strands].head]
	}
	// freeRow is the first free row of the deferred key.
	freeRow := func(c *Cache) *rowMeta {
		s := &deferred(c).store
		return &s.meta[s.chains[s.low].head]
	}
	granule := func(t *testing.T, k *key) int {
		for g, l := range k.heads {
			if l != 0 {
				return g
			}
		}
		t.Fatal("no granule is read")
		return 0
	}
	for _, d := range []struct {
		says   string
		damage func(t *testing.T, c *Cache) (undo func())
	}{
		{"is not found under its number", func(_ *testing.T, c *Cache) func() { return put(&entry(c, 2).num, 77) }},
		{"requests of which", func(_ *testing.T, c *Cache) func() { return put(&c.reqs.live, c.reqs.live+1) }},
		{"request entries, but", func(_ *testing.T, c *Cache) func() { return put(&c.reqs.slab, append(c.reqs.slab, request{})) }},

		{"older is", func(_ *testing.T, c *Cache) func() { return put(&c.defs.writes[c.defs.newest].older, none) }},
		{"among the pending ones", func(_ *testing.T, c *Cache) func() { return put(&openWrite(c).state, writeWritten) }},
		{"open write of its request", func(_ *testing.T, c *Cache) func() { return put(&entry(c, 3).open, none) }},
		{"pending writes ending in", func(_ *testing.T, c *Cache) func() { return put(&c.defs.pending, c.defs.pending+1) }},
		{"bytes staged, counted", func(_ *testing.T, c *Cache) func() { return put(&c.staged, c.staged+1) }},
		{"is in the queue and", func(_ *testing.T, c *Cache) func() { return put(&c.defs.writes[c.defs.qHead].qPrev, 0) }},
		{"queue ends in", func(_ *testing.T, c *Cache) func() { return put(&c.defs.qTail, c.defs.qTail+1) }},
		{"of write entry", func(_ *testing.T, c *Cache) func() { return put(&firstRow(c).write, noRow) }},
		{"whose word says", func(_ *testing.T, c *Cache) func() {
			w := &deferred(c).words[20]
			return put(w, base(kindDeferred, w.owner()+1))
		}},
		{"is charged", func(_ *testing.T, c *Cache) func() {
			bytes, staged := put(&openWrite(c).bytes, openWrite(c).bytes+1), put(&c.staged, c.staged+1)
			return func() { bytes(); staged() }
		}},

		{"belongs to two steps", func(t *testing.T, c *Cache) func() {
			x := reading(t, c)
			for _, other := range c.steps.all {
				if other != x {
					id, page := put(&other.id, 99), put(&other.page, x.page)
					return func() { id(); page() }
				}
			}
			t.Fatal("one step only")
			return nil
		}},
		{"rows were claimed under a reader", func(t *testing.T, c *Cache) func() {
			x := reading(t, c)
			return put(&x.readers[0].versions, x.readers[0].versions+1)
		}},
		{"is in no list", func(t *testing.T, c *Cache) func() {
			k := hidden(c)
			return put(&k.heads[granule(t, k)], 0)
		}},
		{"steps in use", func(_ *testing.T, c *Cache) func() { return put(&c.running, c.running+1) }},
		{"is held by", func(t *testing.T, c *Cache) func() {
			p := &c.pages[reading(t, c).page]
			return put(p, *p&^pageByStep)
		}},
		{"planned reads, counted", func(_ *testing.T, c *Cache) func() { return put(&hidden(c).readers, hidden(c).readers+1) }},

		{"is free in segment", func(_ *testing.T, c *Cache) func() { return put(&freeRow(c).refs, 1) }},
		{"free rows, counted", func(_ *testing.T, c *Cache) func() {
			s := &deferred(c).store
			return put(&s.chains[s.low].n, s.chains[s.low].n+1)
		}},
		{"references, counted", func(_ *testing.T, c *Cache) func() { return put(&firstRow(c).refs, firstRow(c).refs+1) }},
		{"counted free", func(_ *testing.T, c *Cache) func() { s := &deferred(c).store; return put(&s.free_, s.free_+1) }},

		{"was never claimed", func(_ *testing.T, c *Cache) func() { return put(&hidden(c).words[60], base(kindNever, 5)) }},
		{"belongs to step", func(_ *testing.T, c *Cache) func() { return put(&hidden(c).words[60], base(kindStep, c.last+1)) }},
		{"stands for row", func(_ *testing.T, c *Cache) func() {
			k := deferred(c)
			word, row := put(&k.words[60], base(kindDeferred, 1)), put(&k.rowOf[60], k.rowOf[20])
			return func() { word(); row() }
		}},
		{"is skipped and owned by", func(_ *testing.T, c *Cache) func() { return put(&hidden(c).words[60], base(kindSkipped, 5)) }},
		{"is marked as read", func(t *testing.T, c *Cache) func() {
			k := hidden(c)
			g := granule(t, k)
			return put(&k.busy[g/64], k.busy[g/64]&^(1<<uint(g%64)))
		}},
		{"lists a reader of granule", func(t *testing.T, c *Cache) func() {
			k := hidden(c)
			head, busy := put(&k.heads[15], k.heads[granule(t, k)]), put(&k.busy[0], k.busy[0]|1<<15)
			return func() { head(); busy() }
		}},
	} {
		t.Run(strings.ReplaceAll(d.says, ",", ""), func(t *testing.T) {
			r := damaged(t)
			undo := d.damage(t, r.c)
			err := r.c.Check()
			undo()
			wantErr(t, err, status.Internal, d.says)
			r.check()
		})
	}
}

func TestCheck_NoticesWhatIsLeftOfReleasedRows(t *testing.T) {
	stain := func(p *byte) (undo func()) { return put(p, 1) }
	for says, damage := range map[string]func(c *Cache) func(){
		"slot 60 holds a row that was released": func(c *Cache) func() {
			return stain((*byte)(c.keys[c.byName[HiddenKey]].mirror.Row(60)))
		},
		"free row": func(c *Cache) func() {
			s := &c.keys[c.byName["d"]].store
			return stain((*byte)(s.at(s.chains[s.low].head)))
		},
		"free staging page": func(c *Cache) func() {
			for p, holder := range c.pages {
				if holder == 0 {
					return stain((*byte)(c.keys[c.byName[HiddenKey]].page(p, c.cfg.StagingCapacity)))
				}
			}
			t.Fatal("no page is free")
			return nil
		},
	} {
		t.Run(says, func(t *testing.T) {
			r := damaged(t)
			undo := damage(r.c)
			err := r.c.Check()
			undo()
			wantErr(t, err, status.Internal, says)
		})
	}
}

// After Free there is nothing to look at.
func TestCheck_OfAFreedCacheFindsNothing(t *testing.T) {
	c, err := New(Config{NumBlocks: 1, BlockSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	c.Shutdown()
	if err := c.Free(); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}

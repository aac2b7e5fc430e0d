package rows

import (
	"math/rand"
	"sync"
	"testing"
	"unsafe"

	"libprefixcache/core/status"
)

func checkArena(t *testing.T, a *Arena) {
	t.Helper()
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
}

func mustGet(t *testing.T, a *Arena, n int64) (unsafe.Pointer, uint64) {
	t.Helper()
	p, id, err := a.Get(n)
	if err != nil {
		t.Fatal(err)
	}
	return p, id
}

func TestArenaClasses(t *testing.T) {
	last, lastBytes := int32(-1), int64(0)
	for u := int64(1); u <= maxArena/HugeBytes; u += 1 + u/100 {
		class, bytes := arenaClass(u * HugeBytes)
		below, _ := arenaClass((u-1)*HugeBytes + 1)
		switch {
		case bytes < u*HugeBytes || bytes%HugeBytes != 0:
			t.Fatalf("%d units get %d bytes", u, bytes)
		case bytes > u*HugeBytes && float64(bytes) > float64(u*HugeBytes)*1.125:
			t.Fatalf("%d units get %d bytes, over an eighth more", u, bytes)
		case class < last || class >= arenaClasses || class == last && bytes != lastBytes || class > last && bytes <= lastBytes:
			t.Fatalf("%d units: class %d of %d bytes after class %d of %d", u, class, bytes, last, lastBytes)
		case below != class:
			t.Fatalf("%d units: class %d, one byte over the unit before: %d", u, class, below)
		}
		last, lastBytes = class, bytes
	}
}

func TestArenaReusesTheWarmestBuffer(t *testing.T) {
	a := NewArena(ArenaOptions{})
	defer a.Close()
	p1, id1 := mustGet(t, a, 3<<20)
	p2, id2 := mustGet(t, a, 3<<20)
	if p1 == p2 || uintptr(p1)%HugeBytes != 0 {
		t.Fatalf("buffers at %v and %v", p1, p2)
	}
	for _, id := range []uint64{id1, id2} {
		if err := a.Put(id); err != nil {
			t.Fatal(err)
		}
	}
	p, id := mustGet(t, a, 4<<20)
	if p != p2 || id == id2 {
		t.Errorf("got %v id %#x, expected the buffer freed last, %v, under a new id", p, id, p2)
	}
	if _, id := mustGet(t, a, 2<<20); a.Stats().Hits != 2 {
		t.Errorf("half the size of a free buffer was not served from it (id %#x)", id)
	}
	_, _ = mustGet(t, a, 2<<20)
	if s := a.Stats(); s.Hits != 2 || s.Misses != 3 || s.LiveBytes != 10<<20 || s.LiveBuffers != 3 || s.FreeBytes != 0 {
		t.Errorf("stats %+v", s)
	}
	checkArena(t, a)
}

func TestArenaDoesNotWasteALargeBufferOnASmallRequest(t *testing.T) {
	a := NewArena(ArenaOptions{})
	defer a.Close()
	_, id := mustGet(t, a, 64<<20)
	_ = a.Put(id)
	_, _ = mustGet(t, a, 2<<20)
	if s := a.Stats(); s.Hits != 0 || s.FreeBytes != 64<<20 {
		t.Errorf("stats %+v", s)
	}
}

func TestArenaEvictsTheOldestFreedFirst(t *testing.T) {
	a := NewArena(ArenaOptions{RetainBytes: 8 << 20})
	defer a.Close()
	var ptrs []unsafe.Pointer
	var ids []uint64
	for i := 0; i < 4; i++ {
		p, id := mustGet(t, a, 4<<20)
		ptrs, ids = append(ptrs, p), append(ids, id)
	}
	before := usageOf(PurposeResult).Reserved
	for _, i := range []int{2, 0, 3, 1} {
		if err := a.Put(ids[i]); err != nil {
			t.Fatal(err)
		}
		checkArena(t, a)
	}
	if s := a.Stats(); s.Evicted != 2 || s.FreeBytes != 8<<20 {
		t.Fatalf("stats %+v", s)
	}
	if now := usageOf(PurposeResult).Reserved; before-now != 8<<20 {
		t.Errorf("reserved fell by %d, expected 8 MiB", before-now)
	}
	p, _ := mustGet(t, a, 4<<20)
	q, _ := mustGet(t, a, 4<<20)
	if p != ptrs[1] || q != ptrs[3] {
		t.Errorf("kept %v and %v, expected the two freed last", p, q)
	}
	if n := a.evict(-1); n != 0 {
		t.Errorf("evict of an arena without free buffers returned %d", n)
	}
}

func TestArenaRefusesStaleAndForeignIDs(t *testing.T) {
	a := NewArena(ArenaOptions{})
	defer a.Close()
	_, id := mustGet(t, a, 1<<20)
	if err := a.Put(id); err != nil {
		t.Fatal(err)
	}
	_, again := mustGet(t, a, 1<<20)
	before := a.Stats()
	for _, bad := range []uint64{0, id, id + 1, again + 1, again + 1<<32, ^uint64(0)} {
		if err := a.Put(bad); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("Put(%#x) is %v", bad, err)
		}
	}
	if a.Stats() != before {
		t.Errorf("refused calls changed the stats from %+v to %+v", before, a.Stats())
	}
	for _, n := range []int64{0, -1} {
		if _, _, err := a.Get(n); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("Get(%d) is %v", n, err)
		}
	}
	if _, _, err := a.Get(1 << 62); status.CodeOf(err) != status.OutOfMemory {
		t.Errorf("Get(1<<62) is %v", err)
	}
	if err := a.Put(again); err != nil {
		t.Errorf("the live buffer could not be given back: %v", err)
	}
	// An entry whose memory was evicted is not live either.
	a.evict(-1)
	if err := a.Put(again); status.CodeOf(err) != status.InvalidArgument {
		t.Errorf("Put after eviction is %v", err)
	}
	checkArena(t, a)
}

func TestArenaCloseKeepsLiveBuffers(t *testing.T) {
	base := usageOf(PurposeResult).Reserved
	a := NewArena(ArenaOptions{})
	p, id := mustGet(t, a, 1<<20)
	_, other := mustGet(t, a, 1<<20)
	_ = a.Put(other)
	a.Close()
	*(*byte)(p) = 1 // a view of it may outlive the cache
	if _, _, err := a.Get(1 << 20); status.CodeOf(err) != status.Closed {
		t.Errorf("Get after Close is %v", err)
	}
	if err := a.Put(id); err != nil {
		t.Error(err)
	}
	if now := usageOf(PurposeResult).Reserved; now != base {
		t.Errorf("%d bytes are left after Close and Put", now-base)
	}
	checkArena(t, a)
}

func TestArenaConcurrently(t *testing.T) {
	a := NewArena(ArenaOptions{RetainBytes: 16 << 20})
	defer a.Close()
	var wg sync.WaitGroup
	for g := 0; g < 4; g++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewSource(int64(g)))
			type held struct {
				p  *uint64
				id uint64
			}
			var mine []held
			for i := 0; i < 400; i++ {
				if len(mine) < 4 && r.Intn(2) == 0 {
					p, id, err := a.Get(1 + r.Int63n(6<<20))
					if err != nil {
						t.Error(err)
						return
					}
					*(*uint64)(p) = id // two owners of one buffer would overwrite each other
					mine = append(mine, held{(*uint64)(p), id})
				} else if len(mine) > 0 {
					k := r.Intn(len(mine))
					if *mine[k].p != mine[k].id {
						t.Errorf("buffer %#x was handed out twice", mine[k].id)
					}
					if err := a.Put(mine[k].id); err != nil {
						t.Error(err)
					}
					mine = append(mine[:k], mine[k+1:]...)
				}
			}
			for _, h := range mine {
				_ = a.Put(h.id)
			}
		}()
	}
	wg.Wait()
	checkArena(t, a)
	if s := a.Stats(); s.LiveBuffers != 0 || s.FreeBytes > 16<<20 {
		t.Errorf("stats %+v", s)
	}
}

func TestArenaReuseDoesNotAllocate(t *testing.T) {
	a := NewArena(ArenaOptions{})
	defer a.Close()
	if n := testing.AllocsPerRun(50, func() {
		_, id, _ := a.Get(1 << 20)
		_ = a.Put(id)
	}); n != 0 {
		t.Errorf("%v allocations for one Get and Put", n)
	}
}

// With ZeroOnRelease nobody gets to see what a buffer held.
func TestArenaZeroesOnRelease(t *testing.T) {
	a := NewArena(ArenaOptions{})
	defer a.Close()
	a.ZeroOnRelease()
	const n = 3<<20 + 77
	p, id, err := a.Get(n)
	if err != nil {
		t.Fatal(err)
	}
	b := unsafe.Slice((*byte)(p), n)
	for i := range b {
		b[i] = 7
	}
	if err := a.Put(id); err != nil {
		t.Fatal(err)
	}
	for i, v := range b { // still mapped: it is kept for reuse
		if v != 0 {
			t.Fatalf("byte %d is %d after the buffer was given back", i, v)
		}
	}
	if err := a.Put(id); err == nil {
		t.Error("given back twice")
	}
	if err := a.Check(); err != nil {
		t.Error(err)
	}
}

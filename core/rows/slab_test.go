package rows

import (
	"math/rand"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"libprefixcache/core/status"
)

// slabModel is the oracle: what is live, and the byte each chunk was filled with.
type slabModel struct {
	t    *testing.T
	s    *Slab
	live []slabChunk
}

type slabChunk struct {
	p    unsafe.Pointer
	n    int64
	id   uint64
	fill byte
}

func (m *slabModel) alloc(n int64, fill byte) {
	m.t.Helper()
	p, id, err := m.s.Alloc(n)
	if err != nil {
		m.t.Fatal(err)
	}
	if uintptr(p)%slabGranule != 0 {
		m.t.Fatalf("chunk of %d bytes at %v", n, p)
	}
	b := unsafe.Slice((*byte)(p), n)
	for i := range b {
		b[i] = fill
	}
	m.live = append(m.live, slabChunk{p, n, id, fill})
}

func (m *slabModel) free(i int) {
	m.t.Helper()
	c := m.live[i]
	for j, b := range unsafe.Slice((*byte)(c.p), c.n) {
		if b != c.fill {
			m.t.Fatalf("byte %d of a live chunk of %d bytes was overwritten", j, c.n)
		}
	}
	if err := m.s.Free(c.id); err != nil {
		m.t.Fatal(err)
	}
	m.live[i] = m.live[len(m.live)-1]
	m.live = m.live[:len(m.live)-1]
}

func (m *slabModel) check() {
	m.t.Helper()
	if err := m.s.Check(); err != nil {
		m.t.Fatal(err)
	}
	at := slices.Clone(m.live)
	slices.SortFunc(at, func(a, b slabChunk) int { return int(uintptr(a.p)) - int(uintptr(b.p)) })
	for i := 1; i < len(at); i++ {
		if uintptr(at[i-1].p)+uintptr(at[i-1].n) > uintptr(at[i].p) {
			m.t.Fatalf("chunks at %v (%d bytes) and %v overlap", at[i-1].p, at[i-1].n, at[i].p)
		}
	}
}

// randomSize is mostly a row or a few, sometimes a prefill.
func randomSize(r *rand.Rand) int64 {
	switch r.Intn(20) {
	case 0:
		return 1 + r.Int63n(3<<20)
	case 1, 2, 3:
		return 1 + r.Int63n(200_000)
	default:
		return 1 + r.Int63n(9000)
	}
}

func TestSlabAgreesWithTheModel(t *testing.T) {
	for seed := int64(0); seed < 4; seed++ {
		r := rand.New(rand.NewSource(seed))
		m := &slabModel{t: t, s: NewSlab(SlabOptions{RetainBytes: []int64{0, -1}[seed%2]})}
		for op := 0; op < 1500; op++ {
			if grow := op/300%2 == 0; len(m.live) == 0 || r.Intn(10) < 3 || grow && r.Intn(10) < 6 {
				m.alloc(randomSize(r), byte(op))
			} else {
				m.free(r.Intn(len(m.live)))
			}
			if op%50 == 0 {
				m.check()
			}
		}
		for len(m.live) > 0 {
			m.free(r.Intn(len(m.live)))
		}
		m.check()
		if st := m.s.Stats(); st.LiveBytes != 0 || st.Reserved > m.s.retain && m.s.retain > 0 || seed%2 == 1 && st.Reserved != 0 {
			t.Errorf("empty slab: %+v", st)
		}
		m.s.Trim()
		if st := m.s.Stats(); st.Reserved != 0 || st.Segments != 0 {
			t.Errorf("after Trim: %+v", st)
		}
		m.check()
		m.s.Close()
	}
}

// The reserved memory follows what is live, not how much was ever allocated, and
// the book-keeping does not grow either.
func TestSlabStaysFlat(t *testing.T) {
	s := NewSlab(SlabOptions{})
	defer s.Close()
	r := rand.New(rand.NewSource(9))
	ops := 2_000_000
	if invariants {
		ops = 20_000
	}
	var ids [600]uint64
	var peak int64
	var nodes int
	var early int64
	for i := 0; i < ops; i++ {
		k := r.Intn(len(ids))
		if ids[k] != 0 {
			if err := s.Free(ids[k]); err != nil {
				t.Fatal(err)
			}
		}
		_, id, err := s.Alloc(randomSize(r))
		if err != nil {
			t.Fatal(err)
		}
		ids[k] = id
		if i%1024 == 0 {
			peak = max(peak, s.Stats().LiveBytes)
		}
		if i == ops/4 {
			early, nodes = s.Stats().Reserved, len(s.nodes)
		}
	}
	st := s.Stats()
	if st.Reserved > early+2*segmentBytes || len(s.nodes) > nodes*2 {
		t.Errorf("grew from %d bytes and %d nodes to %d and %d", early, nodes, st.Reserved, len(s.nodes))
	}
	if st.Reserved > peak*3/2+DefaultSlabRetain {
		t.Errorf("%d bytes reserved for a peak of %d live", st.Reserved, peak)
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d operations: peak %d MiB live, %d MiB reserved, %d nodes", 2*ops, peak>>20, st.Reserved>>20, len(s.nodes))
}

func TestSlabRefusesStaleAndForeignIDs(t *testing.T) {
	s := NewSlab(SlabOptions{})
	defer s.Close()
	_, a, _ := s.Alloc(100)
	_, b, _ := s.Alloc(100)
	if err := s.Free(a); err != nil {
		t.Fatal(err)
	}
	_, c, _ := s.Alloc(100)
	if c == a {
		t.Fatal("an id was used twice")
	}
	before := s.Stats()
	for _, bad := range []uint64{0, a, b + 1<<32, 999, ^uint64(0)} {
		if err := s.Free(bad); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("Free(%#x) is %v", bad, err)
		}
	}
	for _, n := range []int64{0, -5} {
		if _, _, err := s.Alloc(n); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("Alloc(%d) is %v", n, err)
		}
	}
	if _, _, err := s.Alloc(maxChunk + 1); status.CodeOf(err) != status.OutOfMemory {
		t.Errorf("Alloc beyond the largest chunk is %v", err)
	}
	if s.Stats() != before {
		t.Errorf("refused calls changed the stats from %+v to %+v", before, s.Stats())
	}
	s.Close()
	if _, _, err := s.Alloc(1); status.CodeOf(err) != status.Closed {
		t.Errorf("Alloc after Close is %v", err)
	}
	if err := s.Free(b); status.CodeOf(err) != status.InvalidArgument {
		t.Errorf("Free after Close is %v", err)
	}
}

func TestSlabGivesLargeChunksTheirOwnSegment(t *testing.T) {
	base := UsageOf(PurposeDeferred).Reserved
	s := NewSlab(SlabOptions{RetainBytes: -1})
	p, id, err := s.Alloc(100<<20 + 1)
	if err != nil {
		t.Fatal(err)
	}
	*(*byte)(unsafe.Add(p, 100<<20)) = 1
	if got := UsageOf(PurposeDeferred).Reserved - base; got != 102<<20 {
		t.Errorf("%d bytes reserved, expected 102 MiB", got)
	}
	if err := s.Free(id); err != nil {
		t.Fatal(err)
	}
	if got := UsageOf(PurposeDeferred).Reserved - base; got != 0 {
		t.Errorf("%d bytes left", got)
	}
}

func TestSlabConcurrently(t *testing.T) {
	s := NewSlab(SlabOptions{RetainBytes: -1})
	defer s.Close()
	var wg sync.WaitGroup
	for g := 0; g < 4; g++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewSource(int64(g)))
			var ps []*uint64
			var ids []uint64
			for i := 0; i < 2000; i++ {
				p, id, err := s.Alloc(8 + r.Int63n(5000))
				if err != nil {
					t.Error(err)
					return
				}
				*(*uint64)(p) = id
				ps, ids = append(ps, (*uint64)(p)), append(ids, id)
				if k := r.Intn(len(ids)); r.Intn(3) > 0 {
					if *ps[k] != ids[k] {
						t.Errorf("chunk %#x was handed out twice", ids[k])
					}
					if err := s.Free(ids[k]); err != nil {
						t.Error(err)
					}
					ps, ids = slices.Delete(ps, k, k+1), slices.Delete(ids, k, k+1)
				}
			}
			for _, id := range ids {
				_ = s.Free(id)
			}
		}()
	}
	wg.Wait()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.LiveChunks != 0 || st.Reserved != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestSlabReuseDoesNotAllocate(t *testing.T) {
	s := NewSlab(SlabOptions{})
	defer s.Close()
	r := rand.New(rand.NewSource(1))
	var ids [64]uint64
	step := func() {
		k := r.Intn(len(ids))
		if ids[k] != 0 {
			_ = s.Free(ids[k])
		}
		_, ids[k], _ = s.Alloc(1 + r.Int63n(100_000))
	}
	for i := 0; i < 5000; i++ {
		step()
	}
	if n := testing.AllocsPerRun(2000, step); n != 0 {
		t.Errorf("%v allocations for one Free and Alloc", n)
	}
}

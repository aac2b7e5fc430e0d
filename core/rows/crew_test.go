package rows

import (
	"bytes"
	"fmt"
	"math/rand"
	"runtime"
	"sync"
	"testing"
	"unsafe"
)

// least is a small move, so that the tests are quick.
const least = 64 << 10

func newTestCrew(t *testing.T, threads int) *Crew {
	c := NewCrew(threads, least)
	t.Cleanup(c.Close)
	return c
}

// moved does one of each move, for a seed, and gives all bytes that they wrote.
func moved(t *testing.T, v *Moves, crew *Crew, seed int64, size, width, stride int) (all [][]byte) {
	r := rand.New(rand.NewSource(seed))
	n := size/width + 5 + r.Intn(9)
	slots := int64(2 * n)
	m, err := NewMirror(slots, int64(width), MirrorOptions{SmallPages: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	var ids []int64 // each once, in runs of any length
	for _, at := range r.Perm(n / 5) {
		for i := range 1 + r.Intn(10) {
			ids = append(ids, int64(10*at+i))
		}
	}
	src, tee := newGuarded(len(ids)*stride, r.Intn(64)), newGuarded(len(ids)*width, r.Intn(64))
	fill(r, src.body)
	cut := r.Intn(len(ids))
	v.Begin(crew, int64(len(ids)*width))
	v.ScatterTee(m, src.ptr(), int64(stride), ids[:cut], tee.ptr())
	v.ScatterTee(m, unsafe.Add(src.ptr(), cut*stride), int64(stride), ids[cut:], unsafe.Add(tee.ptr(), cut*width))
	v.End()

	spans := appendSpans(nil, 0, ids)
	r.Shuffle(len(spans), func(i, j int) { spans[i], spans[j] = spans[j], spans[i] })
	cut = r.Intn(len(spans))
	dst, rows := newGuarded(len(ids)*width, r.Intn(64)), newGuarded(len(ids)*stride, r.Intn(64))
	v.Begin(crew, int64(len(ids)*width))
	v.GatherSpans(m, dst.ptr(), spans[:cut])
	v.GatherSpans(m, dst.ptr(), spans[cut:])
	v.CopyRows(rows.ptr(), int64(stride), src.ptr(), int64(stride), int64(width), int64(len(ids)))
	v.End()
	if !src.intact() || !tee.intact() || !dst.intact() || !rows.intact() {
		t.Error("bytes outside a destination")
	}
	return [][]byte{bytes.Clone(unsafe.Slice((*byte)(m.Row(0)), slots*int64(width))), tee.body, dst.body, rows.body}
}

func TestSharedMovesWriteWhatOneThreadWrites(t *testing.T) {
	for _, threads := range []int{2, 3, 8} {
		crew := newTestCrew(t, threads)
		var v, alone Moves
		for i, c := range []struct{ width, gap, size int }{
			{24, 0, 6 * least}, {100, 0, 6 * least}, {100, 40, 6 * least}, {256, 0, 6 * least}, {4096, 0, 6 * least},
			{4096, 40, 6 * least}, {100_000, 0, 10 * least}, {4096, 0, 3 * teeStreamBytes},
		} {
			t.Run(fmt.Sprintf("%d threads/%d+%d, %d KiB", threads, c.width, c.gap, c.size>>10), func(t *testing.T) {
				want := moved(t, &alone, nil, int64(i), c.size, c.width, c.width+c.gap)
				for j, got := range moved(t, &v, crew, int64(i), c.size, c.width, c.width+c.gap) {
					if !bytes.Equal(got, want[j]) {
						t.Errorf("move %d (scatter, tee, gather, copy): other bytes than of one thread", j)
					}
				}
			})
		}
	}
}

// shareOne is one move that is just large enough.
func shareOne(v *Moves, c *Crew, dst, src unsafe.Pointer) {
	v.Begin(c, least)
	v.CopyRows(dst, 4096, src, 4096, 4096, least/4096)
	v.End()
}

func TestSmallMovesStartNoThread(t *testing.T) {
	crew := newTestCrew(t, 4)
	src, dst := mustReserve(t, least, MemoryOptions{}).Base(), mustReserve(t, least, MemoryOptions{}).Base()
	var v Moves
	v.Begin(crew, least-1)
	if v.CopyRows(dst, 4096, src, 4096, 4096, 16); len(v.list) != 0 {
		t.Error("a move below the least was put off until End")
	}
	v.End()
	if n := crew.Running(); n != 0 {
		t.Errorf("%d threads after a small move, expected none", n)
	}
	shareOne(&v, crew, dst, src)
	if n := crew.Running(); n != 3 {
		t.Errorf("%d threads after a large move, expected 3", n)
	}
}

func TestCrewsOfManyCachesLeaveNothingBehind(t *testing.T) {
	src, dst := mustReserve(t, least, MemoryOptions{}).Base(), mustReserve(t, least, MemoryOptions{}).Base()
	processors := 0
	for i := range 50 {
		crew := NewCrew(3, least)
		var v Moves
		if i%5 != 0 { // some never share
			shareOne(&v, crew, dst, src)
		}
		crew.Close()
		crew.Close()
		if n := crew.Running(); n != 0 {
			t.Errorf("%d threads of a closed crew", n)
		}
		if i == 1 {
			processors = runtime.GOMAXPROCS(0)
		}
	}
	if n := runtime.GOMAXPROCS(0); n != processors {
		t.Errorf("GOMAXPROCS grew from %d to %d with crews that are gone", processors, n)
	}
}

func TestACrewOfOneNeverShares(t *testing.T) {
	if c := NewCrew(1, 0); c != nil {
		t.Errorf("a crew of %d beside the caller for 1 thread", c.helpers)
	}
	if n := NewCrew(1<<20, 0).helpers + 1; n != MaxCopyThreads {
		t.Errorf("%d threads, expected %d", n, MaxCopyThreads)
	}
	if n := DefaultCopyThreads(); n < 1 || n > 4 || n > processors {
		t.Errorf("default is %d threads on %d processors", n, processors)
	}
}

// Several threads with large moves at once: one has the crew, the others go alone.
func TestACrewThatIsAtWorkIsNotWaitedFor(t *testing.T) {
	crew := newTestCrew(t, 3)
	var done sync.WaitGroup
	for i := range 4 {
		src, dst := mustReserve(t, least, MemoryOptions{}), mustReserve(t, least, MemoryOptions{})
		done.Go(func() {
			var v Moves
			r := rand.New(rand.NewSource(int64(i)))
			for range 30 {
				fill(r, src.bytes())
				shareOne(&v, crew, dst.Base(), src.Base())
				if !bytes.Equal(src.bytes(), dst.bytes()) {
					t.Error("wrong bytes")
				}
			}
		})
	}
	done.Wait()
}

// Whoever's part it was, the panic is the caller's, and comes when no thread is at
// the move any more.
func TestAPanicInAPartIsTheCallers(t *testing.T) {
	crew := newTestCrew(t, 2)
	src, dst := mustReserve(t, least, MemoryOptions{}), mustReserve(t, least, MemoryOptions{})
	var v Moves
	for i := range 8 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			v.Begin(crew, least)
			v.CopyRows(dst.Base(), 4096, src.Base(), 4096, 4096, least/4096)
			v.list[i].kind, v.list[i].from = partGather, -1
			v.End()
		}()
		if n := crew.left.Load(); n != 0 {
			t.Errorf("%d parts left", n)
		}
	}
	fill(rand.New(rand.NewSource(1)), src.bytes())
	if shareOne(&v, crew, dst.Base(), src.Base()); !bytes.Equal(src.bytes(), dst.bytes()) {
		t.Error("wrong bytes after a panic")
	}
}

func TestSharedMovesDoNotAllocate(t *testing.T) {
	m, err := NewMirror(2*least/4096, 4096, MirrorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	src, dst := mustReserve(t, least, MemoryOptions{}).Base(), mustReserve(t, least, MemoryOptions{}).Base()
	var slots []int64
	for i := range int64(least / 4096) {
		slots = append(slots, 2*i)
	}
	spans := appendSpans(nil, 0, slots)
	crew := newTestCrew(t, 2)
	var v Moves
	if n := testing.AllocsPerRun(20, func() {
		v.Begin(crew, least)
		v.ScatterTee(m, src, 4096, slots, dst)
		v.End()
		v.Begin(crew, least)
		v.GatherSpans(m, dst, spans)
		v.End()
		shareOne(&v, crew, dst, src)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMovesKeepNoAddress(t *testing.T) {
	crew := newTestCrew(t, 2)
	src, dst := mustReserve(t, least, MemoryOptions{}).Base(), mustReserve(t, least, MemoryOptions{}).Base()
	var v Moves
	shareOne(&v, crew, dst, src)
	for i, p := range v.list[:cap(v.list)] {
		if p.src != nil || p.dst != nil || p.slots != nil {
			t.Fatalf("part %d still has an address of the caller", i)
		}
	}
	v.Begin(crew, least) // an empty list gives the crew back, too
	v.End()
	if v.Begin(crew, least); v.crew == nil {
		t.Error("the crew is still taken")
	}
	v.End()
}

package rows

import (
	"bytes"
	"fmt"
	"math/rand"
	"testing"
	"unsafe"
)

// model is the oracle: a mirror as a map of rows, and nothing shared with the
// package but the meaning of a slot.
type model struct {
	row  int
	rows map[int64][]byte
}

func (m *model) get(slot int64) []byte {
	if b, ok := m.rows[slot]; ok {
		return b
	}
	return make([]byte, m.row)
}

// move is one row of a plan: source or destination row, and slot.
type move struct{ row, slot int64 }

func expand(spans []Span) (ms []move) {
	for _, s := range spans {
		for i := int64(0); i < s.Len; i++ {
			ms = append(ms, move{s.Row + i, s.Slot + i})
		}
	}
	return ms
}

// randomSlots mixes runs, single slots and repeats.
func randomSlots(r *rand.Rand, n int, limit int64) []int64 {
	var s []int64
	for len(s) < n {
		at, l := r.Int63n(limit), int64(1)
		if r.Intn(2) == 0 {
			l = 1 + r.Int63n(9)
		}
		for i := int64(0); i < l && at+i < limit && len(s) < n; i++ {
			s = append(s, at+i)
		}
	}
	return s
}

// scatter and gather are for tests that name single slots and look at no tee.
func (m *Mirror) scatter(src unsafe.Pointer, stride int64, slots []int64) {
	tee := make([]byte, int64(len(slots))*m.rowBytes)
	m.ScatterTee(src, stride, slots, unsafe.Pointer(unsafe.SliceData(tee)))
}

func (m *Mirror) gather(dst unsafe.Pointer, slots []int64) {
	m.GatherSpans(dst, appendSpans(nil, 0, slots))
}

// checkMoves runs random scatters and gathers of one width against the model.
func checkMoves(r *rand.Rand, slots int64, row, rounds, most int) error {
	m, err := NewMirror(slots, int64(row), MirrorOptions{SmallPages: r.Intn(2) == 0})
	if err != nil {
		return err
	}
	defer m.Free()
	ref := &model{row: row, rows: map[int64][]byte{}}
	for round := 0; round < rounds; round++ {
		n := 1 + r.Intn(most)
		ids := randomSlots(r, n, slots)
		spans := appendSpans(nil, 0, ids)
		stride := row
		if r.Intn(2) == 0 {
			stride += r.Intn(130)
		}
		src := newGuarded((n-1)*stride+row, r.Intn(64))
		fill(r, src.body)
		tee := newGuarded(n*row, r.Intn(64))
		wantTee := bytes.Clone(tee.body)
		what := fmt.Sprintf("kernel %s row %d stride %d n %d", Kernel(), row, stride, n)
		m.ScatterTee(src.ptr(), int64(stride), ids, tee.ptr())
		for _, mv := range expand(spans) {
			b := src.body[int(mv.row)*stride:][:row]
			ref.rows[mv.slot] = bytes.Clone(b)
			copy(wantTee[int(mv.row)*row:], b)
		}
		if !bytes.Equal(tee.body, wantTee) || !tee.intact() || !src.intact() {
			return fmt.Errorf("scatter %s: wrong tee", what)
		}
		for slot := int64(0); slot < slots; slot++ {
			if !bytes.Equal(unsafe.Slice((*byte)(m.Row(slot)), row), ref.get(slot)) {
				return fmt.Errorf("scatter %s: wrong row in slot %d", what, slot)
			}
		}
		if r.Intn(2) == 0 {
			// Leave some out and take them in any order: that is what spans are for.
			r.Shuffle(len(spans), func(i, j int) { spans[i], spans[j] = spans[j], spans[i] })
			spans = spans[:1+r.Intn(len(spans))]
		}
		dst := newGuarded(n*row, r.Intn(64))
		want := bytes.Clone(dst.body)
		for _, mv := range expand(spans) {
			copy(want[int(mv.row)*row:], ref.get(mv.slot))
		}
		m.GatherSpans(dst.ptr(), spans)
		if !bytes.Equal(dst.body, want) || !dst.intact() {
			return fmt.Errorf("gather %s: wrong bytes", what)
		}
	}
	return nil
}

func TestMovesAgreeWithTheModel(t *testing.T) {
	widths := []int{1, 2, 3, 7, 8, 16, 63, 64, 65, 127, 128, 192, 200, 255, 256, 257, 1000, 4096, 4100, 20_000, 70_000}
	for _, k := range Kernels() {
		t.Run(k, func(t *testing.T) {
			withKernel(t, k)
			r := rand.New(rand.NewSource(7))
			for _, w := range widths {
				if err := checkMoves(r, 40, w, 6, 60); err != nil {
					t.Fatal(err)
				}
			}
			for i := 0; i < 30; i++ {
				if err := checkMoves(r, 1+r.Int63n(50), 1+r.Intn(600), 4, 40); err != nil {
					t.Fatal(err)
				}
			}
			// Rows of megabytes: pieces, and a gather that is streamed.
			if err := checkMoves(r, 5, 2<<20+24, 3, 5); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func FuzzMoves(f *testing.F) {
	f.Add(int64(1), uint16(1), uint8(40))
	f.Add(int64(2), uint16(64), uint8(40))
	f.Add(int64(3), uint16(4096), uint8(9))
	f.Fuzz(func(t *testing.T, seed int64, row uint16, slots uint8) {
		for _, k := range supported {
			active.Store(k)
			r := rand.New(rand.NewSource(seed))
			if err := checkMoves(r, 1+int64(slots), 1+int(row)%9000, 2, 60); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A streamed gather is its own path; make sure that the test above reached it
// with a batch that is sure to be large enough.
func TestGatherStreamsLargeBatches(t *testing.T) {
	const row, slots = 256<<10 + 8, 20
	for _, k := range Kernels() {
		withKernel(t, k)
		m, err := NewMirror(slots, row, MirrorOptions{})
		if err != nil {
			t.Fatal(err)
		}
		src := make([]byte, row*slots)
		fill(rand.New(rand.NewSource(3)), src)
		ids := make([]int64, slots)
		for i := range ids {
			ids[i] = int64(slots - 1 - i)
		}
		m.scatter(unsafe.Pointer(&src[0]), row, ids)
		if s := m.source(nil, slots); !s.stream {
			t.Fatalf("a gather of %d bytes is not streamed", row*slots)
		}
		dst := newGuarded(row*slots, 5)
		m.gather(dst.ptr(), ids)
		if !bytes.Equal(dst.body, src) || !dst.intact() {
			t.Errorf("%s: wrong bytes", k)
		}
		m.Free()
	}
}

// The same for a tee that is streamed: with and without gaps between source rows,
// at addresses that are no multiple of a line.
func TestScatterTeeStreamsLargeBatches(t *testing.T) {
	const row, slots = 256<<10 + 8, 20
	for _, k := range Kernels() {
		withKernel(t, k)
		for _, stride := range []int64{row, row + 24} {
			m, err := NewMirror(slots, row, MirrorOptions{})
			if err != nil {
				t.Fatal(err)
			}
			src := make([]byte, stride*slots)
			fill(rand.New(rand.NewSource(4)), src)
			ids := make([]int64, slots)
			for i := range ids {
				ids[i] = int64(i+5) % slots
			}
			tee := newGuarded(row*slots, 3)
			if s := m.sink(nil, stride, tee.ptr(), slots); !s.large {
				t.Fatalf("a tee of %d bytes is not streamed", row*slots)
			}
			m.ScatterTee(unsafe.Pointer(&src[0]), stride, ids, tee.ptr())
			for i, id := range ids {
				want := src[int64(i)*stride:][:row]
				if !bytes.Equal(unsafe.Slice((*byte)(m.Row(id)), row), want) {
					t.Errorf("%s, stride %d: wrong bytes in slot %d", k, stride, id)
				}
				if !bytes.Equal(tee.body[i*row:][:row], want) {
					t.Errorf("%s, stride %d: wrong bytes in row %d of the tee", k, stride, i)
				}
			}
			if !tee.intact() {
				t.Errorf("%s, stride %d: bytes around the tee", k, stride)
			}
			m.Free()
		}
	}
}

func TestScatterOfStrideZeroRepeatsTheRow(t *testing.T) {
	m, err := NewMirror(8, 300, MirrorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	row := bytes.Repeat([]byte{1, 2, 3}, 100)
	m.scatter(unsafe.Pointer(&row[0]), 0, []int64{1, 2, 3, 7})
	for s := int64(0); s < 8; s++ {
		got := unsafe.Slice((*byte)(m.Row(s)), 300)
		want := row
		if s == 0 || s > 3 && s < 7 {
			want = make([]byte, 300)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("slot %d is wrong", s)
		}
	}
}

func TestCopyRowsAndZero(t *testing.T) {
	r := rand.New(rand.NewSource(5))
	for i := 0; i < 200; i++ {
		row, n := 1+r.Intn(500), 1+r.Intn(20)
		ds, ss := row+r.Intn(2)*r.Intn(70), row+r.Intn(2)*r.Intn(70)
		src, dst := newGuarded((n-1)*ss+row, r.Intn(64)), newGuarded((n-1)*ds+row, r.Intn(64))
		fill(r, src.body)
		want := bytes.Clone(dst.body)
		for j := 0; j < n; j++ {
			copy(want[j*ds:j*ds+row], src.body[j*ss:])
		}
		CopyRows(dst.ptr(), int64(ds), src.ptr(), int64(ss), int64(row), int64(n))
		if !bytes.Equal(dst.body, want) || !dst.intact() {
			t.Fatalf("CopyRows row %d n %d strides %d %d: wrong bytes", row, n, ds, ss)
		}
	}
	big := newGuarded(2*pieceBytes+77, 3)
	src := newGuarded(2*pieceBytes+77, 1)
	fill(r, src.body)
	Copy(big.ptr(), src.ptr(), int64(len(src.body)))
	if !bytes.Equal(big.body, src.body) || !big.intact() {
		t.Error("Copy over several pieces: wrong bytes")
	}
	Zero(big.ptr(), int64(len(big.body)))
	if !bytes.Equal(big.body, make([]byte, len(big.body))) || !big.intact() {
		t.Error("Zero over several pieces: wrong bytes")
	}
}

func TestMovesDoNotAllocate(t *testing.T) {
	m, err := NewMirror(64, 4096, MirrorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	a, b := mustReserve(t, 16*4096, MemoryOptions{}).Base(), mustReserve(t, 16*4096, MemoryOptions{}).Base()
	slots := []int64{1, 2, 3, 9, 8, 60, 61, 5, 12, 30, 31, 32, 33, 0, 40, 41}
	spans := appendSpans(nil, 0, slots)
	if n := testing.AllocsPerRun(20, func() {
		m.ScatterTee(a, 4096, slots, b)
		m.GatherSpans(b, spans)
		CopyRows(a, 4096, b, 4096, 4096, 16)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

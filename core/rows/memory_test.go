package rows

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"libprefixcache/core/status"
)

func mustReserve(t *testing.T, n int64, o MemoryOptions) *Memory {
	t.Helper()
	m, err := Reserve(n, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	return m
}

func TestReserveRoundsAlignsAndCounts(t *testing.T) {
	for _, c := range []struct{ bytes, size, align int64 }{
		{1, PageBytes, PageBytes},
		{PageBytes + 1, 2 * PageBytes, PageBytes},
		{HugeBytes, HugeBytes, HugeBytes},
		{HugeBytes + 1, 2 * HugeBytes, HugeBytes},
	} {
		for _, o := range []MemoryOptions{{}, {SmallPages: true, DontDump: true}} {
			o.Purpose = PurposeMeta
			before := usageOf(PurposeMeta)
			m := mustReserve(t, c.bytes, o)
			if m.Size() != c.size || int64(uintptr(m.Base()))%c.align != 0 || m.Purpose() != PurposeMeta {
				t.Errorf("Reserve(%d) has %d bytes at %v", c.bytes, m.Size(), m.Base())
			}
			if u := usageOf(PurposeMeta); u.Reserved != before.Reserved+c.size || u.Regions != before.Regions+1 {
				t.Errorf("counters went from %+v to %+v for %d bytes", before, u, c.size)
			}
			b := m.bytes()
			if b[0] != 0 || b[len(b)-1] != 0 {
				t.Error("memory is not zero")
			}
			b[0], b[len(b)-1] = 1, 1
			m.Free()
			m.Free()
			if u := usageOf(PurposeMeta); u != before || m.Base() != nil {
				t.Errorf("counters are %+v after Free, expected %+v", u, before)
			}
		}
	}
}

// A mirror is sized for every slot there may be; reserving must cost nothing.
func TestReservedIsNotResident(t *testing.T) {
	m := mustReserve(t, 64<<30, MemoryOptions{Purpose: PurposeStaging, SmallPages: true})
	// Where the system has huge pages "always", without advice, a store makes one present.
	_ = syscall.Madvise(m.bytes(), syscall.MADV_NOHUGEPAGE)
	if got := m.Resident(); got != 0 {
		t.Fatalf("%d bytes resident before the first touch", got)
	}
	*(*byte)(m.At(40<<30 + 5)) = 1
	if got := m.Resident(); got != PageBytes {
		t.Errorf("%d bytes resident after one store, expected a page", got)
	}
	m.Free()
}

func TestTouchKeepsBytesAndDiscardZeroes(t *testing.T) {
	m := mustReserve(t, 16*PageBytes, MemoryOptions{})
	at := func(off int64) *byte { return (*byte)(m.At(off)) }
	*at(3*PageBytes + 7) = 42
	if err := m.Touch(2*PageBytes+9, 3*PageBytes); err != nil {
		t.Fatal(err)
	}
	if got := m.Resident(); got != 4*PageBytes {
		t.Errorf("%d pages resident, expected the 4 that the range meets", got/PageBytes)
	}
	if *at(3*PageBytes + 7) != 42 {
		t.Error("Touch changed a byte")
	}
	*at(5*PageBytes - 1) = 7
	if err := m.Discard(3*PageBytes+1, 2*PageBytes); err != nil {
		t.Fatal(err)
	}
	// Only page 4 lies wholly inside.
	if *at(3*PageBytes + 7) != 42 || *at(5*PageBytes - 1) != 0 {
		t.Error("Discard dropped a page that it should keep, or kept one")
	}
	for _, c := range []struct{ off, n int64 }{{-1, 1}, {0, 16*PageBytes + 1}, {17 * PageBytes, 0}, {1, math.MaxInt64}, {5, -1}} {
		if err := m.Touch(c.off, c.n); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("Touch(%d, %d) is %v", c.off, c.n, err)
		}
		if err := m.Discard(c.off, c.n); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("Discard(%d, %d) is %v", c.off, c.n, err)
		}
	}
}

// Wiping a mirror that is mostly untouched must not make it present.
func TestWipeZeroesWhatIsPresentOnly(t *testing.T) {
	m := mustReserve(t, 256<<20, MemoryOptions{SmallPages: true})
	for _, off := range []int64{0, 70<<20 + 123, 256<<20 - 1} {
		*(*byte)(m.At(off)) = 1
	}
	before := m.Resident()
	m.Wipe()
	if got := m.Resident(); got != before {
		t.Errorf("%d bytes resident, %d before", got, before)
	}
	for _, off := range []int64{0, 70<<20 + 123, 256<<20 - 1} {
		if *(*byte)(m.At(off)) != 0 {
			t.Errorf("byte %d is left", off)
		}
	}
}

// resident is the physical memory of the process.
func resident(t *testing.T) int64 {
	t.Helper()
	var size, pages int64
	text, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(text), &size, &pages)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pages * PageBytes
}

// Memory that was only read is backed by the system's one page of zeros: a store would
// give it pages of its own.
func TestWipeStoresNothingWhereZerosAre(t *testing.T) {
	m := mustReserve(t, 256<<20, MemoryOptions{SmallPages: true})
	for off := int64(0); off < m.Size(); off += PageBytes {
		if *(*byte)(m.At(off)) != 0 {
			t.Fatal("fresh memory is not zero")
		}
	}
	*(*byte)(m.At(100 << 20)) = 1
	before := resident(t)
	m.Wipe()
	if grown := resident(t) - before; grown > 64<<20 {
		t.Errorf("%d bytes became present", grown)
	}
	if *(*byte)(m.At(100 << 20)) != 0 {
		t.Error("a byte is left")
	}
}

// A scan says what is zero and what is not, wherever the pages lie, and makes none present.
func TestScanFindsWhatIsNotZeroAndMakesNothingPresent(t *testing.T) {
	m := mustReserve(t, 200<<20, MemoryOptions{SmallPages: true})
	marks := []int64{5, 3*PageBytes - 1, 64<<20 - 1, 64 << 20, 130 << 20, 200<<20 - 1}
	for _, off := range marks {
		*(*byte)(m.At(off)) = 1
	}
	for _, fails := range []bool{false, true} {
		before := m.Resident()
		if fails { // then all of it is looked at
			refuse(t, "mincore")
		}
		s := NewScan(m)
		for _, at := range append(marks, 0, 30<<20, 64<<20+PageBytes, 130<<20-2*PageBytes) {
			for _, d := range []int64{-2 * PageBytes, -PageBytes, -1, 0, 1} {
				for _, n := range []int64{0, 1, 2, PageBytes, 2*PageBytes + 1, 70 << 20} {
					from := max(at+d, 0)
					n = min(n, m.Size()-from)
					zero := !slices.ContainsFunc(marks, func(off int64) bool { return from <= off && off < from+n })
					if got := s.Zero(from, n); got != zero {
						t.Errorf("mincore fails: %v: %d bytes from %d are zero: %v", fails, n, from, got)
					}
				}
			}
		}
		if got := m.Resident(); !fails && got != before {
			t.Errorf("%d bytes are present, %d before", got, before)
		}
	}
}

// vmFlags returns the kernel's flags of the mapping that p is in.
func vmFlags(t *testing.T, p unsafe.Pointer) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		var lo, hi uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &lo, &hi); n == 2 {
			inside = lo <= uintptr(p) && uintptr(p) < hi
		}
		if rest, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			return rest
		}
	}
	t.Fatalf("no mapping at %v", p)
	return ""
}

func TestAdviceReachesTheSystem(t *testing.T) {
	for _, c := range []struct {
		name     string
		o        MemoryOptions
		yes, not string
	}{
		{"rows", MemoryOptions{}, "hg nr", "dd dc"},
		{"small pages", MemoryOptions{SmallPages: true}, "nr", "hg dd dc"},
		{"not dumped", MemoryOptions{DontDump: true}, "hg dd", "dc"},
		{"not forked", MemoryOptions{DontFork: true}, "hg dc", "dd"},
	} {
		flags := vmFlags(t, mustReserve(t, 3*HugeBytes, c.o).At(HugeBytes))
		for _, f := range strings.Fields(c.yes) {
			if !strings.Contains(flags, f) {
				t.Errorf("%s: flags%s lack %s", c.name, strings.TrimRight(flags, "\n"), f)
			}
		}
		for _, f := range strings.Fields(c.not) {
			if strings.Contains(flags, f) {
				t.Errorf("%s: flags%s have %s", c.name, strings.TrimRight(flags, "\n"), f)
			}
		}
	}
	// A child of fork may still read the user's results.
	a := NewArena(ArenaOptions{})
	defer a.Close()
	p, _ := mustGet(t, a, 1<<20)
	if flags := vmFlags(t, p); strings.Contains(flags, "dc") {
		t.Errorf("results are lost in a child of fork: flags%s", flags)
	}
}

// The way for systems without MADV_POPULATE_WRITE, which this one may have.
func TestTouchByHand(t *testing.T) {
	m := mustReserve(t, 8*PageBytes, MemoryOptions{})
	b := m.bytes()
	b[PageBytes] = 9
	touchByHand(b[:4*PageBytes])
	if got := m.Resident(); got != 4*PageBytes || b[PageBytes] != 9 {
		t.Errorf("%d pages resident, byte is %d", got/PageBytes, b[PageBytes])
	}
}

func TestReserveErrorsNameTheBytes(t *testing.T) {
	for _, c := range []struct {
		bytes int64
		o     MemoryOptions
		code  status.Code
		word  string
	}{
		{0, MemoryOptions{}, status.InvalidArgument, "bytes is 0"},
		{-3, MemoryOptions{}, status.InvalidArgument, "bytes is -3"},
		{1, MemoryOptions{Purpose: NumPurposes}, status.InvalidArgument, "purpose"},
		{maxReserve + 1, MemoryOptions{Purpose: PurposeMirror}, status.OutOfMemory, "70368744177665 bytes (mirror)"},
		{math.MaxInt64, MemoryOptions{}, status.OutOfMemory, "9223372036854775807"},
	} {
		m, err := Reserve(c.bytes, c.o)
		if m != nil || status.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.word) {
			t.Errorf("Reserve(%d) is %v, expected code %d and %q", c.bytes, err, c.code, c.word)
		}
	}
}

// mmap itself says no: half the address space fits once, not twice.
func TestReserveReportsWhatTheSystemRefuses(t *testing.T) {
	var held []*Memory
	for range 4 {
		m, err := Reserve(maxReserve, MemoryOptions{SmallPages: true})
		if err != nil {
			if status.CodeOf(err) != status.OutOfMemory || !strings.Contains(err.Error(), "mmap") {
				t.Errorf("error is %v", err)
			}
			break
		}
		held = append(held, m)
	}
	if len(held) == 4 {
		t.Error("four times half the address space could be reserved")
	}
	for _, m := range held {
		m.Free()
	}
}

func TestMirrorLayoutAndErrors(t *testing.T) {
	m, err := NewMirror(1000, 4100, MirrorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	if m.Slots() != 1000 || m.RowBytes() != 4100 || m.Memory().Size() < 1000*4100 {
		t.Errorf("%d slots of %d bytes in %d", m.Slots(), m.RowBytes(), m.Memory().Size())
	}
	if got := uintptr(m.Row(999)) - uintptr(m.Row(0)); got != 999*4100 {
		t.Errorf("row 999 is at byte %d", got)
	}
	if err := m.Touch(10, 20); err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ slot, n int64 }{{-1, 1}, {0, 1001}, {1001, 0}, {5, -1}, {1, math.MaxInt64}} {
		if err := m.Touch(c.slot, c.n); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("Touch(%d, %d) is %v", c.slot, c.n, err)
		}
	}
	for _, c := range []struct {
		slots, row int64
		code       status.Code
		word       string
	}{
		{0, 8, status.InvalidArgument, "slots is 0"},
		{8, 0, status.InvalidArgument, "row bytes is 0"},
		{8, -8, status.InvalidArgument, "row bytes is -8"},
		{math.MaxInt64 / 2, 3, status.OutOfMemory, "slots of 3 bytes"},
		{1 << 40, 1 << 20, status.OutOfMemory, "1152921504606846976"},
	} {
		if x, err := NewMirror(c.slots, c.row, MirrorOptions{}); x != nil || status.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.word) {
			t.Errorf("NewMirror(%d, %d) is %v, expected code %d and %q", c.slots, c.row, err, c.code, c.word)
		}
	}
	// A slot never written reads as zeros.
	for _, b := range unsafe.Slice((*byte)(m.Row(500)), 4100) {
		if b != 0 {
			t.Fatal("fresh row is not zero")
		}
	}
}

// usage is what one purpose holds.
type usage struct{ Reserved, Regions int64 }

func usageOf(p Purpose) usage {
	return usage{counters[p].reserved.Load(), counters[p].regions.Load()}
}

package rows

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"libprefixcache/core/status"
)

// guarded is n bytes at a chosen misalignment between guard bytes.
type guarded struct {
	all  []byte
	body []byte
}

const guardBytes, guardValue = 96, 0xA5

func newGuarded(n, misalign int) guarded {
	raw := make([]byte, n+2*guardBytes+2*lineBytes)
	skip := int(-uintptr(unsafe.Pointer(&raw[0])) & (lineBytes - 1))
	g := guarded{all: raw[skip : skip+n+2*guardBytes+lineBytes]}
	g.all[0] = guardValue
	for done := 1; done < len(g.all); done *= 2 {
		copy(g.all[done:], g.all[:done])
	}
	at := lineBytes + misalign // 64 ≤ at < 128 bytes of guard before the body
	g.body = g.all[at : at+n]
	return g
}

func (g guarded) ptr() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(g.body)) }

// intact reports whether every byte outside the body is still the guard.
func (g guarded) intact() bool {
	start := int(uintptr(g.ptr()) - uintptr(unsafe.Pointer(&g.all[0])))
	before, after := g.all[:start], g.all[start+len(g.body):]
	return bytes.Count(before, guards) == len(before) && bytes.Count(after, guards) == len(after)
}

var guards = []byte{guardValue}

// noise is random; fill copies from a random place in it, which is much cheaper
// than to draw every byte, above all under the race detector.
var noise = func() []byte {
	b := make([]byte, 1<<20)
	rand.New(rand.NewSource(42)).Read(b)
	return b
}()

func fill(r *rand.Rand, b []byte) {
	for len(b) > 0 {
		b = b[copy(b, noise[r.Intn(len(noise)-1):]):]
	}
}

// checkKernel runs every primitive of k once and compares each with its source.
func checkKernel(k *kernel, r *rand.Rand, n, dAlign, tAlign, sAlign int) error {
	src := newGuarded(n, sAlign)
	fill(r, src.body)
	want := bytes.Clone(src.all)
	for _, op := range []string{"stream", "tee", "plain", "prefetch"} {
		if op == "prefetch" && k.prefetch == nil {
			continue
		}
		dst, tee := newGuarded(n, dAlign), newGuarded(n, tAlign)
		switch op {
		case "stream":
			k.stream(dst.ptr(), src.ptr(), int64(n))
		case "tee":
			k.tee(dst.ptr(), tee.ptr(), src.ptr(), int64(n))
		case "plain":
			k.plain(dst.ptr(), src.ptr(), int64(n))
		case "prefetch":
			k.prefetch(src.ptr(), int64(n))
		}
		k.fence()
		switch {
		case op != "prefetch" && !bytes.Equal(dst.body, src.body):
			return fmt.Errorf("%s %s n=%d dst+%d src+%d: wrong bytes in dst", k.name, op, n, dAlign, sAlign)
		case op == "tee" && !bytes.Equal(tee.body, src.body):
			return fmt.Errorf("%s tee n=%d dst+%d tee+%d src+%d: wrong bytes in tee", k.name, n, dAlign, tAlign, sAlign)
		case !dst.intact() || !tee.intact():
			return fmt.Errorf("%s %s n=%d dst+%d tee+%d src+%d: wrote outside", k.name, op, n, dAlign, tAlign, sAlign)
		case !bytes.Equal(want, src.all):
			return fmt.Errorf("%s %s n=%d: source changed", k.name, op, n)
		}
	}
	return nil
}

func TestKernelsWriteExactlyTheirBytes(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for _, k := range supported {
		// Every length around the unrolled bodies, at every alignment of the side
		// that decides head and tail; then long ones at random.
		for n := 0; n <= 400; n++ {
			for _, a := range []int{0, 1, 31, 32, 63, r.Intn(64)} {
				if err := checkKernel(k, r, n, a, r.Intn(64), r.Intn(64)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := 0; i < 200; i++ {
			if err := checkKernel(k, r, r.Intn(20_000), r.Intn(64), r.Intn(64), r.Intn(64)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func FuzzKernels(f *testing.F) {
	f.Add(int64(1), uint16(0), uint8(0), uint8(0), uint8(0))
	f.Add(int64(2), uint16(4096), uint8(0), uint8(0), uint8(0))
	f.Add(int64(3), uint16(4097), uint8(63), uint8(1), uint8(17))
	f.Add(int64(4), uint16(255), uint8(32), uint8(33), uint8(5))
	f.Fuzz(func(t *testing.T, seed int64, n uint16, d, te, s uint8) {
		for _, k := range supported {
			if err := checkKernel(k, rand.New(rand.NewSource(seed)), int(n), int(d%64), int(te%64), int(s%64)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// withKernel makes k active for one test.
func withKernel(t testing.TB, name string) {
	t.Helper()
	before := Kernel()
	if err := SelectKernel(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = SelectKernel(before) })
}

// TestSelectedKernelIsTheOneThatRuns catches a batch that uses another kernel
// than the one that was asked for: every primitive of every kernel is replaced
// by one that notes its kernel.
func TestSelectedKernelIsTheOneThatRuns(t *testing.T) {
	before := Kernel()
	originals := supported
	t.Cleanup(func() { supported = originals; _ = SelectKernel(before) })
	ran := map[string]map[string]bool{}
	supported = nil
	for _, k := range originals {
		k := *k
		ops := map[string]bool{}
		ran[k.name] = ops
		spy := &kernel{
			name:   k.name,
			stream: func(d, s unsafe.Pointer, n int64) { ops["stream"] = true; k.stream(d, s, n) },
			tee:    func(d, e, s unsafe.Pointer, n int64) { ops["tee"] = true; k.tee(d, e, s, n) },
			plain:  func(d, s unsafe.Pointer, n int64) { ops["plain"] = true; k.plain(d, s, n) },
			fence:  func() { ops["fence"] = true; k.fence() },
		}
		if k.ahead != nil {
			spy.ahead = func(b unsafe.Pointer, row int64, s unsafe.Pointer, stride, n int64) {
				ops["ahead"] = true
				k.ahead(b, row, s, stride, n)
			}
		}
		if k.prefetch != nil {
			spy.prefetch = func(p unsafe.Pointer, n int64) { ops["prefetch"] = true; k.prefetch(p, n) }
		}
		supported = append(supported, spy)
	}
	m, err := NewMirror(64, 4096, MirrorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	narrow, err := NewMirror(64, 8, MirrorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer narrow.Free()
	large, err := NewMirror(1, teeStreamBytes, MirrorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer large.Free()
	row := make([]byte, teeStreamBytes)
	buf := make([]byte, 8*4096)
	out := make([]byte, 8*4096)
	slots := []int64{3, 9, 10, 11, 63, 0, 5, 20}
	for _, k := range originals {
		for _, ops := range ran {
			clear(ops)
		}
		if err := SelectKernel(k.name); err != nil {
			t.Fatal(err)
		}
		if Kernel() != k.name {
			t.Errorf("Kernel() is %q after selecting %q", Kernel(), k.name)
		}
		large.scatter(unsafe.Pointer(&row[0]), teeStreamBytes, []int64{0})
		m.ScatterTee(unsafe.Pointer(&buf[0]), 4096, slots, unsafe.Pointer(&out[0]))
		m.gather(unsafe.Pointer(&out[0]), slots)
		narrow.gather(unsafe.Pointer(&out[0]), slots)
		for name, ops := range ran {
			want := 6
			if name != k.name {
				want = 0
			} else if k.prefetch == nil {
				want = 3 // its gathers are plain copies
			}
			if len(ops) != want {
				t.Errorf("selected %s: of %s, %v ran, expected %d primitives", k.name, name, ops, want)
			}
		}
	}
}

// TestKernelTableNamesItsOwnCode catches a line of the table that points to the
// code of another kernel, which no comparison of bytes would notice.
func TestKernelTableNamesItsOwnCode(t *testing.T) {
	for _, k := range supported {
		if k.name == "generic" {
			continue
		}
		for op, f := range map[string]any{"stream": k.stream, "tee": k.tee, "plain": k.plain} {
			name := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
			if want := op + strings.ToUpper(k.name); !strings.Contains(name, want) {
				t.Errorf("%s of kernel %s is %s, expected %s", op, k.name, name, want)
			}
		}
	}
}

func TestSelectKernelReportsWhatItCannotDo(t *testing.T) {
	before := Kernel()
	t.Cleanup(func() { _ = SelectKernel(before) })
	best := supported[len(supported)-1].name
	for _, c := range []struct {
		name string
		code status.Code
	}{{"", status.OK}, {"auto", status.OK}, {"generic", status.OK}, {"avx512", status.Unsupported}, {"mmx", status.InvalidArgument}, {"AVX2", status.InvalidArgument}} {
		err := SelectKernel(c.name)
		if status.CodeOf(err) != c.code {
			t.Errorf("SelectKernel(%q) is %v, expected code %d", c.name, err, c.code)
		}
		if got := KernelError(); status.CodeOf(got) != c.code {
			t.Errorf("KernelError after %q is %v, expected code %d", c.name, got, c.code)
		}
		want := best
		if c.name == "generic" {
			want = "generic"
		}
		if Kernel() != want {
			t.Errorf("Kernel after %q is %q, expected %q", c.name, Kernel(), want)
		}
		if err != nil && (!strings.Contains(err.Error(), c.name) || !strings.Contains(err.Error(), EnvKernel) || !strings.Contains(err.Error(), "generic")) {
			t.Errorf("text %q does not say what was asked, where, and what is expected", err)
		}
	}
}

// TestEnvironmentForcesTheKernel starts this test binary anew for each value.
func TestEnvironmentForcesTheKernel(t *testing.T) {
	if os.Getenv("ROWS_PRINT_KERNEL") != "" {
		fmt.Printf("kernel=%s error=%v\n", Kernel(), KernelError() != nil)
		return
	}
	best := supported[len(supported)-1].name
	cases := map[string]string{"": "kernel=" + best + " error=false", "pentium": "kernel=" + best + " error=true"}
	for _, n := range Kernels() {
		cases[n] = "kernel=" + n + " error=false"
	}
	for value, want := range cases {
		cmd := exec.Command(os.Args[0], "-test.run=^TestEnvironmentForcesTheKernel$")
		cmd.Env = append(os.Environ(), "ROWS_PRINT_KERNEL=1", EnvKernel+"="+value)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s=%q printed %q (%v), expected %q", EnvKernel, value, out, err, want)
		}
	}
}

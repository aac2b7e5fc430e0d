package gpu_test

import (
	"bytes"
	"testing"
	"unsafe"

	"libprefixcache/core/status"
	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

// devices runs a test on both implementations: they promise the same.
func devices(t *testing.T, f func(t *testing.T, d gpu.Device)) {
	t.Run("host", func(t *testing.T) {
		d := gpu.NewHost()
		closing(t, d)
		f(t, d)
	})
	t.Run("cuda", func(t *testing.T) { f(t, open(t, 1)) })
	t.Run("cuda without pools", func(t *testing.T) {
		simcuda.Start(t, 2)
		simcuda.Pools(false)
		d, err := gpu.OpenCUDA(0)
		ok(t, err)
		closing(t, d)
		f(t, d)
	})
}

// pinned is pinned memory as a slice, freed at the end of the test.
func pinned(t testing.TB, d gpu.Device, n int64) []byte {
	t.Helper()
	p := must[unsafe.Pointer](t)(d.AllocHost(n))
	t.Cleanup(func() {
		if !abandoned {
			ok(t, d.FreeHost(p))
		}
	})
	return unsafe.Slice((*byte)(p), n)
}

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
	return b
}

func TestDevice_BytesGoThere_AndBack(t *testing.T) {
	devices(t, func(t *testing.T, d gpu.Device) {
		const n = 10_000
		s := must[gpu.Stream](t)(d.NewStream(gpu.NonBlocking))
		a := must[gpu.Addr](t)(d.Alloc(s, n))
		b := must[gpu.Addr](t)(d.Alloc(s, n))
		src, dst := pinned(t, d, n), pinned(t, d, n)
		copy(src, pattern(n, 3))
		ok(t, d.CopyToDevice(s, a, ptr(src), n))
		ok(t, d.Fill(s, b, 0x5A, n))
		ok(t, d.CopyOnDevice(s, b+100, a+200, 500))
		ok(t, d.CopyToHost(s, ptr(dst), b, n))
		e := must[gpu.Event](t)(d.NewEvent(0))
		ok(t, d.Record(e, s))
		ok(t, d.Await(e))
		want := bytes.Repeat([]byte{0x5A}, n)
		copy(want[100:600], src[200:700])
		if !bytes.Equal(dst, want) {
			t.Error("bytes differ after a round trip")
		}
		if done := must[bool](t)(d.Done(e)); !done {
			t.Error("event is not done after Await")
		}
		ok(t, d.Free(s, a))
		ok(t, d.Free(s, b))
		ok(t, d.Drain(s))
		if idle := must[bool](t)(d.Idle(s)); !idle {
			t.Error("stream is not idle after Drain")
		}
		ok(t, d.FreeEvent(e))
		ok(t, d.FreeStream(s))
	})
}

func TestDevice_RowsOfAPitchedCopy(t *testing.T) {
	devices(t, func(t *testing.T, d gpu.Device) {
		const h, w, sp, dp = 7, 48, 64, 80
		a := must[gpu.Addr](t)(d.Alloc(0, h*dp))
		src, dst := pinned(t, d, h*sp), pinned(t, d, h*w)
		copy(src, pattern(h*sp, 9))
		ok(t, d.CopyRows(0, &gpu.Copy2D{Dst: a, DstPitch: dp, SrcHost: ptr(src), SrcPitch: sp, Width: w, Height: h}))
		ok(t, d.CopyRows(0, &gpu.Copy2D{DstHost: ptr(dst), DstPitch: w, Src: a, SrcPitch: dp, Width: w, Height: h}))
		ok(t, d.Drain(0))
		for y := range h {
			if !bytes.Equal(dst[y*w:(y+1)*w], src[y*sp:y*sp+w]) {
				t.Fatalf("row %d differs", y)
			}
		}
		ok(t, d.Free(0, a))
		ok(t, d.Drain(0))
	})
}

func TestDevice_EmptyCopiesAreNothing(t *testing.T) {
	devices(t, func(t *testing.T, d gpu.Device) {
		ok(t, d.CopyToDevice(0, 0, nil, 0))
		ok(t, d.CopyToHost(0, nil, 0, 0))
		ok(t, d.CopyOnDevice(0, 0, 0, 0))
		ok(t, d.Fill(0, 0, 1, 0))
		ok(t, d.CopyRows(0, &gpu.Copy2D{}))
	})
}

func TestDevice_RefusesWhatNoDeviceCanDo(t *testing.T) {
	devices(t, func(t *testing.T, d gpu.Device) {
		b := make([]byte, 64)
		a := must[gpu.Addr](t)(d.Alloc(0, 128))
		for _, c := range []struct {
			name, text string
			err        error
		}{
			{"null dst", "dst is null", d.CopyToDevice(0, 0, ptr(b), 8)},
			{"null src", "src is null", d.CopyToDevice(0, a, nil, 8)},
			{"null host dst", "dst is null", d.CopyToHost(0, nil, a, 8)},
			{"negative", "bytes is -1", d.CopyToHost(0, ptr(b), a, -1)},
			{"overlap", "overlap", d.CopyOnDevice(0, a, a+4, 8)},
			{"null fill", "null", d.Fill(0, 0, 0, 8)},
			{"pitch", "pitches", d.CopyRows(0, &gpu.Copy2D{Dst: a, Src: a + 64, DstPitch: 4, SrcPitch: 8, Width: 8, Height: 2})},
			{"two dsts", "exactly one", d.CopyRows(0, &gpu.Copy2D{Dst: a, DstHost: ptr(b), Src: a + 64, DstPitch: 8, SrcPitch: 8, Width: 8, Height: 2})},
			{"no src", "exactly one", d.CopyRows(0, &gpu.Copy2D{Dst: a, DstPitch: 8, SrcPitch: 8, Width: 8, Height: 2})},
			{"null event", "event is 0", d.Record(0, 0)},
			{"null wait", "event is 0", d.WaitEvent(0, 0)},
			{"null await", "event is 0", d.Await(0)},
			{"free default", "stream is 0x0", d.FreeStream(0)},
			{"unaligned", "whole pages", d.Register(unsafe.Add(ptr(b), 1), 4096)},
			{"region wraps", "end of the address space", d.Check(0, []gpu.Region{{Name: "rows", Addr: ^uintptr(0) - 4, Bytes: 8}})},
			{"region null", "rows is null", d.Check(0, []gpu.Region{{Name: "rows", Bytes: 8}})},
		} {
			t.Run(c.name, func(t *testing.T) { refused(t, c.err, status.InvalidArgument, c.text) })
		}
		ok(t, d.Free(0, a))
		ok(t, d.Drain(0))
	})
}

func TestDevice_RegisteredMemoryIsKnown(t *testing.T) {
	devices(t, func(t *testing.T, d gpu.Device) {
		raw := make([]byte, 3*4096)
		start := unsafe.Add(ptr(raw), (4096-uintptr(ptr(raw))%4096)%4096)
		region := []gpu.Region{{Name: "mirror", Addr: uintptr(start), Bytes: 8192, Place: gpu.Pinned}}
		if !d.IsHost() {
			refused(t, d.Check(0, region), status.InvalidArgument, "mirror")
		}
		ok(t, d.Register(start, 8192))
		ok(t, d.Check(0, region))
		ok(t, d.Check(gpu.UnnamedStream, region))
		info := must[gpu.PointerInfo](t)(d.Pointer(uintptr(start) + 5000))
		if !info.Known || info.Device || info.Base != uintptr(start) || info.Bytes != 8192 {
			t.Errorf("pointer info is %+v", info)
		}
		if err := d.Register(start, 4096); err == nil {
			t.Error("registered twice")
		}
		ok(t, d.Unregister(start))
		if err := d.Unregister(start); err == nil {
			t.Error("unregistered twice")
		}
	})
}

func TestDevice_ElapsedNeedsTimedRecordedEvents(t *testing.T) {
	devices(t, func(t *testing.T, d gpu.Device) {
		a := must[gpu.Event](t)(d.NewEvent(gpu.Timing))
		b := must[gpu.Event](t)(d.NewEvent(gpu.Timing))
		c := must[gpu.Event](t)(d.NewEvent(0))
		for _, e := range []gpu.Event{a, b, c} {
			ok(t, d.Record(e, 0))
		}
		ok(t, d.Drain(0))
		if ms := must[float64](t)(d.Elapsed(a, b)); ms < 0 || ms > 10_000 {
			t.Errorf("elapsed is %v ms", ms)
		}
		if _, err := d.Elapsed(a, c); err == nil {
			t.Error("elapsed to an event without timing")
		}
		for _, e := range []gpu.Event{a, b, c} {
			ok(t, d.FreeEvent(e))
		}
	})
}

func TestHost_RefusesHandlesItNeverMade(t *testing.T) {
	d := gpu.NewHost()
	b := make([]byte, 8)
	refused(t, d.CopyToDevice(0x7f00_1234_5678, gpu.Addr(uintptr(ptr(b))), ptr(b), 8), status.InvalidArgument, "expected 0")
	e := must[gpu.Event](t)(d.NewEvent(0))
	ok(t, d.FreeEvent(e))
	refused(t, d.Await(e), status.InvalidArgument, "destroyed")
	refused(t, d.FreeHost(ptr(b)), status.InvalidArgument, "not the start")
}

package main

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"libprefixcache/core/omni"
	"libprefixcache/core/omni/omnitest"
	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

// unguarded is a stage whose executor leaves one guard of the device path out.
type unguarded struct {
	*stage
	leaveOut omni.CommandKind
	sources  []omni.Command
}

func (u *unguarded) Execute(list []omni.Command) error {
	if u.leaveOut == 0 {
		return u.stage.Execute(list)
	}
	if list[0].Kind == u.leaveOut && u.leaveOut == omni.AwaitLanded {
		return nil
	}
	var kept []omni.Command
	for _, c := range list {
		switch {
		case c.Kind == omni.LandPage && u.leaveOut == omni.FreezeRows:
			// Straight from the model's buffers, behind the event all the same.
			if err := u.stage.Execute(kept); err != nil {
				return err
			}
			kept = nil
			for _, s := range u.sources {
				err := u.dev.CopyRows(u.copies, &gpu.Copy2D{DstHost: pointer(gpu.Addr(uintptr(c.Host)) + gpu.Addr(s.Offset)), DstPitch: s.RowBytes,
					Src: gpu.Addr(s.Src), SrcPitch: s.Stride, Width: s.RowBytes, Height: s.Rows})
				if err != nil {
					return err
				}
			}
			u.sources = nil
		case c.Kind == omni.FreezeRows && u.leaveOut == omni.FreezeRows:
			u.sources = append(u.sources, c)
		case c.Kind != u.leaveOut:
			kept = append(kept, c)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return u.stage.Execute(kept)
}

// recorder is a testing.TB that notes the first failure and ends the run.
type recorder struct {
	testing.TB
	text string
}

type ended struct{}

func (r *recorder) Fatalf(format string, args ...any) {
	r.text = fmt.Sprintf(format, args...)
	panic(ended{})
}
func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }
func (r *recorder) Failed() bool      { return r.text != "" }
func (r *recorder) Log(...any)        {}

// noticed runs one trace without a guard and says what went wrong: a wrong row, or
// what the simulator reports. In eager mode the saving thread waits, which hides some.
func noticed(t testing.TB, leaveOut omni.CommandKind, seed uint64) string {
	simcuda.Reset(seed)
	simcuda.SetDevice(t, 0)
	r := &recorder{TB: t}
	func() {
		defer func() {
			if p := recover(); p != nil && p != (ended{}) {
				panic(p)
			}
		}()
		s := &stage{omniDevice: &omniDevice{landed: make([]gpu.Event, 8)}, t: r, live: map[gpu.Addr]bool{}}
		s.model = must[*gpu.CUDA](r)(gpu.OpenCUDA(0))
		s.stream = must[gpu.Stream](r)(s.model.NewStream(gpu.NonBlocking))
		omnitest.Run(r, omnitest.Trace{Mode: "committer", Seed: seed, Steps: 8, Device: &unguarded{stage: s, leaveOut: leaveOut}})
	}()
	if f := simcuda.Report(); len(f) > 0 {
		return f[0]
	}
	return r.text
}

// Each guard of the device path is needed: left out, a trace notices, and with all of
// them it finds nothing.
func TestEachDeviceGuardIsNeeded(t *testing.T) {
	simcuda.Start(t, 1)
	defer simcuda.Reset(1)
	const runs = 20
	for _, g := range []struct {
		race string
		kind omni.CommandKind
		want string
	}{
		{"none left out", 0, ""},
		{"R-1 freeze before the next forward", omni.FreezeRows, "may not be done"},
		{"R-1 event before another stream touches the copy", omni.WaitFrozen, "may not be done"},
		{"R-8 and R-14 wait before the page is read", omni.AwaitLanded, ""},
	} {
		t.Run(g.race, func(t *testing.T) {
			runtime.LockOSThread() // a subtest has a goroutine, and thereby a context, of its own
			defer runtime.UnlockOSThread()
			found, example := 0, ""
			for seed := range uint64(runs) {
				if text := noticed(t, g.kind, seed); text != "" {
					if found++; !strings.Contains(text, g.want) {
						t.Fatalf("seed %d noticed %q, expected %q", seed, text, g.want)
					}
					example = text
				}
			}
			if (found > 0) != (g.kind != 0) {
				t.Errorf("%d of %d runs noticed: %s", found, runs, example)
			}
		})
	}
}

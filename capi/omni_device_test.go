package main

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"libprefixcache/core/omni"
	"libprefixcache/core/rows"
	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

// A step that shutdown dropped may still be on its way to its page: the page is
// cleared, unpinned and unmapped only after that.
func TestPagesOutliveTheCopiesOfADroppedStep(t *testing.T) {
	simcuda.EachSeed(t, 20, func(t testing.TB, seed uint64) {
		s := newStage(t, seed)
		s.landed = make([]gpu.Event, 4)
		simcuda.Policy(simcuda.Late)
		c := must[*omni.Cache](t)(omni.New(omni.Config{NumBlocks: 4, BlockSize: 4, Threaded: true, Executor: s, ZeroOnRelease: seed%2 == 0}))
		id := must[omni.KeyID](t)(c.OpenKey("k", 64, 1, omni.JoinNextStep))
		p := s.Upload(bytes.Repeat([]byte{7}, 64))
		step := must[uint64](t)(c.Save(&omni.SaveArgs{Requests: []uint64{1}, Counts: []int64{1}, Slots: []int64{3}, Stream: s.Stream(),
			Rows: []omni.KeyRows{{Key: id, Place: omni.OnDevice, Rows: p, Stride: 64}}}))
		s.Overwrite(p, 64)
		if seed%4 < 2 {
			ok(t, c.Discard(step))
		}
		c.Shutdown()
		ok(t, given(s.quiesce))
		ok(t, c.Free())
		ok(t, given(s.close))
		s.end()
	})
}

// A thread that never used CUDA may wait for a step: an output builder's thread does.
func TestMaterializeOnAThreadWithoutContext(t *testing.T) {
	d := newDecode(t, 4, 64, true)
	simcuda.Policy(simcuda.Late)
	id := d.save(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // ends with the goroutine
		simcuda.NoContext()
		done <- d.o.cache.Materialize(id, d.reads)
	}()
	ok(t, <-done)
	d.end(t)
}

// decode is the traffic of a decode batch on the device: two keys, one row for each
// request in each step, static output buffers.
type decode struct {
	*stage
	o      *omniCache
	args   omni.SaveArgs
	reads  []omni.Read
	out    []*rows.Memory
	pos    int64
	static []gpu.Addr
}

const decodeBlocks = 8

func newDecode(t testing.TB, batch int, rowBytes int64, threaded bool) *decode {
	d := &decode{stage: newStage(t, 2)}
	var err error
	d.o, err = newOmni(omni.Config{NumBlocks: int64(batch) * decodeBlocks, BlockSize: 16, Threaded: threaded})
	ok(t, err)
	d.args.Stream = d.Stream()
	var arrivals []omni.NewRequest
	for i := range batch {
		d.args.Requests = append(d.args.Requests, uint64(i))
		d.args.Counts = append(d.args.Counts, 1)
		arrivals = append(arrivals, omni.NewRequest{Request: uint64(i)})
	}
	d.args.Slots = make([]int64, batch)
	for k := range 2 {
		name := omni.HiddenKey
		if k > 0 {
			name = fmt.Sprint("mm", k)
		}
		id := must[omni.KeyID](t)(d.o.cache.OpenKey(name, rowBytes, 1, omni.JoinNextStep))
		n := int64(batch) * rowBytes
		a := must[gpu.Addr](t)(d.model.Alloc(d.stream, n))
		d.static = append(d.static, a)
		m := must[*rows.Memory](t)(rows.Reserve(n, rows.MemoryOptions{}))
		ok(t, m.Touch(0, n))
		d.out = append(d.out, m)
		d.args.Rows = append(d.args.Rows, omni.KeyRows{Key: id, Place: omni.OnDevice, Rows: pointer(a), Stride: rowBytes})
		d.reads = append(d.reads, omni.Read{Key: id, Count: int64(batch), Dst: m.Base(), DstBytes: n})
	}
	ok(t, d.o.cache.StepBegin(nil, arrivals, nil))
	return d
}

func (d *decode) save(t testing.TB) uint64 {
	for i := range d.args.Slots {
		d.args.Slots[i] = int64(i)*decodeBlocks*16 + d.pos
	}
	d.pos = (d.pos + 1) % (decodeBlocks * 16)
	id, err := d.o.cache.Save(&d.args)
	ok(t, err)
	return id
}

func (d *decode) end(t testing.TB) {
	ok(t, d.o.close())
	for _, a := range d.static {
		ok(t, d.model.Free(d.stream, a))
	}
	for _, m := range d.out {
		m.Free()
	}
	d.stage.end()
}

// BenchmarkDeviceSave is the engine thread's part of a decode step of 256 requests
// and two keys of 4 KiB: Save, without the driver calls (ours-ns/op), and these
// (driver-ns/op). The job runs on the same thread between two saves, so that nobody
// is woken; with a committer, waking it comes on top (see BenchmarkParker in gpu).
func BenchmarkDeviceSave(b *testing.B) {
	for _, c := range []struct{ batch, rowBytes int }{{1, 4096}, {256, 256}, {256, 4096}} {
		batch, rowBytes := c.batch, int64(c.rowBytes)
		b.Run(fmt.Sprintf("%dx%d", batch, rowBytes), func(b *testing.B) {
			d := newDecode(b, batch, rowBytes, false)
			ok(b, d.o.close())
			d.o.device = &omniDevice{landed: make([]gpu.Event, 4)}
			c := must[*omni.Cache](b)(omni.New(omni.Config{NumBlocks: int64(batch) * decodeBlocks, BlockSize: 16, Threaded: true, Executor: d.o.device}))
			d.o.cache = c
			for k := range d.args.Rows {
				d.args.Rows[k].Key = must[omni.KeyID](b)(c.OpenKey(fmt.Sprint("k", k), rowBytes, 1, omni.JoinNextStep))
			}
			simcuda.Policy(simcuda.Eager)
			step := func() (ours, driver time.Duration, calls uint64) {
				before, n, t0 := simcuda.Nanoseconds(), simcuda.Calls(""), time.Now()
				id := d.save(b)
				driver, calls = time.Duration(simcuda.Nanoseconds()-before), simcuda.Calls("")-n
				ours = time.Since(t0) - driver
				job, _ := c.NextJob()
				c.JobDone(&job, c.Run(&job))
				ok(b, c.Discard(id))
				return ours, driver, calls
			}
			for range decodeBlocks * 16 {
				step()
			}
			var ours, driver []time.Duration
			var calls uint64
			b.ReportAllocs()
			for b.Loop() {
				o, dr, n := step()
				ours, driver, calls = append(ours, o), append(driver, dr), n
			}
			slices.Sort(ours)
			slices.Sort(driver)
			b.ReportMetric(float64(ours[len(ours)/2]), "ours-ns/op")
			b.ReportMetric(float64(ours[len(ours)*99/100]), "ours-p99-ns")
			b.ReportMetric(float64(driver[len(driver)/2]), "driver-ns/op")
			b.ReportMetric(float64(calls), "driver-calls/op")
			d.end(b)
		})
	}
}

// A save in a steady state allocates nothing, as on the host.
func TestDeviceSaveAllocatesNothing(t *testing.T) {
	d := newDecode(t, 8, 64, true)
	simcuda.Policy(simcuda.Eager)
	for range 20 {
		ok(t, d.o.cache.Materialize(d.save(t), d.reads))
	}
	n := testing.AllocsPerRun(200, func() {
		id := d.save(t)
		if err := d.o.cache.Materialize(id, d.reads); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%.1f allocations for a save and a materialize", n)
	}
	d.end(t)
}

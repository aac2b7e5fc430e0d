package main

import (
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"libprefixcache/core/omni"
	"libprefixcache/core/rows"
	"libprefixcache/gpu"
	"libprefixcache/gpu/simcuda"
)

// stamped is a cache that notes when a job was reported as done, and how many were.
type stamped struct {
	*omni.Cache
	at, jobs atomic.Int64
}

func (s *stamped) JobDone(j *omni.Job, err error) {
	s.Cache.JobDone(j, err)
	s.at.Store(gpu.Now())
	s.jobs.Add(1)
}

// completion is a decode batch whose copy stream is held until everybody waits, and
// what the waiting ends with.
type completion struct {
	*decode
	written *stamped
	hits    []omni.Read // with a hit of one block in front of the last request's row
	given   uint64      // requests
	handed  int64       // steps that the committer writes
}

func newCompletion(b *testing.B, batch int, rowBytes int64) *completion {
	c := &completion{decode: newDecode(b, batch, rowBytes, true), given: uint64(batch)}
	ok(b, c.o.close())
	device := &omniDevice{landed: make([]gpu.Event, omni.DefaultStagingDepth)}
	cache := must[*omni.Cache](b)(omni.New(omni.Config{NumBlocks: int64(batch) * decodeBlocks, BlockSize: 16, Threaded: true, Waiter: &waiter{}, Executor: device}))
	c.o, c.written = &omniCache{cache: cache, device: device}, &stamped{Cache: cache}
	device.log = &c.o.log
	c.o.committer = must[*gpu.Committer](b)(gpu.StartCommitter[omni.Job](gpu.NewHost(), c.written, c.o.runJob))
	for k := range c.args.Rows {
		name := omni.HiddenKey
		if k > 0 {
			name = "mm"
		}
		id := must[omni.KeyID](b)(cache.OpenKey(name, rowBytes, 1, omni.JoinNextStep))
		c.args.Rows[k].Key, c.reads[k].Key = id, id
		n := int64(batch+16) * rowBytes
		m := must[*rows.Memory](b)(rows.Reserve(n, rows.MemoryOptions{}))
		ok(b, m.Touch(0, n))
		c.out = append(c.out, m)
		c.hits = append(c.hits, omni.Read{Key: id, Count: int64(batch), Dst: m.Base(), DstBytes: n})
	}
	for range decodeBlocks * 16 { // every slot has a row
		c.begin(b, false)
		ok(b, cache.Discard(c.save(b)))
		c.settle()
	}
	return c
}

// settle waits until the committer has written the step, and leaves the lock alone.
func (c *completion) settle() {
	for c.handed++; c.written.jobs.Load() < c.handed; {
		time.Sleep(50 * time.Microsecond)
	}
}

// begin begins a step; with a hit, its last request is a new one, which shares the block
// that the first request goes on with in this very step.
func (c *completion) begin(b *testing.B, hit bool) {
	var finished []uint64
	var arrivals []omni.NewRequest
	if hit {
		last := &c.args.Requests[len(c.args.Requests)-1]
		finished = []uint64{*last}
		*last = c.given
		c.given++
		arrivals = []omni.NewRequest{{Request: *last, HitTokens: 16, Blocks: []int64{c.pos / 16}}}
	}
	ok(b, c.o.cache.StepBegin(finished, arrivals, nil))
}

// BenchmarkDeviceCompletion is the time from the event of a step's copy being done to
// the step's rows being readable: new rows on another thread in Materialize, rows of a
// hit in this very step there, and, of a step that nobody reads, all rows in the mirror.
// One thread waits when the copy stream is let go. The kernel has to wake it, which is
// most of the tail; ours-p50-ns and ours-p99-ns are the time from then on. Bare is what
// the machine takes by itself: a thread that waits for an event, with nothing behind it.
func BenchmarkDeviceCompletion(b *testing.B) {
	for _, what := range []string{"Bare", "NewRows", "HitRows", "Mirror"} {
		b.Run(what, func(b *testing.B) {
			c := newCompletion(b, 256, 64)
			reads := c.reads
			if what == "HitRows" {
				reads = c.hits
			}
			dev := c.o.device.dev
			bare := must[gpu.Event](b)(dev.NewEvent(0))
			begin, returned := make(chan uint64), make(chan int64)
			go func() {
				runtime.LockOSThread() // ends with the goroutine
				for id := range begin {
					var err error
					if what == "Bare" {
						err = dev.Await(bare)
					} else {
						err = c.o.cache.Materialize(id, reads)
					}
					if err != nil {
						b.Error(err)
					}
					returned <- gpu.Now()
				}
			}()
			var times, ours []time.Duration
			stream := uintptr(c.o.device.copies)
			for b.Loop() {
				c.begin(b, what == "HitRows")
				simcuda.Hold(stream)
				id := c.save(b)
				switch what {
				case "Mirror":
					ok(b, c.o.cache.Discard(id)) // the committer alone waits
				case "Bare":
					ok(b, dev.Record(bare, c.o.device.copies))
					fallthrough
				default:
					begin <- id
				}
				time.Sleep(200 * time.Microsecond) // everybody waits by then
				simcuda.Release(stream)
				asleep(time.Millisecond)
				var end int64
				if what != "Mirror" {
					end = <-returned
					if what == "Bare" {
						ok(b, c.o.cache.Discard(id))
					}
					_ = c.o.cache.Stats() // asks for the write
				}
				if what != "HitRows" { // whoever reads hits of the step writes it
					c.settle()
				}
				if what == "Mirror" {
					end = c.written.at.Load()
				}
				times = append(times, time.Duration(end-simcuda.Finished()))
				ours = append(ours, time.Duration(end-simcuda.Woken()))
			}
			close(begin)
			ok(b, dev.FreeEvent(bare))
			report(b, "", times)
			report(b, "ours-", ours)
			c.end(b)
		})
	}
}

// asleep keeps this thread out of the others' way: time.Sleep, and a channel, would have
// it look for work of theirs first.
func asleep(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil)
}

func report(b *testing.B, of string, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2]), of+"p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100]), of+"p99-ns")
}

package main

import (
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"libprefixcache/core/omni"
	"libprefixcache/gpu/simcuda"
)

// Real threads: an engine that runs ahead of its consumers with static output
// buffers, the committer, and consumers that finish steps in any order.
func TestDeviceStepsOnManyThreads(t *testing.T) {
	const batch, words, steps = 6, 16, 300
	d := newDecode(t, batch, 4*words, true)
	type saved struct {
		id   uint64
		step uint32
	}
	queue := make(chan saved, 2)
	var consumers sync.WaitGroup
	for range 2 {
		consumers.Go(func() {
			runtime.LockOSThread()
			simcuda.NoContext()
			out := make([]byte, 2*batch*4*words)
			for s := range queue {
				if s.step%7 == 3 {
					if err := d.o.cache.Discard(s.id); err != nil {
						t.Error(err)
					}
					continue
				}
				reads := append([]omni.Read(nil), d.reads...)
				for k := range reads {
					reads[k].Dst = unsafe.Pointer(&out[k*batch*4*words])
				}
				if err := d.o.cache.Materialize(s.id, reads); err != nil {
					t.Error(err)
					continue
				}
				for i := range 2 * batch * words {
					want := s.step<<16 + uint32(i%(batch*words)) + uint32(i/(batch*words))<<8
					if got := binary.LittleEndian.Uint32(out[4*i:]); got != want {
						t.Errorf("step %d word %d is %#x, expected %#x", s.step, i, got, want)
						break
					}
				}
			}
		})
	}
	for step := range uint32(steps) {
		ok(t, d.o.cache.StepBegin(nil, nil, nil))
		for k, a := range d.static {
			simcuda.Launch(t, uintptr(d.stream), uintptr(a), batch*words, step<<16+uint32(k)<<8)
		}
		queue <- saved{d.save(t), step}
	}
	close(queue)
	consumers.Wait()
	ok(t, d.o.cache.Check())
	d.end(t)
}

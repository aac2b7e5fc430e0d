package omnitest

import (
	"strings"
	"unsafe"

	"libprefixcache/core/omni"
	"libprefixcache/core/status"
)

// save saves a random batch, and one that is refused before it.
func (tr *tracer) save() {
	a := tr.batch()
	st := &traceStep{bufs: map[string][]byte{}}
	for i, q := range a.Requests {
		st.rows = append(st.rows, int64(len(tr.m.hits[q]))+a.Counts[i])
	}
	var mk []modelKey
	var srcs [][]byte
	layout := tr.m.layout(a.Requests, a.Counts)
	for i := range tr.keys {
		k := &tr.keys[i]
		if tr.rng.IntN(4) == 0 || len(a.Slots) == 0 && tr.m.visible[k.name] == 0 {
			continue
		}
		tr.open(k)
		src, one := tr.rows(st, a, k, layout)
		srcs, mk = append(srcs, src), append(mk, one)
	}
	if tr.rng.IntN(10) == 0 && len(a.Slots) > 0 {
		tr.refused(a)
	}
	save := tr.c.Save
	if tr.dev != nil && tr.rng.IntN(8) == 0 {
		save = tr.saveBroken
	}
	id, err := save(a)
	if err != nil && tr.depth > 1 && (status.CodeOf(err) == status.StagingTimeout || strings.Contains(err.Error(), "did not reach done")) {
		// What it waits for is further down the stack and cannot go on. Then the
		// save must have left no trace; the next one that succeeds has the hits.
		tr.check()
		return
	}
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.say("save %d reqs %v counts %v slots %v keys %v", id, a.Requests, a.Counts, a.Slots, st.keys)
	tr.overwrite(a, srcs)
	st.id, st.reqs, st.counts = id, a.Requests, a.Counts
	tr.m.save(id, a.Requests, a.Counts, a.Slots, mk)
	tr.steps = append(tr.steps, st)
}

// batch draws requests, how many new rows each has, and their slots.
func (tr *tracer) batch() *omni.SaveArgs {
	a := &omni.SaveArgs{}
	for q := range uint64(8) {
		if tr.m.live[q] && tr.rng.IntN(5) > 0 {
			a.Requests = append(a.Requests, q)
		}
	}
	tr.rng.Shuffle(len(a.Requests), func(i, j int) { a.Requests[i], a.Requests[j] = a.Requests[j], a.Requests[i] })
	slots := tr.slots()
	perm := tr.rng.Perm(int(slots))
	twice := tr.rng.IntN(6) == 0
	zero := tr.rng.IntN(12) == 0
	for range a.Requests {
		n := tr.rng.Int64N(2 + tr.rng.Int64N(min(slots, 40)))
		if zero {
			n = 0
		}
		a.Counts = append(a.Counts, n)
		for range n {
			s := tr.rng.Int64N(slots)
			if !twice && len(perm) > 0 {
				s, perm = int64(perm[0]), perm[1:]
			}
			if len(a.Slots) > 0 && tr.rng.IntN(2) == 0 && !twice { // a run, maybe
				if next := a.Slots[len(a.Slots)-1] + 1; next < slots {
					for i, p := range perm {
						if int64(p) == next {
							perm[i] = int(s)
							s = next
							break
						}
					}
				}
			}
			a.Slots = append(a.Slots, s)
		}
	}
	return a
}

// slots is how many slots the cache has.
func (tr *tracer) slots() int64 { return tr.cfg.NumBlocks * tr.cfg.BlockSize }

// open opens a key when it is first used.
func (tr *tracer) open(k *traceKey) {
	if k.known {
		return
	}
	id, err := tr.c.OpenKey(k.name, k.bytes+1, 3, k.sched) // another width first: still invisible
	if err == nil {
		k.id, err = tr.c.OpenKey(k.name, k.bytes, 3, k.sched)
	}
	if err != nil || k.id != id {
		tr.t.Fatal(err)
	}
	k.known = true
}

// rows draws the rows of one key, and where they lie: on the host, with or without a
// place for the result, or on the device. It returns their source, and what the model
// has to know.
func (tr *tracer) rows(st *traceStep, a *omni.SaveArgs, k *traceKey, layout int64) ([]byte, modelKey) {
	stride := k.bytes + tr.rng.Int64N(3)
	src := tr.fill(stride*int64(len(a.Slots)) + 1)
	r := omni.KeyRows{Key: k.id, Rows: unsafe.Pointer(&src[0]), Stride: stride}
	if tr.dev != nil && len(a.Slots) > 0 && tr.rng.IntN(4) > 0 {
		r.Place, r.Rows, a.Stream = omni.OnDevice, tr.dev.Upload(src), tr.dev.Stream()
	} else if tr.rng.IntN(2) == 0 {
		buf := tr.fill(layout*k.bytes + 1)
		r.Dst, r.DstBytes = unsafe.Pointer(&buf[0]), layout*k.bytes
		st.bufs[k.name] = buf
	}
	a.Rows = append(a.Rows, r)
	st.keys = append(st.keys, *k)
	one := modelKey{name: k.name, bytes: k.bytes}
	for i := range a.Slots {
		one.rows = append(one.rows, string(src[int64(i)*stride:int64(i)*stride+k.bytes]))
	}
	return src, one
}

// refused tries the same save with a slot that does not exist: no trace of it.
func (tr *tracer) refused(a *omni.SaveArgs) {
	bad := *a
	bad.Slots = append([]int64(nil), a.Slots...)
	bad.Slots[tr.rng.IntN(len(bad.Slots))] = tr.slots()
	if _, err := tr.c.Save(&bad); status.CodeOf(err) != status.Unmatch {
		tr.t.Fatalf("slot %d: %v", tr.slots(), err)
	}
}

// overwrite is the next forward: the sources are somebody else's now.
func (tr *tracer) overwrite(a *omni.SaveArgs, srcs [][]byte) {
	for i, s := range srcs {
		if a.Rows[i].Place == omni.OnDevice {
			tr.dev.Overwrite(a.Rows[i].Rows, int64(len(s)))
		}
		for i := range s {
			s[i] = 0xEE
		}
	}
}

// saveBroken tries to save while a driver call fails. If that call is one of the
// save's, nothing may have changed, and the very same save works afterwards. If it
// is not, the step is saved.
func (tr *tracer) saveBroken(a *omni.SaveArgs) (id uint64, err error) {
	if tr.rng.IntN(3) == 0 {
		bad := *a
		bad.Rows = append([]omni.KeyRows(nil), a.Rows...)
		for i := range bad.Rows {
			if r := &bad.Rows[i]; r.Place == omni.OnDevice { // a host pointer where device memory is expected
				b := make([]byte, 1)
				r.Rows = unsafe.Pointer(&b[0])
				if _, err := tr.c.Save(&bad); status.CodeOf(err) != status.InvalidArgument {
					tr.t.Fatalf("host memory as device memory: %v", err)
				}
				tr.check()
				break
			}
		}
	}
	before := tr.c.Stats()
	tr.dev.Break(tr.rng)
	id, err = tr.c.Save(a)
	tr.dev.Mend()
	if status.CodeOf(err) != status.Device {
		return id, err
	}
	tr.say("save failed: %v", err)
	tr.check()
	after := tr.c.Stats()
	if after.StepsSaved != before.StepsSaved || after.RowsSaved != before.RowsSaved || after.FailedWrites != 0 {
		tr.t.Fatalf("a failed save left something: %+v, before %+v", after, before)
	}
	return tr.c.Save(a)
}

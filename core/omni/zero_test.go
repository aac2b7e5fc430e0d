package omni

import "testing"

// Every way a row is released, one at a time; the random traces of both packages mix
// them, because Check looks at the memory when rows are to be cleared.
func TestReleasedRowsAreCleared(t *testing.T) {
	for _, threaded := range []bool{false, true} {
		r := newRig(t, Config{ZeroOnRelease: true, Threaded: threaded, InlineBytes: -1})
		row := func(name string, slot int64) uint64 { return *(*uint64)(r.c.keys[r.keys[name]].mirror.Row(slot)) }
		r.begin(nil, arrive(1)...)
		s := r.save(map[string]uint64{"a": 100, "d": 200}, chunk{1, span(0, 8)})
		r.commit()
		if row("a", 3) != 103 {
			t.Fatalf("threaded %v: row of slot 3 is %d", threaded, row("a", 3))
		}
		r.discard(s) // the staging page comes free
		r.check()
		r.begin([]uint64{1}) // the deferred rows move to the mirror, their store rows come free
		r.commit()
		if row("d", 7) != 207 {
			t.Fatalf("threaded %v: deferred row of slot 7 is %d", threaded, row("d", 7))
		}
		r.check()
		// Another tenant without these keys.
		r.begin(nil, arrive(2)...)
		r.discard(r.save(map[string]uint64{"b": 1}, chunk{2, span(2, 4)}))
		r.commit()
		for _, name := range []string{"a", "d"} {
			if row(name, 2) != 0 || row(name, 3) != 0 || row(name, 4) == 0 {
				t.Errorf("threaded %v, key %s: slots 2 to 4 hold %d, %d, %d", threaded, name, row(name, 2), row(name, 3), row(name, 4))
			}
		}
		// A deferred chunk of another tenant: its rows come later, the former go now.
		r.begin(nil, arrive(3)...)
		r.discard(r.save(map[string]uint64{"d": 300}, chunk{3, span(4, 6)}))
		if row("d", 4) != 0 || row("d", 5) != 0 || row("d", 6) == 0 {
			t.Errorf("threaded %v: slots 4 to 6 hold %d, %d, %d", threaded, row("d", 4), row("d", 5), row("d", 6))
		}
		r.check()
	}
}

// duringADeferredWrite is a cache that clears, and the job that writes the four rows of
// "d" of a request that has finished.
func duringADeferredWrite(t *testing.T) (*rig, Job) {
	t.Helper()
	r := newRig(t, Config{ZeroOnRelease: true, Threaded: true})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"d": 200}, chunk{1, span(0, 4)}))
	r.begin([]uint64{1})
	job, ok := r.c.NextJob()
	if !ok {
		t.Fatal("no job")
	}
	return r, job
}

// A slot is claimed while its deferred row is being written: the write lands, and is
// cleared when it ends.
func TestARowThatWasReleasedWhileItWasWrittenIsCleared(t *testing.T) {
	r, job := duringADeferredWrite(t)
	r.begin(nil, arrive(2)...)
	r.discard(r.save(map[string]uint64{"b": 1}, chunk{2, span(1, 2)}))
	r.check()
	r.c.JobDone(&job, r.c.RunHost(&job))
	if got := r.rows("d", 0, 1, 2); got[0] != 200 || got[1] != 0 || got[2] != 202 {
		t.Errorf("rows are %v", got)
	}
	if k := r.c.keys[r.keys["d"]]; *(*uint64)(k.mirror.Row(1)) != 0 {
		t.Error("the released row is still in the mirror")
	}
	r.check()
}

// A write that failed after its copies leaves its rows in the mirror: they are its
// tenant's, nobody can read them any more, and they go with the memory. The checker
// took them for rows of a former tenant.
func TestRowsOfAFailedWriteAreNotTakenForReleasedOnes(t *testing.T) {
	r, job := duringADeferredWrite(t)
	_ = r.c.RunHost(&job)
	r.c.JobDone(&job, errFailPoint)
	if err := r.c.Check(); err != nil {
		t.Fatal(err)
	}
}

// Looking for what is left of released rows, and clearing all of it at the end, make no
// memory present that held no row: both went over everything that was reserved.
func TestTheCheckAndTheLastWipeMakeNothingPresent(t *testing.T) {
	r := newRig(t, Config{ZeroOnRelease: true, Threaded: true, InlineBytes: -1, NumBlocks: 1 << 14, BlockSize: 64, StagingCapacity: 1 << 20})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"a": 100, "d": 200}, chunk{1, append(span(0, 8), 1<<19)}))
	r.begin([]uint64{1}) // the deferred rows move to the mirror
	r.commit()
	present := func() (bytes int64) {
		for _, k := range r.c.keys {
			bytes += k.mirror.Memory().Resident()
			if k.landing != nil {
				bytes += k.landing.Resident()
			}
			for _, m := range k.store.segs {
				bytes += m.Resident()
			}
		}
		return bytes
	}
	before := present()
	if before == 0 || before > 16<<20 {
		t.Fatalf("%d bytes are present, expected a few huge pages", before)
	}
	const slack = 8 << 20 // the system may make huge pages of small ones meanwhile
	r.check()
	if got := present(); got > before+slack {
		t.Errorf("%d bytes are present after a check, %d before", got, before)
	}
	for _, k := range r.c.keys {
		k.wipe()
	}
	if got := present(); got > before+slack {
		t.Errorf("%d bytes are present after a wipe, %d before", got, before)
	}
}

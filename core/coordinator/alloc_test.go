package coordinator

import "testing"

// A decode step of a settled request must not allocate, whether it grows a row
// or not, and neither may a whole request once its buffers have their size.
func TestSteps_DoNotAllocate(t *testing.T) {
	for kind := KindVanilla; kind <= KindEAGLE; kind++ {
		t.Run(kind.String(), func(t *testing.T) {
			r := newRig(t, kind, perPage(16, 600), pages(2500))
			a := prompts(seq(1, 33), seq(2, 20))
			a.Mode = modeOf(kind)
			tokens := []int32{5}
			adv := make([]Advance, 2)
			common := make([]int32, 2)
			h := Handle(0)
			step := func() {
				n, err := r.c.PrepareDecodeStep(h, Headroom{}, r.dst)
				r.report(h, n, err)
				for i := range adv {
					s, err := r.c.Sequence(h, i)
					if err != nil {
						t.Fatal(err)
					}
					adv[i] = Advance{Tokens: tokens, Committed: s.Committed + 1}
					common[i] = s.Committed
				}
				if kind != KindEAGLE {
					n, err = r.c.CompleteDecodeStep(h, adv, nil, nil, r.dst)
				} else {
					n, err = r.c.CompleteDecodeStep(h, adv, nil, common, r.dst)
				}
				r.report(h, n, err)
			}
			begin := func() {
				var err error
				if h, err = r.c.Begin(&a, testStream); err != nil {
					t.Fatal(err)
				}
				n, err := r.c.PreparePrefill(h, r.dst)
				r.report(h, n, err)
				n, err = r.c.EnqueuePrefillCaptures(h, r.dst)
				r.report(h, n, err)
				for i := range adv {
					adv[i] = Advance{Tokens: tokens, Committed: int32(len(a.Sequences[i].Tokens))}
					common[i] = adv[i].Committed
				}
				if kind != KindEAGLE {
					err = r.c.FinalizePrefill(h, adv, nil)
				} else {
					err = r.c.FinalizePrefill(h, adv, common)
				}
				r.report(h, 0, err)
			}
			finish := func() {
				n, err := r.c.Finish(h, r.dst)
				r.report(h, n, err)
			}
			for range 3 { // warm up: histories, scratch, records
				begin()
				for range 400 {
					step()
				}
				finish()
			}
			begin()
			if n := testing.AllocsPerRun(300, step); n != 0 {
				t.Errorf("a decode step allocates %v times", n)
			}
			finish()
			if n := testing.AllocsPerRun(100, func() { begin(); finish() }); n != 0 {
				t.Errorf("a request allocates %v times", n)
			}
			if n := testing.AllocsPerRun(100, func() { r.c.Metrics() }); n != 0 {
				t.Errorf("reading the metrics allocates %v times", n)
			}
		})
	}
}

func (r *rig) report(h Handle, n int, err error) {
	if err != nil {
		r.t.Fatal(err)
	}
	if n > 0 {
		if err := r.c.Report(h, Done, n); err != nil {
			r.t.Fatal(err)
		}
	}
}

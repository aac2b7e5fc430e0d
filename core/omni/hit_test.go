package omni

import (
	"reflect"
	"strings"
	"testing"

	"libprefixcache/core/status"
)

func TestO14_FinishAndReturnInOneOutputIsANewRequest(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 10}, chunk{1, span(0, 4)}))
	r.begin([]uint64{1}, hitOn(1, 4, 0, 1))
	step := r.save(map[string]uint64{"h": 20}, chunk{1, span(4, 5)})
	if got := r.read(step, "h")[1]; !reflect.DeepEqual(got, []uint64{10, 11, 12, 13, 20}) {
		t.Fatal(got)
	}
}

func TestO15_ALiveRequestOpensNoHit(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 10}, chunk{1, span(0, 4)}))
	for _, again := range [][]NewRequest{
		{hitOn(1, 4, 0)},                 // continuation, or a resume that re-enters as new
		{hitOn(1, 3), hitOn(1, 4, -5)},   // not even looked at
		{hitOn(2, 4, 0), hitOn(2, 4, 9)}, // the second of two is live by then
	} {
		acc := make([]bool, len(again))
		if err := r.c.StepBegin(nil, again, acc); err != nil {
			t.Fatal(err)
		}
		if acc[len(acc)-1] {
			t.Fatalf("%v opened a hit", again)
		}
	}
	step := r.save(map[string]uint64{"h": 20}, chunk{1, span(4, 5)})
	if got := r.read(step, "h")[1]; !reflect.DeepEqual(got, []uint64{20}) {
		t.Fatal(got)
	}
}

func TestO16_RowsOfAbortedRequestsAreWritten(t *testing.T) {
	for _, cfg := range []Config{{}, {Threaded: true}} {
		r := newRig(t, cfg)
		r.begin(nil, arrive(1)...)
		r.discard(r.save(map[string]uint64{"d": 10}, chunk{1, span(0, 4)}))
		r.begin([]uint64{1}) // finish and abort look the same
		r.commit()
		if got := r.rows("d", span(0, 4)...); !reflect.DeepEqual(got, seq(10, 4)) {
			t.Fatal(got)
		}
	}
}

func TestO17_BlockIdsAreCopied(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 10}, chunk{1, span(0, 8)}))
	blocks := []int64{1, 0}
	r.begin(nil, NewRequest{Request: 2, HitTokens: 8, Blocks: blocks})
	blocks[0], blocks[1] = 9, 9
	step := r.save(map[string]uint64{"h": 50}, chunk{2, span(12, 13)})
	if got := r.read(step, "h")[2]; !reflect.DeepEqual(got, []uint64{14, 15, 16, 17, 10, 11, 12, 13, 50}) {
		t.Fatal(got)
	}
}

// Every way a hit can be wrong is refused before anything changes, and the
// corrected retry is as good as a first try (S-5, S-6, S-16, S-19).
func TestS05_S06_S16_S19_ARefusedStepBeginChangesNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		bad  NewRequest
		code status.Code
		text string
	}{
		{"no blocks", hitOn(3, 4), status.Unmatch, "carries no block_ids"},
		{"not aligned", hitOn(3, 6, 0, 1), status.Unmatch, "prefix hit not block aligned"},
		{"S-6 short list", hitOn(3, 8, 0), status.Unmatch, "needs 2 block_ids, got 1"},
		{"S-19 negative block", hitOn(3, 8, 0, -1), status.Unmatch, "block_ids[1] of req r3 is -1"},
		{"block too large", hitOn(3, 4, 16), status.Unmatch, "is 16, expected 0 to 15"},
		{"negative tokens", hitOn(3, -4, 0), status.InvalidArgument, "-4 hit tokens"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Config{Threaded: true, NameOf: func(q uint64) string { return "r" + string(rune('0'+q)) }})
			r.begin(nil, arrive(1)...)
			r.discard(r.save(map[string]uint64{"h": 10, "d": 10}, chunk{1, span(0, 8)}))
			r.begin(nil, hitOn(7, 4, 0)) // an announced hit must survive as well
			before := r.c.Stats()
			err := r.tryBegin([]uint64{1}, hitOn(2, 8, 0, 1), c.bad)
			wantErr(t, err, c.code, c.text)
			if after := r.c.Stats(); after != before {
				t.Fatalf("stats changed: %+v, were %+v", after, before)
			}
			if _, ok := r.c.NextJob(); ok {
				t.Fatal("the finish was applied (S-5)")
			}
			if r.c.reqs.find(2) != none || r.c.reqs.find(3) != none {
				t.Fatal("the refused arrivals have entries, which nothing would remove")
			}
			r.accepted[7] = 4
			step := r.save(map[string]uint64{"h": 70}, chunk{7, span(20, 21)})
			if got := r.read(step, "h")[7]; len(got) != 5 {
				t.Fatalf("the hit announced before is gone: %v", got)
			}
			good := c.bad
			good.HitTokens, good.Blocks = 8, []int64{0, 1}
			r.begin([]uint64{1}, hitOn(2, 8, 0, 1), good)
			if r.accepted[2] != 8 || r.accepted[3] != 8 {
				t.Fatalf("the retry opened %v (S-16)", r.accepted)
			}
			step = r.save(map[string]uint64{"h": 50}, chunk{2, span(8, 9)}, chunk{3, span(12, 13)})
			want := append(seq(10, 8), 50)
			if got := r.read(step, "h"); !reflect.DeepEqual(got[2], want) {
				t.Fatal(got)
			}
			if r.commit() != 1 {
				t.Fatal("the finish of the retry queued no write")
			}
		})
	}
}

func TestUnknownFinishedIdsAreIgnored(t *testing.T) {
	r := newRig(t, Config{})
	r.begin([]uint64{5, 6, 5}, hitOn(5, 4, 0))
	if r.accepted[5] != 4 || r.c.Stats().LiveRequests != 1 {
		t.Fatalf("accepted %v", r.accepted)
	}
}

func TestHitsOfAStepThatIsNeverSavedAreGone(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 10}, chunk{1, span(0, 4)}))
	r.begin(nil, hitOn(2, 4, 0))
	r.begin(nil)
	step := r.save(map[string]uint64{"h": 20}, chunk{2, span(8, 9)})
	if got := r.read(step, "h")[2]; !reflect.DeepEqual(got, []uint64{20}) {
		t.Fatal(got)
	}
}

func TestRequestTableForgetsNothingAndNobody(t *testing.T) {
	var r requests
	r.init()
	ref := map[uint64]bool{}
	x := uint64(1)
	for range 20000 {
		x = x*6364136223846793005 + 1442695040888963407
		num := x >> 40 & 0x3FF << 54 // few values, all in the high bits: the probe chains are long
		if ref[num] {
			r.remove(r.find(num))
			delete(ref, num)
		} else {
			if e := r.get(num); r.get(num) != e {
				t.Fatal("two entries for one number")
			}
			ref[num] = true
		}
		if (r.find(num) != none) != ref[num] || r.used != len(ref) {
			t.Fatalf("request %x: found %v, want %v; %d entries, want %d", num, r.find(num), ref[num], r.used, len(ref))
		}
	}
	if err := r.check(); err != nil {
		t.Fatal(err)
	}
	if len(r.slab) > 2000 {
		t.Fatalf("slab has %d entries", len(r.slab))
	}
}

func TestNamesAreUsedInErrors(t *testing.T) {
	r := newRig(t, Config{NameOf: func(q uint64) string { return "chat-" + strings.Repeat("x", int(q)) }})
	wantErr(t, r.tryBegin(nil, hitOn(3, 4)), status.Unmatch, "req chat-xxx carries")
}

func TestRefusedArrivalsLeaveNoEntries(t *testing.T) {
	r := newRig(t, Config{})
	for q := range uint64(100) {
		if err := r.tryBegin([]uint64{q}, NewRequest{Request: 2 * q}, hitOn(2*q+1, 4, 0), hitOn(7777, 4)); err == nil {
			t.Fatal("accepted")
		}
	}
	if r.c.reqs.used != 0 {
		t.Fatalf("%d entries", r.c.reqs.used)
	}
}

// A request that finishes and returns in one output is new, so its hit is checked.
func TestO14_AReturningRequestsHitIsChecked(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	wantErr(t, r.tryBegin([]uint64{1}, hitOn(1, 4, -1)), status.Unmatch, "block_ids[0]")
	r.begin(nil, hitOn(1, 4, 0))
	if r.accepted[1] != 0 {
		t.Fatal("the refused output finished it")
	}
}

func TestHitsOfRequestsOutsideTheBatchAreDropped(t *testing.T) {
	r := newRig(t, Config{})
	r.begin(nil, arrive(1)...)
	r.discard(r.save(map[string]uint64{"h": 10}, chunk{1, span(0, 4)}))
	r.begin(nil, hitOn(2, 4, 0))
	if _, err := r.trySave(nil, chunk{2, nil}, chunk{2, nil}); err == nil { // must not be remembered as a batch
		t.Fatal("a request twice")
	}
	step := r.save(map[string]uint64{"h": 10})
	if n := r.c.Stats().PendingReads; n != 0 {
		t.Fatalf("%d reads planned for an empty batch", n)
	}
	r.discard(step)
}

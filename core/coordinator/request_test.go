package coordinator

import (
	"math"
	"testing"

	"libprefixcache/core/status"
)

func TestSequence_IndexOutOfRange(t *testing.T) {
	r := newRig(t, KindVanilla)
	q := r.full(prompts(seq(1, 6), seq(2, 5)))
	for _, i := range []int{-1, 2} {
		_, err := r.c.Sequence(q.h, i)
		r.wantCode(err, status.InvalidArgument)
	}
	r.must(r.finish(q))
	r.emptied()
}

// Who calls out of order knows calls, and no stages: the text says which lead there.
func TestEnter_ACallOutOfOrderSaysWhichCallsComeBefore(t *testing.T) {
	r := newRig(t, KindVanilla)
	q, err := r.begin(prompts(seq(1, 6)))
	r.must(err)
	says := func(err error, want string) {
		t.Helper()
		r.wantCode(err, status.WrongState)
		if err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	_, err = r.c.PrepareDecodeStep(q.h, Headroom{}, r.dst)
	says(err, "prepareDecodeStep: the request is in stage admitted, after beginRequest; expected awaiting-draft or settled, after finalizePrefillPublication, completeDecodeStep or compactBatch")
	_, err = r.c.EnqueuePrefillCaptures(q.h, r.dst)
	says(err, "enqueuePrefillCaptures: the request is in stage admitted, after beginRequest; expected prefill, after preparePrefill")
	r.toSettled(q)
	_, err = r.c.CompactBatch(q.h, r.dst)
	says(err, "compactBatch: the request is in stage settled, after finalizePrefillPublication, completeDecodeStep or compactBatch; expected compaction, after beginBatchCompaction")
	r.c.requests[q.h&0xffff].stage = StageFinishing
	_, err = r.c.PreparePrefill(q.h, r.dst)
	says(err, "preparePrefill: the request is in stage finishing, after a step that failed or compactBatch of all sequences; expected admitted, after beginRequest")
	r.must(r.drop(q, true))
}

// "Slot twice" of a batch is found with a stamp for each call. When it wraps, a slot
// that was used 2^32 calls ago must not count as used by this one.
func TestBegin_TheStampOfACallWraps(t *testing.T) {
	r := newRig(t, KindVanilla)
	r.publish(prompts(seq(1, 6), seq(2, 5)))
	r.c.stamp = math.MaxUint32
	q, err := r.begin(prompts(seq(3, 6), seq(4, 5)))
	if err != nil {
		t.Fatalf("no slot is used twice: %v", err)
	}
	r.must(r.drop(q, true))
	r.c.stamp = math.MaxUint32
	a := prompts(seq(5, 6), seq(6, 5))
	a.Slots = []int32{1, 1}
	_, err = r.c.Begin(&a, testStream)
	r.wantCode(err, status.InvalidArgument)
	r.emptied()
}

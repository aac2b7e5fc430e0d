package omni

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"libprefixcache/core/status"
)

// Marks in request entries and in the batch index are told apart by the number of the
// call. When it wraps, a mark of 2^32 calls ago must not count as one of this call.
func TestMarksOfCallsWrap(t *testing.T) {
	r := newRig(t, Config{})
	r.c.reqs.epoch = 0
	r.begin(nil, arrive(3)...) // born in call 1
	r.c.reqs.epoch = math.MaxUint32
	// Finished and back in one output: a hit that has to be checked. Taken for the second
	// arrival of one call, it would not be.
	wantErr(t, r.tryBegin([]uint64{3}, hitOn(3, 4, 99)), status.Unmatch, "block_ids[0] of req #3 is 99")
	r.begin([]uint64{3})

	r.begin(nil, arrive(5, 6)...)
	r.c.batch.index.epoch = 0
	r.discard(r.save(map[string]uint64{"h": 1}, chunk{5, span(0, 1)}, chunk{6, span(1, 2)})) // with epoch 1
	r.c.batch.index.epoch = math.MaxUint32
	// In another order, or the index would not be asked.
	if _, err := r.trySave(map[string]uint64{"h": 2}, chunk{6, span(0, 1)}, chunk{5, span(1, 2)}); err != nil {
		t.Errorf("no request is in the batch twice: %v", err)
	}
}

func TestInspectRefusesBadArguments(t *testing.T) {
	r := newRig(t, Config{})
	id := r.open("h")
	var st [1]SlotState
	var row [8]byte
	for name, c := range map[string]struct {
		err  error
		code status.Code
	}{
		"no such key":  {r.c.Inspect(id+1, []int64{0}, st[:], nil, 0), status.InvalidArgument},
		"slot beyond":  {r.c.Inspect(id, []int64{64}, st[:], nil, 0), status.InvalidArgument},
		"slot below":   {r.c.Inspect(id, []int64{-1}, st[:], nil, 0), status.InvalidArgument},
		"few states":   {r.c.Inspect(id, []int64{0, 1}, st[:], nil, 0), status.BufferTooSmall},
		"little space": {r.c.Inspect(id, []int64{0, 1}, nil, unsafe.Pointer(&row[0]), 8), status.BufferTooSmall},
	} {
		if status.CodeOf(c.err) != c.code {
			t.Errorf("%s: %v, want code %d", name, c.err, c.code)
		}
	}
	if _, err := r.c.Key(id + 1); status.CodeOf(err) != status.InvalidArgument {
		t.Errorf("information on a key that is none: %v", err)
	}
}

func TestTooManyOfEverythingIsRefused(t *testing.T) {
	r := newRig(t, Config{})
	requests := make([]uint64, maxBatch+1)
	_, err := r.c.Save(&SaveArgs{Requests: requests, Counts: make([]int64, len(requests))})
	wantErr(t, err, status.InvalidArgument, fmt.Sprintf("expected at most %d", maxBatch))
	keys := r.c.keys
	r.c.keys = make([]*key, maxKeys) // real ones would be more mappings than Linux gives a process
	_, err = r.c.OpenKey("one more", 1, 0, JoinNextStep)
	r.c.keys = keys
	wantErr(t, err, status.InvalidArgument, "one too many")
	if err := r.c.StepBegin(nil, arrive(1, 2), make([]bool, 1)); status.CodeOf(err) != status.InvalidArgument {
		t.Errorf("one entry for two arrivals: %v", err)
	}
	// 2^36 steps: at a million a second that is 19 hours, at a thousand two years.
	r.c.last = maxOwner
	_, err = r.c.Save(&SaveArgs{})
	wantErr(t, err, status.Internal, "used up")
	r.c.last = 0
}

// The staging pages of a key are reserved with the first step that needs one. Sizes that
// are allowed each for itself may come to more bytes than a number holds.
func TestStagingPagesBeyondEveryNumberCannotBeHad(t *testing.T) {
	r := newRig(t, Config{NumBlocks: 1, BlockSize: 1, StagingDepth: maxDepth, StagingCapacity: maxStepRows})
	for _, rowBytes := range []int64{1 << 24, 1<<24 + 1, 1<<24 + 64} { // in 64 bits: 0, 2^40, 2^46
		id, err := r.c.OpenKey("wide", rowBytes, 0, JoinNextStep)
		if err != nil {
			t.Fatal(err)
		}
		row := make([]byte, rowBytes)
		a := &SaveArgs{Requests: []uint64{1}, Counts: []int64{1}, Slots: []int64{0},
			Rows: []KeyRows{{Key: id, Rows: unsafe.Pointer(&row[0]), Stride: rowBytes}}}
		_, err = r.c.Save(a)
		wantErr(t, err, status.OutOfMemory, fmt.Sprintf("4096 staging pages of 268435456 rows of %d bytes", rowBytes))
	}
}

// A hit may name one block many times, and many requests may have one: their results may
// come to more bytes than a number holds, which must not look like a small buffer.
func TestResultsBeyondEveryNumberAreRefused(t *testing.T) {
	const block, rowBytes = 1 << 16, 1 << 26
	r := newRig(t, Config{NumBlocks: 1, BlockSize: block})
	id, err := r.c.OpenKey("wide", rowBytes, 0, JoinNextStep)
	if err != nil {
		t.Fatal(err)
	}
	var arrivals []NewRequest
	a := &SaveArgs{Slots: []int64{0}}
	for i := range uint64(128) { // 2^38 rows of 2^26 bytes, and one more
		arrivals = append(arrivals, NewRequest{Request: i, HitTokens: maxHitTokens, Blocks: make([]int64, maxHitTokens/block)})
		a.Requests, a.Counts = append(a.Requests, i), append(a.Counts, 0)
	}
	a.Counts[127] = 1
	if err := r.c.StepBegin(nil, arrivals, nil); err != nil {
		t.Fatal(err)
	}
	var row [rowBytes]byte
	dst := make([]byte, rowBytes)
	a.Rows = []KeyRows{{Key: id, Rows: unsafe.Pointer(&row), Stride: rowBytes, Dst: unsafe.Pointer(&dst[0]), DstBytes: rowBytes}}
	_, err = r.c.Save(a)
	wantErr(t, err, status.InvalidArgument, "key wide has 274877906945 rows of 67108864 bytes in the results of this step")
	r.begin(nil)
}

func TestStatesHaveNames(t *testing.T) {
	for s, want := range map[State]string{Absent: "ABSENT", InTransit: "IN_TRANSIT", Committed: "COMMITTED", Skipped: "SKIPPED", 9: "invalid"} {
		if s.String() != want {
			t.Errorf("state %d is %s, want %s", uint32(s), s, want)
		}
	}
}

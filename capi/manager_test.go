package main

import (
	"testing"
	"unsafe"
)

// acquired returns the arguments of pcgo_manager_acquire that are pointers.
func acquired[H, U, S, P, I, N, R any](func(H, U, U, *S, *P, *I, N, *I, N, *H) R) (sequence *S, plan *P, lease *H) {
	return new(S), new(P), new(H)
}

// A busy server is refused often, and one that asks for what it can never have, too.
func TestARefusalAllocatesNothing(t *testing.T) {
	o, h := made(pcgo_manager_create)
	sized(o)
	o.base_pages, o.tokens_per_page = 4, 8
	if st := pcgo_manager_create(o, h); st != 0 {
		t.Fatalf("create: status %d", st)
	}
	defer pcgo_manager_destroy(h)
	tokens := [40]int32{}
	sequence, plan, lease := acquired(pcgo_manager_acquire)
	sized(sequence)
	sized(plan)
	place(unsafe.Pointer(&sequence.tokens), unsafe.Pointer(&tokens))
	sequence.num_tokens = 32
	if st := pcgo_manager_acquire(*h, 0, 0, sequence, plan, nil, 0, nil, 0, lease); st != 0 {
		t.Fatalf("acquire: status %d", st)
	}
	_, _, none := acquired(pcgo_manager_acquire)
	for _, n := range []int{8, 40} { // not now, and never
		refused := true
		*(*int64)(unsafe.Pointer(&sequence.num_tokens)) = int64(n)
		if got := testing.AllocsPerRun(100, func() {
			refused = pcgo_manager_acquire(*h, 0, 0, sequence, plan, nil, 0, nil, 0, none) == 1 && refused
		}); got != 0 || !refused {
			t.Errorf("%d tokens: %v allocations, refused %v", n, got, refused)
		}
	}
}

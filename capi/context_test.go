package main

import (
	"testing"
	"unsafe"
)

// made returns the arguments of a function that makes an object.
func made[O, H, R any](func(*O, *H) R) (options *O, handle *H) { return new(O), new(H) }

// asked returns those of pcgo_context_begin that are pointers.
func asked[C, A, S, H, R any](func(C, *A, *S, *H) R) (admission *A, starts *S, request *H) {
	return new(A), new(S), new(H)
}

const hostMemory = 4 // PC_HOST_MEMORY: a test file cannot name C's constants

// A request that begins while its coordinator is being destroyed is refused, or keeps it:
// between the look for live requests and the end of the handle there is room for a call.
func TestC108_NobodyBeginsInADestroyedCoordinator(t *testing.T) {
	to, table := made(pcgo_table_create)
	sized(to)
	to.flags, to.max_batch, to.row_width, to.num_pages = hostMemory, 1, 4, 4
	o, context := made(pcgo_context_create)
	if st := pcgo_table_create(to, table); st != 0 {
		t.Fatalf("table: status %d", st)
	}
	sized(o)
	o.flags, o.max_batch = hostMemory, 1
	o.base.table, o.base.num_pages, o.base.max_batch, o.base.capacity_tokens = *table, 4, 1, 4*128
	if st := pcgo_context_create(o, context); st != 0 {
		t.Fatalf("context: status %d", st)
	}
	h := *context
	tokens, cuts := [5]int32{1, 2, 3, 4, 5}, [2]int64{0, 5}
	a, starts, request := asked(pcgo_context_begin)
	sized(a)
	a.num_sequences = 1
	place(unsafe.Pointer(&a.tokens), unsafe.Pointer(&tokens))
	place(unsafe.Pointer(&a.token_offsets), unsafe.Pointer(&cuts))

	x := handles.at(handle(h).index()).object.(*contextCache)
	x.mu.Lock() // both come while it is taken, destroy first
	destroyed, begun := make(chan bool), make(chan bool)
	go func() { destroyed <- pcgo_context_destroy(context) == 0 }()
	untilAsleep(t, 1)
	go func() { begun <- pcgo_context_begin(h, a, starts, request) == 0 }()
	untilAsleep(t, 2)
	x.mu.Unlock()
	gone, live := <-destroyed, <-begun
	if gone == live {
		t.Errorf("destroyed %v, begun %v, expected one of them", gone, live)
	}
	if live && !gone {
		pcgo_context_abandon(h, *request, 1)
		pcgo_context_destroy(context)
	}
	pcgo_table_destroy(table)
}

func place(at, p unsafe.Pointer) { *(*unsafe.Pointer)(at) = p }

// sized sets struct_size, which comes first.
func sized[T any](p *T) { *(*uint32)(unsafe.Pointer(p)) = uint32(unsafe.Sizeof(*p)) }

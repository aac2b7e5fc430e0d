package gpu

import (
	"unsafe"

	"gorgonia.org/cu"
)

// cu keeps its handles in structs with one unexported pointer field. Raw values
// from other libraries become such a struct by a cast, which is right only while
// the sizes agree; these lines do not compile when they no longer do.
var (
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Stream{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Event{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.CUContext{})]byte{}
)

// The odd values 1 and 2 are safe here: the field is a pointer to an incomplete C
// struct, which the collector and the stack copier do not look at (the tests
// grow a stack over one).
func (s Stream) cu() cu.Stream     { return *(*cu.Stream)(unsafe.Pointer(&s)) }
func (e Event) cu() cu.Event       { return *(*cu.Event)(unsafe.Pointer(&e)) }
func (c Context) cu() cu.CUContext { return *(*cu.CUContext)(unsafe.Pointer(&c)) }

func rawStream(s cu.Stream) Stream         { return *(*Stream)(unsafe.Pointer(&s)) }
func rawEvent(e cu.Event) Event            { return *(*Event)(unsafe.Pointer(&e)) }
func rawContext(c cu.CUContext) Context    { return *(*Context)(unsafe.Pointer(&c)) }
func hostPointer(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

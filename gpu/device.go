package gpu

import "unsafe"

// Stream is a raw cudaStream_t. The zero value is the legacy default stream.
type Stream uintptr

// Streams that exist without being created.
const (
	LegacyStream    Stream = 0 // torch's default stream
	PerThreadStream Stream = 2 // CU_STREAM_PER_THREAD
)

// UnnamedStream is for OpenCUDA and Check where nothing is enqueued: whether some stream is
// being captured does not matter then.
const UnnamedStream = ^Stream(0)

// Event is a raw cudaEvent_t. Zero is no event: torch's event.cuda_event is zero
// until it is recorded.
type Event uintptr

// Addr is a device address. On Host it is the address of ordinary memory.
type Addr uintptr

// Context is a raw CUcontext. Zero on Host.
type Context uintptr

// Place says where a Region has to be.
type Place uint8

const (
	OnDevice Place = iota // memory of this device
	OnHost                // any memory the CPU can touch
	Pinned                // host memory the driver knows: copies are asynchronous
)

// Region is memory that an operation is about to use.
type Region struct {
	Name  string // the argument, for the error text
	Addr  uintptr
	Bytes int64
	Place Place
}

// PointerInfo is what the driver knows about an address.
type PointerInfo struct {
	Device  bool // device memory; false for host memory and unknown addresses
	Known   bool // the driver knows the address: device memory or pinned host memory
	Managed bool
	Ordinal int // device it belongs to, -1 when unknown
	Base    uintptr
	Bytes   int64 // size of the allocation at Base; 0 when the driver does not say
}

// Copy2D is a copy of Height rows of Width bytes. Pitches are the distances
// between row starts. Exactly one form of each side is used: Host when not nil.
type Copy2D struct {
	Dst, Src         Addr
	DstHost, SrcHost unsafe.Pointer
	DstPitch         int64
	SrcPitch         int64
	Width, Height    int64
}

// EventFlags and StreamFlags choose how an event or stream is made.
type (
	EventFlags  uint8
	StreamFlags uint8
)

const (
	Timing   EventFlags = 1 << iota // Elapsed works; a recorded event costs more
	SpinWait                        // Await burns the CPU for a shorter wake-up
)

const (
	// NonBlocking keeps the stream free of the legacy stream's implicit waits,
	// so that copies overlap with a model that runs on the default stream.
	NonBlocking StreamFlags = 1 << iota
	// LowPriority lets work of the host application go first.
	LowPriority
)

// Device is everything the caches ask of the machine that holds their rows.
// Methods that take a Stream enqueue and return; the three that wait on the host
// say so. All methods may be called from any thread; ordering within one stream
// is the order of the calls.
type Device interface {
	// Name is for logs: "host", or the GPU's name.
	Name() string
	// IsHost reports that device addresses are ordinary pointers.
	IsHost() bool
	// Context is what everything on this device belongs to.
	Context() Context

	// Check refuses s, unless it is UnnamedStream, and every region that is not where it should
	// be, before an operation of several calls begins. The calls check s and device addresses
	// themselves; Check makes the whole operation all or nothing.
	Check(s Stream, regions []Region) error
	// Capturing reports whether s is being captured into a graph.
	Capturing(s Stream) (bool, error)
	// ContextOf is the context that s belongs to.
	ContextOf(s Stream) (Context, error)
	// Pointer says what the driver knows about an address.
	Pointer(addr uintptr) (PointerInfo, error)

	// Copies of n bytes, ordered on s. Host memory has to stay valid and, for
	// CopyToDevice, unchanged until the copy is done; with memory that is not
	// pinned the call may block until then.
	CopyToDevice(s Stream, dst Addr, src unsafe.Pointer, n int64) error
	CopyToHost(s Stream, dst unsafe.Pointer, src Addr, n int64) error
	CopyOnDevice(s Stream, dst, src Addr, n int64) error
	CopyRows(s Stream, c *Copy2D) error
	// Fill sets n bytes.
	Fill(s Stream, dst Addr, value byte, n int64) error

	NewEvent(flags EventFlags) (Event, error)
	FreeEvent(e Event) error
	// Record marks the work enqueued on s so far.
	Record(e Event, s Stream) error
	// CheckEvent refuses an event that nobody can wait for: one that was destroyed or
	// that was recorded into a graph. It may be of any stream, context and device.
	CheckEvent(e Event) error
	// WaitEvent makes later work of s wait for the last Record of e, which is an event of
	// this device or one that CheckEvent has let pass.
	WaitEvent(s Stream, e Event) error
	// Done reports whether the last Record of e has been reached. An event that
	// was never recorded is done, as in CUDA.
	Done(e Event) (bool, error)
	// Await blocks the calling thread until Done.
	Await(e Event) error
	// Elapsed is the time between two recorded Timing events in milliseconds.
	Elapsed(start, end Event) (float64, error)

	NewStream(flags StreamFlags) (Stream, error)
	FreeStream(s Stream) error
	// Idle reports whether all work of s is done; an error of that work is
	// returned here.
	Idle(s Stream) (bool, error)
	// Drain blocks the calling thread until s is idle.
	Drain(s Stream) error

	// AllocHost returns pinned memory. It may block and is never for a hot path.
	AllocHost(bytes int64) (unsafe.Pointer, error)
	FreeHost(p unsafe.Pointer) error
	// Register pins memory of ours that already exists; addresses and size are
	// rounded to nothing: they must be whole pages.
	Register(p unsafe.Pointer, bytes int64) error
	Unregister(p unsafe.Pointer) error
	// Alloc and Free are ordered on s: memory may be used by work enqueued on s
	// after Alloc and before Free.
	Alloc(s Stream, bytes int64) (Addr, error)
	Free(s Stream, a Addr) error

	// Bind prepares a thread of ours for calls that may wait.
	Bind() error
	// Enter does so for a thread of somebody else's, which may have another context or
	// none, and keeps the goroutine on it; leave puts back what was. ErrEnded: there is
	// no device any more.
	Enter() (leave func(), err error)
	// Close gives back what the device itself holds. Streams, events and memory
	// that were not freed are reported as a Busy error and left alone.
	Close() error
}

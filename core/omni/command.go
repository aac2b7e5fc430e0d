package omni

import "unsafe"

// Place says where the rows of a key are in a step.
type Place uint32

const (
	OnHost   Place = 0 // memory of this process
	OnDevice Place = 1 // device memory; Rows is a device address, which nothing here follows
)

// CommandKind is one thing that a device has to do for a step.
type CommandKind uint8

const (
	// CheckRows: Src, Stride, RowBytes and Rows are device memory that Stream can
	// read now, and Event, if it is not 0, can be waited for. It enqueues nothing:
	// everything is checked before anything begins.
	CheckRows CommandKind = iota + 1
	// PinPage: Host, Bytes is the memory of staging page Page from now on; pin it.
	// UnpinPage takes that back. No copy is under way on the page.
	PinPage
	UnpinPage
	// ReserveFrozen: have at least Bytes of device memory for frozen rows. What is
	// frozen there has landed, so the memory may move.
	ReserveFrozen
	// FreezeRows: on Stream, copy Rows rows of RowBytes, Stride apart, from Src to
	// byte Offset of the frozen memory, without gaps.
	FreezeRows
	// RecordFrozen marks the work of Stream; WaitFrozen lets the copy stream wait
	// for the mark. The caller's stream waits for nothing.
	RecordFrozen
	WaitFrozen
	// LandPage: on the copy stream, copy Bytes of frozen memory to Host, which is
	// the memory of page Page. RecordLanded marks it.
	LandPage
	RecordLanded
	// AwaitLanded blocks the calling thread until the mark of page Page is reached.
	AwaitLanded
	// AwaitReady: what follows on Stream waits for Event.
	AwaitReady
)

var commandNames = [...]string{"INVALID", "CHECK_ROWS", "PIN_PAGE", "UNPIN_PAGE", "RESERVE_FROZEN", "FREEZE_ROWS",
	"RECORD_FROZEN", "WAIT_FROZEN", "LAND_PAGE", "RECORD_LANDED", "AWAIT_LANDED", "AWAIT_READY"}

func (k CommandKind) String() string {
	if int(k) < len(commandNames) {
		return commandNames[k]
	}
	return commandNames[0]
}

// Command is device work as a plain value. A field has a meaning where its kind
// says so, and is zero elsewhere.
type Command struct {
	Kind     CommandKind
	Page     int
	Stream   uint64  // the producer's, as the caller gave it
	Event    uint64  // likewise
	Name     string  // of the key, for error texts
	Src      uintptr // device address
	Host     unsafe.Pointer
	Offset   int64
	Bytes    int64
	Stride   int64
	RowBytes int64
	Rows     int64
}

// Executor carries commands out; the embedding layer supplies it. It is called
// without the cache's lock, by Save and Free on the engine's thread and with
// AwaitLanded on any thread.
//
// Execute goes through the list in order. At the first command that fails it
// stops and returns the error; no copy that the list began is under way then.
type Executor interface {
	Execute(commands []Command) error
}

package coordinator

import "fmt"

// Cache says which of the two physical caches a command or a table belongs to.
// The numbers cross the C ABI.
type Cache int32

const (
	Base  Cache = 0
	Draft Cache = 1
)

// CommandKind names one piece of device work. The numbers cross the C ABI:
// they never change, new kinds are appended.
type CommandKind int32

const (
	// CmdNone is the zero value and is never emitted.
	CmdNone CommandKind = 0

	// CmdWaitUpload: wait on the host for the event of the table's previous
	// upload; only then may its staging memory be rewritten (C-78).
	CmdWaitUpload CommandKind = 1
	// CmdUploadRows: copy rows [Slot, Slot+Count) of the table of Cache from
	// host state through staging to the device mirror, one copy (C-76).
	CmdUploadRows CommandKind = 2
	// CmdRecordUpload: record the table's upload event on the stream.
	CmdRecordUpload CommandKind = 3

	// CmdZeroRecurrent: zero recurrent and conv state of live batch slot Slot.
	CmdZeroRecurrent CommandKind = 4
	// CmdRestoreRecurrent: copy recurrent snapshot Snapshot to live slot Slot.
	CmdRestoreRecurrent CommandKind = 5
	// CmdCaptureRecurrent: copy live slot Slot to recurrent snapshot Snapshot.
	CmdCaptureRecurrent CommandKind = 6
	// CmdRestorePage: copy the first Tokens tokens (K and V, every layer) of
	// partial snapshot Snapshot into base page Page.
	CmdRestorePage CommandKind = 7
	// CmdCapturePage: copy the first Tokens tokens of base page Page into
	// partial snapshot Snapshot.
	CmdCapturePage CommandKind = 8

	// CmdSetReuseLengths (runtime): reset Cache for the request's new sequences.
	// The lengths are Coordinator.ReuseLengths, their live slots
	// Coordinator.Slots; exactly Count values are read (D-5).
	CmdSetReuseLengths CommandKind = 9
	// CmdUploadMapping: copy the Count entries of Coordinator.CompactionMapping
	// to the caller's device mapping.
	CmdUploadMapping CommandKind = 10
	// CmdCompactState (runtime): move length, recurrent and conv state of Cache
	// in place by the uploaded mapping, Count old slots to New new ones.
	CmdCompactState CommandKind = 11
	// CmdSetActiveBatch (runtime, host only): set the active batch of Cache to New.
	CmdSetActiveBatch CommandKind = 12

	// CmdSynchronize: wait until all work enqueued on the stream has finished.
	// The only command whose failure is reported as SyncFailed.
	CmdSynchronize CommandKind = 13
)

var commandNames = [...]string{
	"none", "wait-upload", "upload-rows", "record-upload", "zero-recurrent", "restore-recurrent",
	"capture-recurrent", "restore-page", "capture-page", "set-reuse-lengths", "upload-mapping",
	"compact-state", "set-active-batch", "synchronize",
}

func (k CommandKind) String() string {
	if k < 0 || int(k) >= len(commandNames) {
		return fmt.Sprintf("command(%d)", int32(k))
	}
	return commandNames[k]
}

// Runtime reports whether the runtime's own cache manager carries out this
// kind, rather than the library.
func (k CommandKind) Runtime() bool {
	return k == CmdSetReuseLengths || k == CmdCompactState || k == CmdSetActiveBatch
}

// Command is one piece of device work, a plain value. Commands of one list are
// executed in order on the coordinator's stream. Fields a kind does not name
// are zero.
type Command struct {
	Kind     CommandKind
	Cache    Cache
	Slot     int32 // live batch slot, or first row
	Count    int32 // rows, lengths, mapping entries, old batch size
	New      int32 // new batch size
	Snapshot int32 // recurrent or partial-KV snapshot slot
	Page     int32 // base page id (K; V is Page + pages of the pool)
	Tokens   int32 // leading tokens of a page, 0 < Tokens < P
}

func (c Command) String() string {
	name := "base"
	if c.Cache == Draft {
		name = "draft"
	}
	switch c.Kind {
	case CmdWaitUpload, CmdRecordUpload:
		return fmt.Sprintf("%v %s", c.Kind, name)
	case CmdUploadRows:
		return fmt.Sprintf("%v %s [%d,%d)", c.Kind, name, c.Slot, c.Slot+c.Count)
	case CmdZeroRecurrent:
		return fmt.Sprintf("%v slot %d", c.Kind, c.Slot)
	case CmdRestoreRecurrent, CmdCaptureRecurrent:
		return fmt.Sprintf("%v slot %d snapshot %d", c.Kind, c.Slot, c.Snapshot)
	case CmdRestorePage, CmdCapturePage:
		return fmt.Sprintf("%v page %d tokens %d snapshot %d", c.Kind, c.Page, c.Tokens, c.Snapshot)
	case CmdSetReuseLengths:
		return fmt.Sprintf("%v %s n=%d", c.Kind, name, c.Count)
	case CmdUploadMapping:
		return fmt.Sprintf("%v n=%d", c.Kind, c.Count)
	case CmdCompactState:
		return fmt.Sprintf("%v %s %d->%d", c.Kind, name, c.Count, c.New)
	case CmdSetActiveBatch:
		return fmt.Sprintf("%v %s %d", c.Kind, name, c.New)
	default:
		return c.Kind.String()
	}
}

// Outcome is what the embedding layer reports after it executed a list.
type Outcome int32

const (
	// Done: every command was enqueued, every synchronisation succeeded.
	Done Outcome = 0
	// EnqueueFailed: a command could not be carried out (an error or a foreign
	// exception), but the stream may still be drained later.
	EnqueueFailed Outcome = 1
	// SyncFailed: a CmdSynchronize failed; the state of the device is unknown.
	SyncFailed Outcome = 2
)

// list writes commands into the caller's slice. Its room was checked against
// the operation's bound before anything changed, so put cannot overrun.
type list struct {
	dst []Command
	n   int
}

func (l *list) put(c Command) {
	l.dst[l.n] = c
	l.n++
}

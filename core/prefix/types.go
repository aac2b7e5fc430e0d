package prefix

// LeaseID names a lease: the low half is a slot, the high half its generation.
// Zero is the empty lease. A released or invented id is a BadHandle error.
type LeaseID uint64

// RecordID names a published record. Ids start at 1 and are never reused (C-35);
// zero means "no record".
type RecordID uint64

// Hash128 is 128 bits of caller-defined identity: a media digest, an adapter
// id, a block key.
type Hash128 struct{ Hi, Lo uint64 }

// IsZero reports the value that means "no digest here" in a media array (C-7).
func (h Hash128) IsZero() bool { return h.Hi|h.Lo == 0 }

// Resource is one of the four independent pools. Ids are pool-local (C-15).
type Resource uint8

const (
	BasePages Resource = iota
	DraftPages
	RecurrentSlots
	PartialSlots
	resourceCount
)

func (r Resource) String() string {
	if r < resourceCount {
		return [...]string{"base", "draft", "recurrent", "partial"}[r]
	}
	return "unknown"
}

// Demand counts resources by pool.
type Demand [resourceCount]int

// Mode selects the planning rule and the kind of lease.
type Mode uint8

const (
	Vanilla Mode = iota // attention only, whole pages
	Hybrid              // recurrent checkpoints, with or without attention
	Spec                // EAGLE: base and draft pages in step
)

// LookupPolicy says whether an acquire may look for cached state at all.
type LookupPolicy uint8

const (
	UseCache LookupPolicy = iota
	Bypass
)

// PlanKind is the kind of plan that metrics count.
type PlanKind uint8

const (
	Standard PlanKind = iota
	NoReusablePrefix
	FullInputRewind
)

// ReplayMode says what a speculative request computes again (C-48).
type ReplayMode uint8

const (
	NoReplay ReplayMode = iota
	FullPageReplay
)

// AcquireStatus is the outcome of an acquire that broke no contract.
type AcquireStatus uint8

const (
	Acquired AcquireStatus = iota
	InsufficientCapacity
	OverQuota // the tenant's own leases and this demand exceed Config.TenantQuota
)

// PublishStatus is the outcome of a publication that broke no contract.
type PublishStatus uint8

const (
	Published PublishStatus = iota
	ExistingRecord
)

// Reason says why an acquire reused nothing, or less than it might have. The
// original returns a length only; operators ask "why is my hit rate zero".
type Reason uint8

const (
	ReasonNone            Reason = iota // everything that could be reused was
	ReasonBypass                        // the caller asked not to look
	ReasonPromptTooShort                // the prompt has no full block
	ReasonExtrasUnknown                 // nothing is cached under this adapter, isolation, ... (or nothing at all)
	ReasonFirstBlock                    // the extras are known, the first block is not
	ReasonDiverged                      // a longer prefix is not cached: another continuation, or it was evicted
	ReasonFullInput                     // all of the prompt is cached; one page is computed again (C-44)
	ReasonMediaBoundary                 // cut back so that no media run is split (C-89)
	ReasonNoDraft                       // base pages match, no draft path does (C-49)
	ReasonDraftShorter                  // the draft side matches fewer blocks than the base side
	ReasonReplay                        // the last matched page is replayed (C-48)
	ReasonNoCheckpoint                  // no recurrent checkpoint on this prefix
	ReasonCheckpointShort               // a checkpoint was used, but attention pages match further
	ReasonCheckpointLong                // the only checkpoint is as long as the prompt (C-47)
	reasonCount

	NumReasons = int(reasonCount)
)

var reasonNames = [...]string{"none", "bypass", "prompt-too-short", "extras-unknown", "first-block", "diverged", "full-input",
	"media-boundary", "no-draft", "draft-shorter", "replay", "no-checkpoint", "checkpoint-short", "checkpoint-long"}

func (r Reason) String() string {
	if r < reasonCount {
		return reasonNames[r]
	}
	return "unknown"
}

// OptionalHash is a digest that may be absent. Absent and present-with-zero are
// two identities (C-3).
type OptionalHash struct {
	Present bool
	Hash    Hash128
}

// Adapter identifies the weights that a LoRA adapter adds. A reload under the
// same id takes a new generation (C-5).
type Adapter struct {
	Present    bool
	ID         Hash128
	Generation uint64
}

// MediaSpan is one media item inside a block. All fields and the order of spans
// are part of the identity (C-6).
type MediaSpan struct {
	Content   Hash128
	Placement Hash128
	Offset    int32
	Order     int32
	Modality  uint8
}

// Extras is everything besides tokens and media digests that sets two sequences
// apart. It applies to every block of the sequence (C-11).
type Extras struct {
	Adapter   Adapter
	Position  OptionalHash
	Embedding OptionalHash
	Isolation OptionalHash
	Spans     []MediaSpan
}

// Checkpoint is the exact identity of a recurrent checkpoint on the block-key
// level: a digest that the caller computed over Length tokens.
type Checkpoint struct {
	Length int
	Digest Hash128
}

// AcquireRequest asks for a lease on the pages of one prompt.
//
// On the token level set Tokens, and Media when any position is media: one
// digest per token, zero meaning "the token is the identity" (C-7). On the
// block-key level set Keys and TokenCount instead, and for Hybrid the
// Checkpoints that the caller would accept. Slices are read during the call only.
type AcquireRequest struct {
	Mode        Mode
	Policy      LookupPolicy
	NoAttention bool // Hybrid only: pure recurrent, no pages at all

	Tokens []int32
	Media  []Hash128
	Extras *Extras // nil: no extras

	Keys        []Hash128
	TokenCount  int
	Checkpoints []Checkpoint
}

// Plan is what an acquire found and what it binds. All lengths are tokens.
type Plan struct {
	Mode          Mode
	Kind          PlanKind
	Replay        ReplayMode
	Reason        Reason
	Matched       int      // prefix found before any rewind (C-46)
	Reuse         int      // where execution starts; < token count (C-44)
	BoundBase     int      // shared base pages at the front of the lease
	BoundDraft    int      // shared draft pages
	Record        RecordID // the record named by a spec or hybrid hit; the touched one for vanilla
	Dependency    int      // spec: number of leading blocks that a publication must still agree with; 0 = none
	Recurrent     int32    // snapshot slot to restore, -1 = none
	Partial       int32    // partial-KV slot to restore, -1 = none
	PartialTokens int      // Reuse mod page tokens when Partial is set
	Demand        Demand   // private resources
}

// AcquireResult is a lease, or the plan that did not fit.
type AcquireResult struct {
	Status AcquireStatus
	Lease  LeaseID
	Plan   Plan
}

// PublishResult says what a publication left behind.
type PublishResult struct {
	Status PublishStatus
	Record RecordID // 0: dropped at once (record limit 0, or Stale)
	Blocks int
	Stale  bool // the lease's state was invalidated or flushed after it began; nothing was cached
}

// Reservation is the pair of snapshot slots of one capture; -1 = none.
type Reservation struct {
	Recurrent int32
	Partial   int32
}

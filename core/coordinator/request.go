package coordinator

import (
	"slices"
	"strings"
	"sync/atomic"

	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// Handle names a request: generation in the upper 48 bits, table index in the
// lower 16. Zero is the empty handle. Generations are unique in the process,
// so that a handle of another coordinator never matches (C-82).
type Handle uint64

var lastGeneration atomic.Uint64

func newHandle(index int) Handle {
	return Handle(lastGeneration.Add(1)<<16 | uint64(index))
}

// ExecutionMode is how one request runs. The numbers cross the C ABI.
type ExecutionMode int32

const (
	ModeVanilla ExecutionMode = 0 // also hybrid and pure recurrent
	ModeEAGLE   ExecutionMode = 1
)

// LookupPolicy says whether a batch looks for cached state. Bypass still uses
// managed pages, but neither looks up nor publishes.
type LookupPolicy int32

const (
	UseCache LookupPolicy = 0
	Bypass   LookupPolicy = 1
)

// CommitPolicy says which endpoints of a batch are published.
type CommitPolicy int32

const (
	IncludingGenerated CommitPolicy = 0
	PrefillOnly        CommitPolicy = 1
)

// Phase is the coarse state that the original documents.
type Phase int32

const (
	PhaseAdmitted  Phase = 0
	PhaseExecuting Phase = 1
	PhaseFinishing Phase = 2
)

// Stage is the exact state: which calls are legal now (D-16). See doc.go.
type Stage int32

const (
	StageAdmitted      Stage = 0 // after Begin
	StagePrefill       Stage = 1 // prefill in flight
	StageCaptured      Stage = 2 // prefill in flight, captures enqueued
	StageAwaitingDraft Stage = 3 // EAGLE: draft initialisation in flight
	StageSettled       Stage = 4 // between steps
	StageDecode        Stage = 5 // decode step in flight
	StageCompaction    Stage = 6 // mapping uploaded, rows not moved yet
	StageFinishing     Stage = 7 // only Finish and Abandon are left
)

var stageNames = [...]string{"admitted", "prefill", "captured", "awaiting-draft", "settled", "decode", "compaction", "finishing"}

// stageCalls are the calls that lead to a stage.
var stageCalls = [...][]string{
	StageAdmitted: {"beginRequest"}, StagePrefill: {"preparePrefill"}, StageCaptured: {"enqueuePrefillCaptures"},
	StageAwaitingDraft: {"finalizePrefillPublication"}, StageSettled: {"finalizePrefillPublication", "completeDecodeStep", "compactBatch"},
	StageDecode: {"prepareDecodeStep"}, StageCompaction: {"beginBatchCompaction"},
	StageFinishing: {"a step that failed", "compactBatch of all sequences"},
}

func (s Stage) String() string { return enumName("stage", int32(s), stageNames[:]) }

// Phase folds the stages into the original's three phases.
func (s Stage) Phase() Phase {
	switch s {
	case StageAdmitted:
		return PhaseAdmitted
	case StageFinishing:
		return PhaseFinishing
	}
	return PhaseExecuting
}

const none int32 = -1

// sequence is the state of one sequence of a live request. It holds no
// pointers; tokens, media digests and pages belong to the lease.
type sequence struct {
	lease prefix.LeaseID
	slot  int32 // resident slot: row of the page tables, slot of the live state

	tokens     int32 // history: prompt, then accepted tokens
	matched    int32
	reuse      int32 // where prefill starts
	committed  int32 // leading tokens whose state is in the bound cache
	common     int32 // EAGLE: materialised in base and draft
	frozen     int32 // EAGLE: prompt length waiting for its draft state, none if not
	published  int32 // full blocks of this sequence published so far
	exact      int32 // longest exact checkpoint published so far
	basePages  int32
	draftPages int32

	skippedMedia int32
	restore      int32 // recurrent snapshot to restore, none
	restorePage  int32 // partial snapshot to restore, none

	kind       prefix.PlanKind
	reason     prefix.Reason
	forcedCold bool

	staged       bool // a capture is enqueued and not yet published
	stagedLength int32
	stagedSlots  prefix.Reservation
}

type entryState uint8

const (
	entryFree entryState = iota
	entryLive
	entryQuarantined
)

// request is one entry of the request table.
type request struct {
	handle  Handle
	state   entryState
	stage   Stage
	pending bool // device work may be running on our pages
	// awaiting: the prompt endpoints of an EAGLE request are frozen until its
	// draft initialisation is known to have finished.
	awaiting bool

	mode   ExecutionMode
	lookup LookupPolicy
	commit CommitPolicy

	seqs     []sequence
	mapping  []int32 // of the begun compaction
	newBatch int32   // none outside a compaction
}

func (r *request) eagle() bool { return r.mode == ModeEAGLE }

// find returns the live request of a handle.
func (c *Coordinator) find(h Handle) (*request, error) {
	if h == 0 {
		return nil, status.New(status.BadHandle, "request: the handle is empty")
	}
	i := int(h & 0xffff)
	if i >= len(c.requests) || c.requests[i].state != entryLive || c.requests[i].handle != h {
		return nil, status.New(status.BadHandle, "request: handle %#x is stale or belongs to another coordinator", uint64(h))
	}
	return &c.requests[i], nil
}

// stageSet is a set of stages: a bit each.
type stageSet uint16

func in(stages ...Stage) (set stageSet) {
	for _, s := range stages {
		set |= 1 << s
	}
	return set
}

// String names the stages, and the calls that lead there: a host knows these.
func (set stageSet) String() string {
	var stages, calls []string
	for s := StageAdmitted; s <= StageFinishing; s++ {
		if set&(1<<s) == 0 {
			continue
		}
		stages = append(stages, s.String())
		for _, call := range stageCalls[s] {
			if !slices.Contains(calls, call) {
				calls = append(calls, call)
			}
		}
	}
	return alternatives(stages) + ", after " + alternatives(calls)
}

func alternatives(names []string) string {
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// enter is find plus the two checks that every step shares: nothing else is in
// flight, and the request is in one of the given stages.
func (c *Coordinator) enter(what string, h Handle, legal stageSet) (*request, error) {
	r, err := c.find(h)
	if err != nil {
		return nil, err
	}
	if err := c.idle(what); err != nil {
		return nil, err
	}
	if legal&(1<<r.stage) == 0 {
		return nil, status.New(status.WrongState, "%s: the request is in stage %v; expected %v", what, in(r.stage), legal)
	}
	return r, nil
}

func (c *Coordinator) idle(what string) error {
	if c.op != opNone {
		return status.New(status.Busy, "%s: the list of %v is out, report it first", what, c.op)
	}
	return nil
}

// RequestInfo is a request's state as a query sees it.
type RequestInfo struct {
	Stage           Stage
	Phase           Phase
	Mode            ExecutionMode
	Lookup          LookupPolicy
	Commit          CommitPolicy
	Batch           int32
	CompactionBatch int32 // new batch size of a begun compaction, -1
	Pending         bool  // device work pending
	AwaitingDraft   bool  // spec: awaiting first completion
	InFlight        bool  // a list of this request waits for its report
}

// Request describes a live request.
func (c *Coordinator) Request(h Handle) (RequestInfo, error) {
	r, err := c.find(h)
	if err != nil {
		return RequestInfo{}, err
	}
	return RequestInfo{
		Stage: r.stage, Phase: r.stage.Phase(), Mode: r.mode, Lookup: r.lookup, Commit: r.commit,
		Batch: int32(len(r.seqs)), CompactionBatch: r.newBatch, Pending: r.pending, AwaitingDraft: r.awaiting,
		InFlight: c.op != opNone && c.opRequest == r.index(),
	}, nil
}

func (r *request) index() int { return int(r.handle & 0xffff) }

// SequenceInfo is a sequence's state as a query sees it. Lengths are tokens.
type SequenceInfo struct {
	Lease           prefix.LeaseID
	Slot            int32
	PrefillStart    int32 // = reuse length
	Matched         int32
	Tokens          int32 // history length
	Committed       int32
	Common          int32
	Frozen          int32 // -1 = none
	PublishedBlocks int32
	PublishedExact  int32
	BasePages       int32
	DraftPages      int32
	SkippedMedia    int32 // media positions before PrefillStart (D-12)
	Kind            prefix.PlanKind
	Reason          prefix.Reason // why nothing, or less, was reused
	ForcedCold      bool
	Staged          bool // a capture waits for its publication
}

// Sequence describes sequence i of a live request.
func (c *Coordinator) Sequence(h Handle, i int) (SequenceInfo, error) {
	r, err := c.find(h)
	if err != nil {
		return SequenceInfo{}, err
	}
	if i < 0 || i >= len(r.seqs) {
		return SequenceInfo{}, invalid("sequence: index is %d, expected [0,%d)", i, len(r.seqs))
	}
	s := &r.seqs[i]
	return SequenceInfo{
		Lease: s.lease, Slot: s.slot, PrefillStart: s.reuse, Matched: s.matched, Tokens: s.tokens,
		Committed: s.committed, Common: s.common, Frozen: s.frozen, PublishedBlocks: s.published, PublishedExact: s.exact,
		BasePages: s.basePages, DraftPages: s.draftPages, SkippedMedia: s.skippedMedia,
		Kind: s.kind, Reason: s.reason, ForcedCold: s.forcedCold, Staged: s.staged,
	}, nil
}

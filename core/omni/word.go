package omni

// word is the occupancy of one (slot, key), packed so that a claim is one store:
//
//	63..62 kind | 61..36 version | 35..0 owner
//
// The owner of a step word is the step that claimed it. A step word is committed
// when that step is written, and every committed word is "owner <= last written
// step": committing a step is one store to Cache.written and no pass over words.
// The owner of a deferred word is a write number; committing that write turns its
// words into step words of owner 0.
type word uint64

type kind uint64

const (
	kindNever    kind = 0 // no claim ever: ABSENT of the specification
	kindStep     kind = 1 // claimed by a step, or committed
	kindDeferred kind = 2 // claimed by a deferred write that is not written yet
	kindSkipped  kind = 3 // claimed by a step that has no row here (S-7, S-17)
)

const (
	ownerBits   = 36 // 6.8e10 steps: 20 years at 100 a second
	versionBits = 26 // wraps; a guard compares sums of it, nothing orders by it

	ownerMask    word = 1<<ownerBits - 1
	versionOne   word = 1 << ownerBits
	versionMask  word = (1<<versionBits - 1) << ownerBits
	kindShift         = 62
	wordKindMask word = 3 << kindShift
	maxOwner          = uint64(ownerMask)
)

func (w word) kind() kind      { return kind(w >> kindShift) }
func (w word) owner() uint64   { return uint64(w & ownerMask) }
func (w word) version() uint32 { return uint32(w & versionMask >> ownerBits) }

// claimed is w after a claim: another kind and owner, version one up (O-4).
func (w word) claimed(base word) word { return base | (w+versionOne)&versionMask }

// base is a word of version 0, what a claim adds the version to.
func base(k kind, owner uint64) word { return word(k)<<kindShift | word(owner) }

// committed is w as a row that is in the mirror; the version stays (O-4).
func (w word) committed() word { return base(kindStep, 0) | w&versionMask }

// State is what a (slot, key) looks like from outside. It is as wide as in the C
// interface, which has SlotState written straight into its caller's array.
type State uint32

const (
	Absent    State = 0 // never written
	InTransit State = 1 // claimed, not in the mirror yet
	Committed State = 2 // the row is in the mirror
	Skipped   State = 3 // the slot's present tenant has no row for this key
)

func (s State) String() string {
	switch s {
	case Absent:
		return "ABSENT"
	case InTransit:
		return "IN_TRANSIT"
	case Committed:
		return "COMMITTED"
	case Skipped:
		return "SKIPPED"
	}
	return "invalid"
}

// SlotState is one answer of Inspect.
type SlotState struct {
	State   State
	Version uint32 // claims of this (slot, key), modulo 2^26
	Owner   uint64 // step or deferred write number while in transit, else 0 (O-2)
}

// state reads w, given the last written step.
func (w word) state(written uint64) SlotState {
	s := SlotState{Version: w.version()}
	switch w.kind() {
	case kindSkipped:
		s.State = Skipped
	case kindDeferred:
		s.State, s.Owner = InTransit, w.owner()
	case kindStep:
		if s.State = Committed; w.owner() > written {
			s.State, s.Owner = InTransit, w.owner()
		}
	}
	return s
}

package main

/*
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"libprefixcache/core/coordinator"
	"libprefixcache/core/prefix"
	"libprefixcache/core/status"
)

// C arrays of these types are used as Go slices as they are: these lines do not
// compile when the layouts differ.
const (
	_ = -(unsafe.Sizeof(C.pc_hash128{}) ^ unsafe.Sizeof(prefix.Hash128{}))
	_ = -(unsafe.Offsetof(C.pc_hash128{}.low) ^ unsafe.Offsetof(prefix.Hash128{}.Lo))
)

// sequenceArgs turns a pc_sequence into core's form. It is scratch of the object
// whose lock the caller holds, so that a call crosses without an allocation.
type sequenceArgs struct {
	extras      prefix.Extras
	spans       []prefix.MediaSpan
	checkpoints []prefix.Checkpoint
}

// request fills req; mode and policy are the caller's. Slices of req point into
// the host's memory: core reads them during the call only.
func (a *sequenceArgs) request(s *C.pc_sequence, keyed bool, req *prefix.AcquireRequest) *status.Error {
	if s == nil {
		return status.New(status.InvalidArgument, "sequence: null, expected a pc_sequence")
	}
	if err := inSize("sequence", s, s.struct_size, unsafe.Sizeof(*s)); err != nil {
		return err
	}
	if err := reserved("sequence.reserved0", uint64(s.reserved0)); err != nil {
		return err
	}
	if s.num_tokens < 1 || s.num_tokens > 1<<31-1 {
		return status.New(status.InvalidArgument, "sequence.num_tokens: %d, expected 1 to 2^31 - 1", int64(s.num_tokens))
	}
	if keyed {
		return a.keyedRequest(s, req)
	}
	if s.keys != nil || s.num_keys != 0 || s.checkpoints != nil || s.num_checkpoints != 0 {
		return status.New(status.InvalidArgument, "sequence.keys: given, but the manager was created without PC_BLOCK_KEYS")
	}
	var err *status.Error
	if req.Tokens, err = slice[int32]("sequence.tokens", unsafe.Pointer(s.tokens), s.num_tokens); err != nil {
		return err
	}
	if s.media != nil {
		if req.Media, err = slice[prefix.Hash128]("sequence.media", unsafe.Pointer(s.media), s.num_tokens); err != nil {
			return err
		}
	}
	spans, err := slice[C.pc_media_span]("sequence.spans", unsafe.Pointer(s.spans), s.num_spans)
	if err != nil {
		return err
	}
	a.spans = a.spans[:0]
	if err := a.addSpans(spans); err != nil {
		return err
	}
	if s.extras == nil && len(spans) == 0 {
		return nil
	}
	if err := fillExtras(&a.extras, s.extras, a.spans); err != nil {
		return err
	}
	req.Extras = &a.extras
	return nil
}

func (a *sequenceArgs) keyedRequest(s *C.pc_sequence, req *prefix.AcquireRequest) *status.Error {
	if s.tokens != nil || s.media != nil || s.extras != nil || s.spans != nil {
		return status.New(status.InvalidArgument, "sequence: tokens, media, extras and spans are expected to be null with PC_BLOCK_KEYS")
	}
	var err *status.Error
	if req.Keys, err = slice[prefix.Hash128]("sequence.keys", unsafe.Pointer(s.keys), s.num_keys); err != nil {
		return err
	}
	points, err := slice[C.pc_checkpoint]("sequence.checkpoints", unsafe.Pointer(s.checkpoints), s.num_checkpoints)
	if err != nil {
		return err
	}
	a.checkpoints = a.checkpoints[:0]
	for i := range points {
		a.checkpoints = append(a.checkpoints, checkpoint(&points[i]))
	}
	req.TokenCount, req.Checkpoints = int(s.num_tokens), a.checkpoints
	return nil
}

func checkpoint(p *C.pc_checkpoint) prefix.Checkpoint {
	return prefix.Checkpoint{Length: int(p.length), Digest: hash(p.digest)}
}

func hash(h C.pc_hash128) prefix.Hash128 {
	return prefix.Hash128{Hi: uint64(h.high), Lo: uint64(h.low)}
}

func (a *sequenceArgs) addSpans(spans []C.pc_media_span) *status.Error {
	for i := range spans {
		s := &spans[i]
		if s.modality > 255 || s.offset < 0 || s.order < 0 || s.reserved0 != 0 {
			return status.New(status.InvalidArgument, "spans[%d]: modality %d, offset %d, order %d, reserved %d, expected a modality below 256, no negative number and 0",
				i, uint32(s.modality), int32(s.offset), int32(s.order), uint32(s.reserved0))
		}
		a.spans = append(a.spans, prefix.MediaSpan{Content: hash(s.content), Placement: hash(s.placement),
			Offset: int32(s.offset), Order: int32(s.order), Modality: uint8(s.modality)})
	}
	return nil
}

const extraBits = C.PC_EXTRA_ADAPTER | C.PC_EXTRA_POSITION | C.PC_EXTRA_EMBEDDING | C.PC_EXTRA_ISOLATION

// fillExtras converts one pc_extras; e may be null.
func fillExtras(dst *prefix.Extras, e *C.pc_extras, spans []prefix.MediaSpan) *status.Error {
	*dst = prefix.Extras{Spans: spans}
	if e == nil {
		return nil
	}
	if err := aligned("extras", e); err != nil {
		return err
	}
	if e.present&^extraBits != 0 {
		return status.New(status.Unsupported, "extras.present: %#x, expected only PC_EXTRA_ bits (%#x)", uint32(e.present), uint32(extraBits))
	}
	if err := reserved("extras.reserved0", uint64(e.reserved0)); err != nil {
		return err
	}
	if e.present&C.PC_EXTRA_ADAPTER != 0 {
		dst.Adapter = prefix.Adapter{Present: true, ID: hash(e.adapter), Generation: uint64(e.adapter_generation)}
	}
	optional := func(bit C.uint32_t, h C.pc_hash128) prefix.OptionalHash {
		if e.present&bit == 0 {
			return prefix.OptionalHash{}
		}
		return prefix.OptionalHash{Present: true, Hash: hash(h)}
	}
	dst.Position = optional(C.PC_EXTRA_POSITION, e.position)
	dst.Embedding = optional(C.PC_EXTRA_EMBEDDING, e.embedding)
	dst.Isolation = optional(C.PC_EXTRA_ISOLATION, e.isolation)
	return nil
}

// offsets views an offset array of n + 1 entries and checks that it begins with
// 0 and never falls. The last entry is the length of the array it cuts.
func offsets(argument string, p unsafe.Pointer, n int) ([]int64, *status.Error) {
	o, err := slice[int64](argument, p, int64(n+1))
	if err != nil {
		return nil, err
	}
	if o[0] != 0 {
		return nil, status.New(status.InvalidArgument, "%s[0]: %d, expected 0", argument, o[0])
	}
	for i := 1; i < len(o); i++ {
		if o[i] < o[i-1] {
			return nil, status.New(status.InvalidArgument, "%s[%d]: %d after %d, expected offsets that never fall", argument, i, o[i], o[i-1])
		}
	}
	return o, nil
}

// admissionArgs is the scratch of pc_context_begin.
type admissionArgs struct {
	admission coordinator.Admission
	sequences []coordinator.SequenceAdmission
	extras    []prefix.Extras
	sequence  sequenceArgs
}

// convert turns the flat arrays of a pc_admission into core's form. Nothing is
// copied but the extras.
func (a *admissionArgs) convert(in *C.pc_admission, maxBatch int32) (*coordinator.Admission, *status.Error) {
	if in == nil {
		return nil, status.New(status.InvalidArgument, "admission: null, expected a pc_admission")
	}
	if err := inSize("admission", in, in.struct_size, unsafe.Sizeof(*in)); err != nil {
		return nil, err
	}
	for _, v := range in.reserved {
		if err := reserved("admission.reserved", uint64(v)); err != nil {
			return nil, err
		}
	}
	if err := reserved("admission.reserved0", uint64(in.reserved0)); err != nil {
		return nil, err
	}
	n := int(in.num_sequences)
	if n < 1 || n > int(maxBatch) {
		return nil, status.New(status.InvalidArgument, "admission.num_sequences: %d, expected 1 to %d", n, maxBatch)
	}
	cuts, err := offsets("admission.token_offsets", unsafe.Pointer(in.token_offsets), n)
	if err != nil {
		return nil, err
	}
	tokens, err := slice[int32]("admission.tokens", unsafe.Pointer(in.tokens), cuts[n])
	if err != nil {
		return nil, err
	}
	a.sequences = a.sequences[:0]
	for i := range n {
		a.sequences = append(a.sequences, coordinator.SequenceAdmission{Tokens: tokens[cuts[i]:cuts[i+1]:cuts[i+1]]})
	}
	if err := a.media(in, n); err != nil {
		return nil, err
	}
	if err := a.addExtras(in, n); err != nil {
		return nil, err
	}
	var slots []int32
	if in.slots != nil {
		if slots, err = slice[int32]("admission.slots", unsafe.Pointer(in.slots), int64(n)); err != nil {
			return nil, err
		}
	}
	a.admission = policies(in)
	a.admission.Sequences, a.admission.Slots = a.sequences, slots
	return &a.admission, nil
}

func policies(in *C.pc_admission) coordinator.Admission {
	return coordinator.Admission{Mode: coordinator.ExecutionMode(in.execution), Lookup: coordinator.LookupPolicy(in.lookup),
		Commit: coordinator.CommitPolicy(in.commit)}
}

// forget drops what points into the host's memory, which the host may give back
// while the scratch lives on: the collector must not find such a pointer.
func (a *admissionArgs) forget() {
	a.admission = coordinator.Admission{}
	clear(a.sequences)
}

func (a *admissionArgs) media(in *C.pc_admission, n int) *status.Error {
	if in.media == nil {
		if in.media_offsets != nil {
			return status.New(status.InvalidArgument, "admission.media: null with media_offsets, expected both or neither")
		}
		return nil
	}
	cuts, err := offsets("admission.media_offsets", unsafe.Pointer(in.media_offsets), n)
	if err != nil {
		return err
	}
	media, err := slice[prefix.Hash128]("admission.media", unsafe.Pointer(in.media), cuts[n])
	if err != nil {
		return err
	}
	for i := range a.sequences {
		if cuts[i] < cuts[i+1] { // a text sequence of a batch has none
			a.sequences[i].Media = media[cuts[i]:cuts[i+1]:cuts[i+1]]
		}
	}
	return nil
}

func (a *admissionArgs) addExtras(in *C.pc_admission, n int) *status.Error {
	if in.extras == nil && in.spans == nil {
		if in.span_offsets != nil {
			return status.New(status.InvalidArgument, "admission.spans: null with span_offsets, expected both or neither")
		}
		return nil
	}
	var extras []C.pc_extras
	var spans []C.pc_media_span
	var cuts []int64
	var err *status.Error
	if in.extras != nil {
		if extras, err = slice[C.pc_extras]("admission.extras", unsafe.Pointer(in.extras), int64(n)); err != nil {
			return err
		}
	}
	if in.spans != nil {
		if cuts, err = offsets("admission.span_offsets", unsafe.Pointer(in.span_offsets), n); err != nil {
			return err
		}
		if spans, err = slice[C.pc_media_span]("admission.spans", unsafe.Pointer(in.spans), cuts[n]); err != nil {
			return err
		}
	}
	a.sequence.spans = a.sequence.spans[:0]
	if err := a.sequence.addSpans(spans); err != nil {
		return err
	}
	if cap(a.extras) < n {
		a.extras = make([]prefix.Extras, n)
	}
	a.extras = a.extras[:n]
	for i := range n {
		var own []prefix.MediaSpan
		if spans != nil {
			own = a.sequence.spans[cuts[i]:cuts[i+1]:cuts[i+1]]
		}
		var e *C.pc_extras
		if extras != nil {
			e = &extras[i]
		}
		if err := fillExtras(&a.extras[i], e, own); err != nil {
			return err
		}
		a.sequences[i].Extras = &a.extras[i]
	}
	return nil
}

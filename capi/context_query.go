package main

/*
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"libprefixcache/core/coordinator"
	"libprefixcache/core/status"
)

func flag(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}

//export pcgo_context_get_request
func pcgo_context_get_request(ctx, request C.pc_handle, info *C.pc_request_info) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("info", info); err != nil {
		return fail(err)
	}
	if err := outSize("info", info, info.struct_size, statsMinBytes); err != nil {
		return fail(err)
	}
	r, err := x.c.Request(coordinator.Handle(request))
	if err != nil {
		return fail(err)
	}
	fill(info, info.struct_size, C.pc_request_info{
		phase: C.uint32_t(r.Phase), pending: flag(r.Pending), awaiting_draft: flag(r.AwaitingDraft), report_due: flag(r.InFlight),
		execution: C.uint32_t(r.Mode), num_sequences: C.uint32_t(r.Batch), compaction_batch: C.int32_t(r.CompactionBatch),
	})
	return C.PC_OK
}

//export pcgo_context_get_sequence
func pcgo_context_get_sequence(ctx, request C.pc_handle, index C.uint32_t, info *C.pc_sequence_info) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("info", info); err != nil {
		return fail(err)
	}
	if err := outSize("info", info, info.struct_size, statsMinBytes); err != nil {
		return fail(err)
	}
	s, err := x.c.Sequence(coordinator.Handle(request), int(index))
	if err != nil {
		return fail(err)
	}
	fill(info, info.struct_size, C.pc_sequence_info{
		slot: C.int32_t(s.Slot), tokens: C.int32_t(s.Tokens), prefill_start: C.int32_t(s.PrefillStart),
		committed: C.int32_t(s.Committed), common: C.int32_t(s.Common),
		published_blocks: C.int32_t(s.PublishedBlocks), published_length: C.int32_t(s.PublishedExact),
		frozen_length: C.int32_t(s.Frozen), staged: flag(s.Staged),
		base_pages: C.int32_t(s.BasePages), draft_pages: C.int32_t(s.DraftPages),
	})
	return C.PC_OK
}

//export pcgo_context_sequence_pages
func pcgo_context_sequence_pages(ctx, request C.pc_handle, index, model C.uint32_t, first C.uint64_t, pages *C.int32_t, space C.uint64_t, num *C.uint64_t) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	s, err := x.c.Sequence(coordinator.Handle(request), int(index))
	if err != nil {
		return fail(err)
	}
	m := manager{m: x.c.Manager()}
	return fail(m.leasePages(s.Lease, model, first, pages, space, num))
}

//export pcgo_context_sequence_tokens
func pcgo_context_sequence_tokens(ctx, request C.pc_handle, index C.uint32_t, first C.uint64_t, tokens *C.int32_t, space C.uint64_t, num *C.uint64_t) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("num_tokens", num); err != nil {
		return fail(err)
	}
	s, err := x.c.Sequence(coordinator.Handle(request), int(index))
	if err != nil {
		return fail(err)
	}
	room, serr := window[int32]("tokens", unsafe.Pointer(tokens), space, first, int(s.Tokens))
	if serr != nil {
		return fail(serr)
	}
	if err := x.c.Manager().History(s.Lease, int(first), room); err != nil {
		return fail(err)
	}
	*num = C.uint64_t(s.Tokens)
	return C.PC_OK
}

//export pcgo_context_get_metrics
func pcgo_context_get_metrics(ctx C.pc_handle, metrics *C.pc_context_metrics) (st C.pc_status) {
	x, serr := enterContext(ctx)
	defer x.leave(&st)
	if serr != nil {
		return fail(serr)
	}
	if err := out("metrics", metrics); err != nil {
		return fail(err)
	}
	if err := outSize("metrics", metrics, metrics.struct_size, statsMinBytes); err != nil {
		return fail(err)
	}
	fill(metrics, metrics.struct_size, x.metrics())
	return C.PC_OK
}

// metrics puts core's counters, and those of the device work, into the struct of the
// header.
func (x *contextCache) metrics() C.pc_context_metrics {
	m := x.c.Metrics()
	n := func(v int64) C.uint64_t { return C.uint64_t(v) }
	out := C.pc_context_metrics{
		poisoned: flag(x.c.Poisoned()), admitted_sequences: n(m.AdmittedSequences), hit_sequences: n(m.HitSequences),
		media_aware_sequences: n(m.MediaAwareSequences), lookup_bypass_sequences: n(m.LookupBypassSequences),
		forced_cold_sequences: n(m.ForcedColdSequences), standard_plans: n(m.StandardPlans),
		no_reusable_prefix_plans: n(m.NoReusablePrefixPlans), full_input_rewind_plans: n(m.FullInputRewindPlans),
		matched_tokens: n(m.MatchedTokens), reused_tokens: n(m.ReusedTokens), skipped_media_positions: n(m.SkippedMediaPositions),
		publication_attempts: n(m.PublicationAttempts), committed_publications: n(m.CommittedPublications),
		existing_publications: n(m.ExistingPublications), published_endpoints: n(m.PublishedEndpoints),
		hybrid_restores: n(m.HybridRestores), hybrid_snapshot_pressure_skips: n(m.HybridPressureSkips),
		hybrid_capture_synchronizations: n(m.HybridCaptureSyncs), spec_full_page_replays: n(m.SpecFullPageReplays),
		spec_pair_publications: n(m.SpecPairPublications), planning_nanoseconds: n(m.PlanningNanoseconds),
		quarantined_requests: n(m.QuarantinedRequests), active_requests: n(m.ActiveRequests), active_requests_peak: n(m.ActiveRequestsPeak),
		captured_bytes: n(x.store.captured), restored_bytes: n(x.store.restored), moved_bytes: n(x.store.moved), snapshot_bytes: n(x.store.bytes),
		synchronizations: C.uint64_t(x.syncs.count.Load()), synchronization_nanoseconds: C.uint64_t(x.syncs.nanoseconds.Load()),
		pinned_bytes: n(x.pinnedBytes),
	}
	for _, t := range x.tables {
		if t != nil {
			out.uploaded_bytes += n(t.sent)
			out.upload_waits += C.uint64_t(t.waits.count.Load())
			out.upload_wait_nanoseconds += C.uint64_t(t.waits.nanoseconds.Load())
			out.pinned_bytes += n(t.pinned)
		}
	}
	return out
}

// model converts a pc_model for the gate.
func model(name string, in *C.pc_model) (m coordinator.Model, err error) {
	if in == nil {
		return m, status.New(status.InvalidArgument, "deployment.%s: null, expected a pc_model", name)
	}
	if err := aligned("deployment."+name, in); err != nil {
		return m, err
	}
	layers, serr := slice[uint32](name+".layers", unsafe.Pointer(in.layers), in.num_layers)
	if serr != nil {
		return m, serr
	}
	attention, err := attentionLayers(name+".attention", in.attention, in.num_attention)
	if err != nil {
		return m, err
	}
	recurrent, schema, err := recurrentLayers(name+".recurrent", in.recurrent, in.num_recurrent)
	if err != nil {
		return m, err
	}
	donors, serr := slice[int32](name+".kv_donors", unsafe.Pointer(in.kv_donors), in.num_kv_donors)
	if serr != nil {
		return m, serr
	}
	m = coordinator.Model{
		MaxBatch: int32(in.max_batch), Capacity: int32(in.capacity_tokens), KVPages: int64(in.num_pages),
		AttentionLayers: int32(len(attention)), RecurrentLayers: int32(len(recurrent)), KVDonors: donors, Recurrent: schema,
		HiddenSize: int32(in.hidden_size), BaseHiddenSize: int32(in.base_hidden_size), SpecBase: in.spec_base != 0, EAGLE: in.eagle != 0,
	}
	for _, l := range layers {
		m.Layers = append(m.Layers, coordinator.LayerKind(l))
	}
	for i := range attention {
		m.KV = append(m.KV, coordinator.KVLayer{Heads: int32(attention[i].kv_heads), HeadDim: int32(attention[i].head_dim)})
		m.KVType = coordinator.DType(attention[i]._type)
	}
	return m, nil
}

//export pcgo_context_validate_deployment
func pcgo_context_validate_deployment(in *C.pc_deployment, kind *C.uint32_t) (st C.pc_status) {
	defer guard(&st)
	if err := out("kind", kind); err != nil {
		return fail(err)
	}
	if in == nil {
		return failNew(status.InvalidArgument, "deployment: null, expected a pc_deployment")
	}
	if err := inSize("deployment", in, in.struct_size, unsafe.Sizeof(*in)); err != nil {
		return fail(err)
	}
	for _, v := range in.reserved {
		if err := reserved("deployment.reserved", uint64(v)); err != nil {
			return fail(err)
		}
	}
	d := coordinator.Deployment{DiffusionBackbone: in.diffusion_backbone != 0, VisionBidirectional: in.vision_bidirectional != 0,
		TokensPerPage: int32(in.tokens_per_page), Mode: coordinator.SpecMode(in.speculative)}
	var err error
	if d.Base, err = model("base", in.base); err != nil {
		return fail(err)
	}
	if in.draft != nil {
		draft, err := model("draft", in.draft)
		if err != nil {
			return fail(err)
		}
		d.Draft = &draft
	}
	layers, serr := slice[int32]("deployment.conditioning_layers", unsafe.Pointer(in.conditioning_layers), in.num_conditioning_layers)
	if serr != nil {
		return fail(serr)
	}
	if in.verify_size != 0 || in.drafting_step != 0 || in.drafting_top_k != 0 || in.conditioning_layers != nil {
		d.Spec = &coordinator.Spec{VerifySize: int32(in.verify_size), DraftingStep: int32(in.drafting_step), DraftingTopK: int32(in.drafting_top_k), ConditioningLayers: layers}
	}
	k, err := coordinator.ValidateDeployment(&d)
	if err != nil {
		return fail(err)
	}
	*kind = C.uint32_t(k)
	return C.PC_OK
}

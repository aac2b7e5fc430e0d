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

const contextFlags = C.PC_ORIGINAL_RECENCY | C.PC_HOST_MEMORY | C.PC_SHORTEN_VICTIMS | C.PC_WEAK_HASH | C.PC_ZERO_ON_RELEASE

// config turns pc_context_options into core's configuration, takes the tables,
// and describes the snapshots. Core judges the numbers.
func (x *contextCache) config(in *C.pc_context_options) (*coordinator.Config, error) {
	if in == nil {
		return nil, status.New(status.InvalidArgument, "options: null, expected a pc_context_options")
	}
	if err := inSize("options", in, in.struct_size, unsafe.Offsetof(in.tenant_quota)); err != nil {
		return nil, err
	}
	known := options(in, in.struct_size)
	o := &known
	if o.flags&^contextFlags != 0 {
		return nil, status.New(status.Unsupported, "options.flags: %#x, expected PC_ORIGINAL_RECENCY | PC_HOST_MEMORY | PC_SHORTEN_VICTIMS | PC_WEAK_HASH | PC_ZERO_ON_RELEASE", uint32(o.flags))
	}
	if err := tenantQuota(o.tenant_quota, o.reserved1); err != nil {
		return nil, err
	}
	for _, v := range o.reserved {
		if err := reserved("options.reserved", uint64(v)); err != nil {
			return nil, err
		}
	}
	if o.kind > C.PC_DEPLOY_EAGLE {
		return nil, status.New(status.InvalidArgument, "options.kind: %d, expected PC_DEPLOY_VANILLA (0) to PC_DEPLOY_EAGLE (3)", uint32(o.kind))
	}
	if o.kind != C.PC_DEPLOY_EAGLE && (o.draft_max_batch|o.verify_size|o.drafting_step|o.drafting_top_k) != 0 {
		return nil, status.New(status.InvalidArgument, "options: draft_max_batch %d, verify_size %d, drafting_step %d, drafting_top_k %d, expected 0 for a kind other than PC_DEPLOY_EAGLE",
			int32(o.draft_max_batch), int32(o.verify_size), int32(o.drafting_step), int32(o.drafting_top_k))
	}
	records, serr := recordLimit(o.max_records)
	if serr != nil {
		return nil, serr
	}
	cfg := coordinator.DefaultConfig()
	cfg.Enabled = true
	cfg.Kind = coordinator.Kind(o.kind)
	cfg.TokensPerPage = int32(o.tokens_per_page)
	cfg.MaxRecords, cfg.MaxRequests = records, int32(o.max_requests)
	cfg.MaxBatch, cfg.DraftMaxBatch = int32(o.max_batch), int32(o.draft_max_batch)
	cfg.RecurrentBudget, cfg.PartialBudget = int64(o.recurrent_budget), int64(o.partial_budget)
	cfg.FutureTokens = int32(o.future_tokens)
	cfg.OriginalRecency = o.flags&C.PC_ORIGINAL_RECENCY != 0
	cfg.ShortenVictims = o.flags&C.PC_SHORTEN_VICTIMS != 0
	cfg.ZeroOnRelease = o.flags&C.PC_ZERO_ON_RELEASE != 0
	cfg.TenantQuota = int(o.tenant_quota)
	cfg.Hash = tableHash(o.flags)
	cfg.Stream = uint64(o.stream)
	cfg.Clock = clock
	if o.verify_size != 0 || o.drafting_step != 0 || o.drafting_top_k != 0 {
		cfg.Spec = &coordinator.Spec{VerifySize: int32(o.verify_size), DraftingStep: int32(o.drafting_step), DraftingTopK: int32(o.drafting_top_k)}
	}
	var err error
	if cfg.Base, err = x.resources("base", &o.base, C.PC_BASE); err != nil {
		return nil, err
	}
	if o.draft != (C.pc_cache_resources{}) {
		draft, err := x.resources("draft", &o.draft, C.PC_DRAFT)
		if err != nil {
			return nil, err
		}
		cfg.Draft = &draft
	}
	if cfg.Kind == coordinator.KindHybrid || cfg.Kind == coordinator.KindPureRecurrent {
		if err := x.store.describe(o, &cfg); err != nil {
			return nil, err
		}
	}
	return &cfg, nil
}

// resources takes a table for this coordinator.
func (x *contextCache) resources(name string, r *C.pc_cache_resources, model int) (coordinator.CacheResources, error) {
	res := coordinator.CacheResources{Pages: int32(r.num_pages), MaxBatch: int32(r.max_batch), PaddedCapacity: int32(r.capacity_tokens)}
	if err := reserved("options."+name+".reserved0", uint64(r.reserved0)); err != nil {
		return res, err
	}
	if r.table == 0 {
		return res, nil
	}
	t, serr := enterTable(r.table)
	if serr != nil {
		return res, serr
	}
	defer t.unlock()
	if t.user == x {
		return res, status.New(status.InvalidArgument, "options.%s.table: %#x, the table of options.base, expected one for each model", name, uint64(r.table))
	}
	if t.user != nil || t.closing {
		return res, status.New(status.Busy, "options.%s.table: another coordinator uses it, expected one table for each", name)
	}
	t.user = x
	x.tables[model] = t
	res.Table = t.t
	return res, nil
}

// attentionLayers reads the layers that snapshots of partial pages cover.
func attentionLayers(argument string, p *C.pc_attention_layer, n C.uint64_t) ([]C.pc_attention_layer, error) {
	layers, err := slice[C.pc_attention_layer](argument, unsafe.Pointer(p), n)
	if err != nil {
		return nil, err
	}
	for i := range layers {
		if l := &layers[i]; l.kv_heads <= 0 || l.head_dim <= 0 || l._type > C.PC_TYPE_INT8 || l.reserved0 != 0 || l._type != layers[0]._type {
			return nil, status.New(status.InvalidArgument, "%s[%d]: %d heads of %d, type %d (the first has %d), reserved %d, expected positive numbers, one known type and 0",
				argument, i, int32(l.kv_heads), int32(l.head_dim), uint32(l._type), uint32(layers[0]._type), uint32(l.reserved0))
		}
	}
	return layers, nil
}

// recurrentLayers reads the layers that recurrent snapshots cover and their one
// shape.
func recurrentLayers(argument string, p *C.pc_recurrent_layer, n C.uint64_t) ([]C.pc_recurrent_layer, coordinator.RecurrentSchema, error) {
	var schema coordinator.RecurrentSchema
	layers, serr := slice[C.pc_recurrent_layer](argument, unsafe.Pointer(p), n)
	if serr != nil {
		return nil, schema, serr
	}
	for i := range layers {
		l := &layers[i]
		s := coordinator.RecurrentSchema{Heads: int32(l.heads), HeadDim: int32(l.head_dim), StateSize: int32(l.state_size), StateType: coordinator.DType(l.state_type),
			ConvDim: int32(l.conv_dim), ConvKernel: int32(l.conv_kernel), ConvType: coordinator.DType(l.conv_type)}
		if i == 0 {
			schema = s
		}
		if s != schema || l.reserved0 != 0 {
			return nil, schema, status.New(status.InvalidArgument, "%s[%d]: shape %+v, reserved %d, expected that of the first layer, %+v, and 0", argument, i, s, uint32(l.reserved0), schema)
		}
	}
	return layers, schema, nil
}

package coordinator

import (
	"math"

	"libprefixcache/core/status"
)

// Snapshot storage is preallocated by the runtime: a fixed number of slots,
// each large enough for one recurrent checkpoint, or for the leading tokens of
// one attention page This file sizes it; the bytes are moved by
// the executor.

// RecurrentSlotBytes is the size of one recurrent snapshot: state and conv
// state of every recurrent layer.
func RecurrentSlotBytes(layers int32, s *RecurrentSchema) (int64, error) {
	if layers < 0 {
		return 0, status.New(status.InvalidArgument, "snapshots: %d recurrent layers, expected >= 0", layers)
	}
	if layers > 0 && (!s.complete() || s.StateType.Size() == 0 || s.ConvType.Size() == 0) {
		return 0, status.New(status.InvalidArgument, "snapshots: incomplete recurrent schema %+v", *s)
	}
	state, ok1 := product(int64(s.Heads), int64(s.HeadDim), int64(s.StateSize), s.StateType.Size())
	conv, ok2 := product(int64(s.ConvDim), int64(s.ConvKernel), s.ConvType.Size())
	total, ok3 := product(int64(layers), state/2+conv/2+1)
	if !ok1 || !ok2 || !ok3 || total > math.MaxInt64/4 {
		return 0, status.New(status.InvalidArgument, "snapshots: %d recurrent layers of %+v exceed the address space", layers, *s)
	}
	return int64(layers) * (state + conv), nil
}

// PartialSlotBytes is the size of one partial-KV snapshot: a K and a V page of
// every attention layer.
func PartialSlotBytes(tokensPerPage int32, layers []KVLayer, kv DType) (int64, error) {
	if tokensPerPage <= 0 || kv.Size() == 0 {
		return 0, status.New(status.InvalidArgument, "snapshots: %d tokens per page of type %d, expected > 0 and a known type", tokensPerPage, kv)
	}
	total := int64(0)
	for i, l := range layers {
		b, ok := product(2, int64(tokensPerPage), int64(l.Heads), int64(l.HeadDim), kv.Size())
		if l.Heads <= 0 || l.HeadDim <= 0 || !ok || total > math.MaxInt64-b {
			return 0, status.New(status.InvalidArgument, "snapshots: attention layer %d has %d heads of %d", i, l.Heads, l.HeadDim)
		}
		total += b
	}
	return total, nil
}

// SnapshotSlots is the number of slots of slotBytes that a budget pays for.
func SnapshotSlots(budget, slotBytes int64) (int32, error) {
	switch {
	case budget < 0:
		return 0, status.New(status.InvalidArgument, "snapshots: budget is %d bytes, expected >= 0", budget)
	case slotBytes <= 0:
		return 0, status.New(status.InvalidArgument, "snapshots: a slot has %d bytes, expected > 0", slotBytes)
	case budget/slotBytes > math.MaxInt32:
		return 0, status.New(status.InvalidArgument, "snapshots: budget of %d bytes gives %d slots, expected at most %d", budget, budget/slotBytes, math.MaxInt32)
	}
	return int32(budget / slotBytes), nil
}

// product multiplies non-negative factors and reports whether it fits.
func product(factors ...int64) (int64, bool) {
	p := int64(1)
	for _, f := range factors {
		if f < 0 || (f > 0 && p > math.MaxInt64/f) {
			return 0, false
		}
		p *= f
	}
	return p, true
}

// AttentionLayout is where one attention layer's live KV pool lies: page i of
// K at K + i*PageStride, page i of V at V + i*PageStride.
type AttentionLayout struct {
	K, V       uint64 // device addresses
	PageStride int64  // bytes
}

// RecurrentLayout is where one recurrent layer's live state lies: slot s at
// State + s*StateStride and Conv + s*ConvStride.
type RecurrentLayout struct {
	State, Conv             uint64 // device addresses
	StateStride, ConvStride int64  // bytes
	Slots                   int32  // outer dimension
}

// SnapshotLayout is the physical description that captures and restores rely
// on.
type SnapshotLayout struct {
	TokensPerPage int32
	Pages         int32 // K pages of the pool
	MaxBatch      int32
	KVType        DType
	KV            []KVLayer
	Schema        RecurrentSchema
	Attention     []AttentionLayout
	Recurrent     []RecurrentLayout
	PartialSlots  int32
}

// Validate checks that the live buffers are exactly what was configured. A
// drift of one byte would make a restored state silently wrong, so there is no
// tolerance.
func (d *SnapshotLayout) Validate() error {
	bad := func(format string, args ...any) error {
		return status.New(status.InvalidArgument, "snapshots: "+format, args...)
	}
	if len(d.Recurrent) == 0 {
		return bad("no recurrent layer, so there is nothing to snapshot")
	}
	if len(d.KV) == 0 && d.PartialSlots > 0 {
		return bad("%d partial-KV slots without attention layers", d.PartialSlots)
	}
	if len(d.Attention) != len(d.KV) {
		return bad("%d attention layouts for %d layers", len(d.Attention), len(d.KV))
	}
	for i := range d.Attention {
		a := &d.Attention[i]
		both, err := PartialSlotBytes(d.TokensPerPage, d.KV[i:i+1], d.KVType)
		if err != nil {
			return err
		}
		pool, ok := product(both/2, int64(d.Pages))
		switch {
		case a.K%uint64(d.KVType.Size()) != 0:
			return bad("attention layer %d has K at %#x, expected a multiple of %d, the bytes of an element", i, a.K, d.KVType.Size())
		case a.PageStride != both/2:
			return bad("attention layer %d has a page stride of %d bytes, expected %d", i, a.PageStride, both/2)
		case a.K == 0 || d.Pages <= 0 || !ok || a.V != a.K+uint64(pool):
			return bad("attention layer %d has K at %#x and V at %#x, expected V directly after %d K pages", i, a.K, a.V, d.Pages)
		}
	}
	state, _ := product(int64(d.Schema.Heads), int64(d.Schema.HeadDim), int64(d.Schema.StateSize), d.Schema.StateType.Size())
	conv, _ := product(int64(d.Schema.ConvDim), int64(d.Schema.ConvKernel), d.Schema.ConvType.Size())
	if _, err := RecurrentSlotBytes(int32(len(d.Recurrent)), &d.Schema); err != nil {
		return err
	}
	for i := range d.Recurrent {
		r := &d.Recurrent[i]
		switch {
		case r.State == 0 || r.Conv == 0:
			return bad("recurrent layer %d has no buffer", i)
		case r.State%uint64(d.Schema.StateType.Size()) != 0 || r.Conv%uint64(d.Schema.ConvType.Size()) != 0:
			return bad("recurrent layer %d has its state at %#x and %#x, expected multiples of %d and %d, the bytes of an element",
				i, r.State, r.Conv, d.Schema.StateType.Size(), d.Schema.ConvType.Size())
		case r.StateStride != state || r.ConvStride != conv:
			return bad("recurrent layer %d has strides %d and %d bytes, expected %d and %d", i, r.StateStride, r.ConvStride, state, conv)
		case r.Slots != d.MaxBatch:
			return bad("recurrent layer %d has %d slots, expected %d", i, r.Slots, d.MaxBatch)
		}
	}
	return nil
}

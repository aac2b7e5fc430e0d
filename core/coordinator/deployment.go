package coordinator

import (
	"fmt"
	"math"

	"libprefixcache/core/status"
)

// Kind says which kind of model a cache instance serves. The numbers cross the
// C ABI.
type Kind int32

const (
	KindVanilla       Kind = 0 // attention only
	KindHybrid        Kind = 1 // attention and recurrent layers
	KindPureRecurrent Kind = 2 // recurrent layers only
	KindEAGLE         Kind = 3 // attention only, with an EAGLE draft
)

func (k Kind) String() string { return enumName("kind", int32(k), kindNames[:]) }

var kindNames = [...]string{"vanilla", "hybrid", "pure-recurrent", "eagle"}

func (k Kind) attention() bool { return k != KindPureRecurrent }
func (k Kind) recurrent() bool { return k == KindHybrid || k == KindPureRecurrent }

// DType is an element type. Only its identity and its size matter here.
type DType int32

const (
	DTypeFP16 DType = 0
	DTypeBF16 DType = 1
	DTypeFP32 DType = 2
	DTypeFP8  DType = 3
	DTypeINT8 DType = 4
)

var dtypeNames = [...]string{"FP16", "BF16", "FP32", "FP8", "INT8"}

// String has the number, too: that is what a host of the C ABI wrote.
func (d DType) String() string {
	name := "unknown"
	if d >= 0 && int(d) < len(dtypeNames) {
		name = dtypeNames[d]
	}
	return fmt.Sprintf("%s (%d)", name, int32(d))
}

// Size is the width of one element in bytes, 0 for an unknown type.
func (d DType) Size() int64 {
	switch d {
	case DTypeFP16, DTypeBF16:
		return 2
	case DTypeFP32:
		return 4
	case DTypeFP8, DTypeINT8:
		return 1
	}
	return 0
}

// LayerKind is what one decoder layer keeps between steps.
type LayerKind int32

const (
	LayerStateless     LayerKind = 0
	LayerAttention     LayerKind = 1
	LayerSlidingWindow LayerKind = 2 // counts as full attention
	LayerRecurrent     LayerKind = 3
)

// SpecMode is the speculative decoding mode of a deployment.
type SpecMode int32

const (
	SpecNone  SpecMode = 0
	SpecEAGLE SpecMode = 1
	SpecOther SpecMode = 2 // Medusa, lookahead, ...: rejected
)

// KVLayer is the geometry of one attention layer.
type KVLayer struct {
	Heads   int32
	HeadDim int32
}

// RecurrentSchema is the shape of one recurrent layer's state; all recurrent
// layers of a model share it.
type RecurrentSchema struct {
	Heads, HeadDim, StateSize int32
	StateType                 DType
	ConvDim, ConvKernel       int32
	ConvType                  DType
}

func (s *RecurrentSchema) complete() bool {
	return s.Heads > 0 && s.HeadDim > 0 && s.StateSize > 0 && s.ConvDim > 0 && s.ConvKernel > 0
}

// Model describes one network, base or draft.
type Model struct {
	MaxBatch int32
	Capacity int32 // tokens of one sequence
	KVPages  int64 // pages of the KV pool
	KVType   DType

	Layers          []LayerKind // decoder layers in order
	AttentionLayers int32       // as the engine states them; must match Layers
	RecurrentLayers int32
	KV              []KVLayer // one for each attention layer
	KVDonors        []int32   // empty, or per attention layer the layer that owns its KV, -1 = itself
	Recurrent       RecurrentSchema

	HiddenSize     int32
	BaseHiddenSize int32 // draft only: width of the hidden states it is fed
	SpecBase       bool  // built to be verified by speculation
	EAGLE          bool  // draft only: an EAGLE draft
}

// Spec is the configuration of speculative decoding.
type Spec struct {
	VerifySize         int32   // tokens the base model verifies in one round
	DraftingStep       int32   // draft rounds
	DraftingTopK       int32   // draft candidates in each round
	ConditioningLayers []int32 // base layers whose hidden states feed the draft
}

// Deployment is everything ValidateDeployment looks at.
type Deployment struct {
	DiffusionBackbone   bool
	VisionBidirectional bool // vision tokens attend in both directions
	TokensPerPage       int32
	Mode                SpecMode
	Base                Model
	Draft               *Model
	Spec                *Spec
}

func unsupported(format string, args ...any) error {
	return status.New(status.Unsupported, "deployment: "+format, args...)
}

// ValidateDeployment is the gate in front of the cache: it returns the kind of
// a supported deployment, an error of code Unsupported for every other.
func ValidateDeployment(d *Deployment) (Kind, error) {
	p := d.TokensPerPage
	if p == 0 {
		p = DefaultTokensPerPage
	}
	switch {
	case p < 0:
		return 0, unsupported("tokens per page is %d, expected > 0", p)
	case d.DiffusionBackbone:
		return 0, unsupported("a diffusion backbone rewrites earlier positions")
	case d.VisionBidirectional:
		return 0, unsupported("bidirectional vision attention makes a prefix depend on what follows")
	}
	if err := checkModel("base", &d.Base, p); err != nil {
		return 0, err
	}
	switch d.Mode {
	case SpecNone:
		return plainKind(d)
	case SpecEAGLE:
		return KindEAGLE, checkEAGLE(d, p)
	default:
		return 0, unsupported("speculative mode %d, expected none or EAGLE", d.Mode)
	}
}

func plainKind(d *Deployment) (Kind, error) {
	switch {
	case d.Base.SpecBase:
		return 0, unsupported("the base is built for speculation, but no speculative mode is set")
	case d.Draft != nil:
		return 0, unsupported("a draft is given, but no speculative mode is set")
	case d.Spec != nil:
		return 0, unsupported("a speculation config is given, but no speculative mode is set")
	case d.Base.AttentionLayers == 0 && d.Base.RecurrentLayers == 0:
		return 0, unsupported("no layer keeps state")
	case d.Base.RecurrentLayers == 0:
		return KindVanilla, nil
	case d.Base.AttentionLayers == 0:
		return KindPureRecurrent, nil
	}
	return KindHybrid, nil
}

// checkModel verifies that a model's layer list is consistent with itself and
// with its pool.
func checkModel(name string, m *Model, p int32) error {
	if m.MaxBatch <= 0 {
		return unsupported("%s max batch is %d, expected > 0", name, m.MaxBatch)
	}
	var attention, recurrent int32
	for i, l := range m.Layers {
		switch l {
		case LayerStateless:
		case LayerAttention, LayerSlidingWindow:
			attention++
		case LayerRecurrent:
			recurrent++
		default:
			return unsupported("%s layer %d has kind %d, expected 0 (stateless), 1 (attention), 2 (sliding window) or 3 (recurrent)", name, i, l)
		}
	}
	switch {
	case attention != m.AttentionLayers:
		return unsupported("%s states %d attention layers, its layer list has %d", name, m.AttentionLayers, attention)
	case recurrent != m.RecurrentLayers:
		return unsupported("%s states %d recurrent layers, its layer list has %d", name, m.RecurrentLayers, recurrent)
	case int64(len(m.KV)) != int64(attention):
		return unsupported("%s has %d KV configs for %d attention layers", name, len(m.KV), attention)
	case recurrent > 0 && !m.Recurrent.complete():
		return unsupported("%s has recurrent layers, but an incomplete schema %+v", name, m.Recurrent)
	}
	for i, kv := range m.KV {
		if kv.Heads <= 0 || kv.HeadDim <= 0 {
			return unsupported("%s attention layer %d has %d heads of %d, expected > 0", name, i, kv.Heads, kv.HeadDim)
		}
	}
	if attention == 0 {
		return nil
	}
	// A state is copied bit for bit, so any type would do; the kernels of the
	// runtime know FP16 pages only.
	if m.KVType != DTypeFP16 {
		return unsupported("%s KV type is %v, expected %v", name, m.KVType, DTypeFP16)
	}
	if m.Capacity <= 0 {
		return unsupported("%s capacity is %d tokens, expected > 0", name, m.Capacity)
	}
	if need := int64(m.MaxBatch) * int64(pagesOf(m.Capacity, p)); m.KVPages < need || m.KVPages > math.MaxInt32/2 {
		return unsupported("%s KV pool has %d pages, expected [%d,%d]", name, m.KVPages, need, math.MaxInt32/2)
	}
	return checkDonors(name, m)
}

// checkDonors allows a layer to read another layer's KV, one step deep.
func checkDonors(name string, m *Model) error {
	if len(m.KVDonors) == 0 {
		return nil
	}
	if len(m.KVDonors) != len(m.KV) {
		return unsupported("%s has %d KV donors for %d attention layers", name, len(m.KVDonors), len(m.KV))
	}
	for i, donor := range m.KVDonors {
		switch {
		case donor == -1:
		case donor < 0 || int(donor) >= len(m.KV):
			return unsupported("%s attention layer %d borrows from %d, expected -1 or [0,%d)", name, i, donor, len(m.KV))
		case int(donor) == i:
			return unsupported("%s attention layer %d borrows from itself", name, i)
		case m.KVDonors[donor] != -1:
			return unsupported("%s attention layer %d borrows from %d, which borrows itself", name, i, donor)
		case m.KV[donor] != m.KV[i]:
			return unsupported("%s attention layers %d and %d share KV but differ in heads or head size", name, i, donor)
		}
	}
	return nil
}

func checkEAGLE(d *Deployment, p int32) error {
	base, draft := &d.Base, d.Draft
	switch {
	case !base.SpecBase:
		return unsupported("EAGLE needs a base built for speculation")
	case draft == nil:
		return unsupported("EAGLE needs a draft")
	case d.Spec == nil:
		return unsupported("EAGLE needs a speculation config")
	case !draft.EAGLE || draft.SpecBase:
		return unsupported("the draft is no EAGLE draft")
	}
	if err := checkModel("draft", draft, p); err != nil {
		return err
	}
	switch {
	case base.RecurrentLayers != 0 || draft.RecurrentLayers != 0:
		return unsupported("EAGLE needs attention-only models: a recurrent state cannot be rolled back")
	case base.AttentionLayers == 0 || draft.AttentionLayers == 0:
		return unsupported("EAGLE needs attention layers in base and draft")
	}
	for i, donor := range draft.KVDonors {
		if donor != -1 {
			return unsupported("draft attention layer %d borrows its KV, expected its own", i)
		}
	}
	layers := d.Spec.ConditioningLayers
	if len(layers) == 0 {
		return unsupported("EAGLE has no conditioning layers")
	}
	for i, l := range layers {
		if l < 0 || int(l) >= len(base.Layers) {
			return unsupported("conditioning layer %d is %d, expected [0,%d)", i, l, len(base.Layers))
		}
		for _, other := range layers[:i] {
			if other == l {
				return unsupported("conditioning layer %d occurs twice", l)
			}
		}
	}
	if want := int64(base.HiddenSize) * int64(len(layers)); int64(draft.BaseHiddenSize) != want {
		return unsupported("the draft is fed %d values, expected %d x %d layers", draft.BaseHiddenSize, base.HiddenSize, len(layers))
	}
	return nil
}

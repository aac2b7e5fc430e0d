package coordinator

import (
	"math"
	"testing"

	"libprefixcache/core/status"
)

func attentionModel() Model {
	return Model{
		MaxBatch: 4, Capacity: 300, KVPages: 12, KVType: DTypeFP16,
		Layers:          []LayerKind{LayerAttention, LayerStateless, LayerSlidingWindow},
		AttentionLayers: 2, KV: []KVLayer{{2, 8}, {2, 8}}, HiddenSize: 16,
	}
}

func recurrentSchema() RecurrentSchema {
	return RecurrentSchema{Heads: 2, HeadDim: 3, StateSize: 7, StateType: DTypeFP16, ConvDim: 4, ConvKernel: 3, ConvType: DTypeFP16}
}

func hybridDeployment() Deployment {
	m := attentionModel()
	m.Layers = append(m.Layers, LayerRecurrent)
	m.RecurrentLayers, m.Recurrent = 1, recurrentSchema()
	return Deployment{Base: m}
}

func eagleDeployment() Deployment {
	base, draft := attentionModel(), attentionModel()
	base.SpecBase = true
	draft.EAGLE, draft.BaseHiddenSize = true, 48
	return Deployment{Mode: SpecEAGLE, Base: base, Draft: &draft,
		Spec: &Spec{VerifySize: 4, DraftingStep: 2, DraftingTopK: 2, ConditioningLayers: []int32{0, 1, 2}}}
}

func TestDeploymentGate_Kinds(t *testing.T) {
	recurrent := hybridDeployment()
	recurrent.Base.Layers, recurrent.Base.AttentionLayers, recurrent.Base.KV = []LayerKind{LayerRecurrent, LayerStateless}, 0, nil
	recurrent.Base.KVType, recurrent.Base.KVPages = DTypeFP32, 0 // no KV, so nothing to reject
	shared := Deployment{Base: attentionModel()}
	shared.Base.KVDonors = []int32{-1, 0}
	for want, d := range map[Kind][]Deployment{
		KindVanilla:       {{Base: attentionModel()}, shared},
		KindHybrid:        {hybridDeployment()},
		KindPureRecurrent: {recurrent},
		KindEAGLE:         {eagleDeployment()},
	} {
		for i := range d {
			if got, err := ValidateDeployment(&d[i]); err != nil || got != want {
				t.Errorf("%v: got %v, %v", want, got, err)
			}
		}
	}
}

func TestDeploymentGate_Rejects(t *testing.T) {
	plain := func() Deployment { return Deployment{Base: attentionModel()} }
	for name, a := range map[string]struct {
		from func() Deployment
		edit func(d *Deployment)
	}{
		"diffusion":                 {plain, func(d *Deployment) { d.DiffusionBackbone = true }},
		"bidirectional vision":      {plain, func(d *Deployment) { d.VisionBidirectional = true }},
		"KV type":                   {plain, func(d *Deployment) { d.Base.KVType = DTypeBF16 }},
		"attention count":           {plain, func(d *Deployment) { d.Base.AttentionLayers = 1 }},
		"recurrent count":           {plain, func(d *Deployment) { d.Base.RecurrentLayers = 1 }},
		"KV configs":                {plain, func(d *Deployment) { d.Base.KV = d.Base.KV[:1] }},
		"KV config of zero":         {plain, func(d *Deployment) { d.Base.KV[1].Heads = 0 }},
		"layer kind":                {plain, func(d *Deployment) { d.Base.Layers[1] = 9 }},
		"tokens per page":           {plain, func(d *Deployment) { d.TokensPerPage = -1 }},
		"capacity":                  {plain, func(d *Deployment) { d.Base.Capacity = 0 }},
		"draft does not hold":       {eagleDeployment, func(d *Deployment) { d.Draft.KVPages = 0 }},
		"draft without attention":   {eagleDeployment, func(d *Deployment) { d.Draft = &Model{EAGLE: true, MaxBatch: 1, Layers: []LayerKind{LayerStateless}} }},
		"max batch":                 {plain, func(d *Deployment) { d.Base.MaxBatch = 0 }},
		"pool one page short":       {plain, func(d *Deployment) { d.Base.KVPages = 11 }},
		"pool too large":            {plain, func(d *Deployment) { d.Base.KVPages = math.MaxInt32/2 + 1 }},
		"donors not one per layer":  {plain, func(d *Deployment) { d.Base.KVDonors = []int32{-1} }},
		"donor out of range":        {plain, func(d *Deployment) { d.Base.KVDonors = []int32{-1, 2} }},
		"donor itself":              {plain, func(d *Deployment) { d.Base.KVDonors = []int32{-1, 1} }},
		"donor chain":               {plain, func(d *Deployment) { d.Base.KVDonors = []int32{1, 0} }},
		"donor geometry":            {plain, func(d *Deployment) { d.Base.KVDonors = []int32{-1, 0}; d.Base.KV[1].HeadDim = 4 }},
		"no state":                  {plain, func(d *Deployment) { d.Base = Model{MaxBatch: 1, Layers: []LayerKind{LayerStateless}} }},
		"spec base without mode":    {plain, func(d *Deployment) { d.Base.SpecBase = true }},
		"draft without mode":        {plain, func(d *Deployment) { d.Draft = &Model{} }},
		"spec config without mode":  {plain, func(d *Deployment) { d.Spec = &Spec{} }},
		"other speculation":         {eagleDeployment, func(d *Deployment) { d.Mode = SpecOther }},
		"incomplete schema":         {hybridDeployment, func(d *Deployment) { d.Base.Recurrent.ConvKernel = 0 }},
		"EAGLE base":                {eagleDeployment, func(d *Deployment) { d.Base.SpecBase = false }},
		"EAGLE draft missing":       {eagleDeployment, func(d *Deployment) { d.Draft = nil }},
		"EAGLE config missing":      {eagleDeployment, func(d *Deployment) { d.Spec = nil }},
		"draft no EAGLE":            {eagleDeployment, func(d *Deployment) { d.Draft.EAGLE = false }},
		"draft a base":              {eagleDeployment, func(d *Deployment) { d.Draft.SpecBase = true }},
		"draft borrows KV":          {eagleDeployment, func(d *Deployment) { d.Draft.KVDonors = []int32{-1, 0} }},
		"no conditioning":           {eagleDeployment, func(d *Deployment) { d.Spec.ConditioningLayers = nil }},
		"conditioning twice":        {eagleDeployment, func(d *Deployment) { d.Spec.ConditioningLayers = []int32{1, 1, 0} }},
		"conditioning out of range": {eagleDeployment, func(d *Deployment) { d.Spec.ConditioningLayers = []int32{0, 1, 3} }},
		"draft hidden size":         {eagleDeployment, func(d *Deployment) { d.Draft.BaseHiddenSize = 47 }},
		"draft recurrent": {eagleDeployment, func(d *Deployment) {
			d.Draft.Layers = append(d.Draft.Layers, LayerRecurrent)
			d.Draft.RecurrentLayers, d.Draft.Recurrent = 1, recurrentSchema()
		}},
		"EAGLE on a hybrid base": {eagleDeployment, func(d *Deployment) {
			d.Base = hybridDeployment().Base
			d.Base.SpecBase = true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := a.from()
			a.edit(&d)
			_, err := ValidateDeployment(&d)
			wantCode(t, err, status.Unsupported)
		})
	}
}

// The host has a number or a name, so the text has both.
func TestDeploymentGate_NamesATypeBesideItsNumber(t *testing.T) {
	for v, want := range map[DType]string{DTypeBF16: "BF16 (1)", DTypeINT8: "INT8 (4)", 9: "unknown (9)", -1: "unknown (-1)"} {
		d := Deployment{Base: attentionModel()}
		d.Base.KVType = v
		_, err := ValidateDeployment(&d)
		wantCode(t, err, status.Unsupported)
		if want = "deployment: base KV type is " + want + ", expected FP16 (0)"; err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestSnapshot_Sizes(t *testing.T) {
	schema := recurrentSchema() // 2 * (42*2 + 12*2) = 216
	if b, err := RecurrentSlotBytes(2, &schema); err != nil || b != 216 {
		t.Errorf("recurrent slot has %d bytes (%v), want 216", b, err)
	}
	if b, err := PartialSlotBytes(128, []KVLayer{{2, 8}}, DTypeFP16); err != nil || b != 8192 {
		t.Errorf("partial slot has %d bytes (%v), want 8192", b, err)
	}
	if n, err := SnapshotSlots(647, 216); err != nil || n != 2 {
		t.Errorf("%d slots (%v), want 2", n, err)
	}
	for _, a := range [][2]int64{{-1, 216}, {1, 0}, {math.MaxInt64, 1}} {
		_, err := SnapshotSlots(a[0], a[1])
		wantCode(t, err, status.InvalidArgument)
	}
	for size, types := range map[int64][]DType{1: {DTypeFP8, DTypeINT8}, 2: {DTypeFP16, DTypeBF16}, 4: {DTypeFP32}, 0: {-1, 5}} {
		for _, d := range types {
			if d.Size() != size {
				t.Errorf("type %d has %d bytes, want %d", d, d.Size(), size)
			}
		}
	}
	_, err := RecurrentSlotBytes(-1, &schema)
	wantCode(t, err, status.InvalidArgument)
	untyped := schema
	untyped.ConvType = 9
	_, err = RecurrentSlotBytes(1, &untyped)
	wantCode(t, err, status.InvalidArgument)
	schema.Heads, schema.HeadDim, schema.StateSize = math.MaxInt32, math.MaxInt32, math.MaxInt32
	_, err = RecurrentSlotBytes(1, &schema)
	wantCode(t, err, status.InvalidArgument)
	_, err = PartialSlotBytes(math.MaxInt32, []KVLayer{{math.MaxInt32, math.MaxInt32}}, DTypeFP16)
	wantCode(t, err, status.InvalidArgument)
}

func TestSnapshot_LayoutDriftIsAnError(t *testing.T) {
	good := func() SnapshotLayout {
		return SnapshotLayout{
			TokensPerPage: 128, Pages: 3, MaxBatch: 4, KVType: DTypeFP16, KV: []KVLayer{{2, 8}}, Schema: recurrentSchema(),
			Attention:    []AttentionLayout{{K: 4096, V: 4096 + 3*4096, PageStride: 4096}},
			Recurrent:    []RecurrentLayout{{State: 64, Conv: 128, StateStride: 84, ConvStride: 24, Slots: 4}},
			PartialSlots: 1,
		}
	}
	d := good()
	if err := d.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(d *SnapshotLayout){
		"no recurrent layer":        func(d *SnapshotLayout) { d.Recurrent = nil },
		"partial without attention": func(d *SnapshotLayout) { d.KV, d.Attention = nil, nil },
		"V not behind K":            func(d *SnapshotLayout) { d.Attention[0].V += 16 },
		"page stride":               func(d *SnapshotLayout) { d.Attention[0].PageStride = 8192 },
		"K null":                    func(d *SnapshotLayout) { d.Attention[0].K = 0 },
		"K between elements":        func(d *SnapshotLayout) { d.Attention[0].K, d.Attention[0].V = 4097, 4097+3*4096 },
		"state between elements":    func(d *SnapshotLayout) { d.Recurrent[0].State++ },
		"conv between elements":     func(d *SnapshotLayout) { d.Recurrent[0].Conv++ },
		"layer missing":             func(d *SnapshotLayout) { d.Attention = nil },
		"state stride":              func(d *SnapshotLayout) { d.Recurrent[0].StateStride++ },
		"conv null":                 func(d *SnapshotLayout) { d.Recurrent[0].Conv = 0 },
		"state type":                func(d *SnapshotLayout) { d.Schema.StateType = 9 },
		"slots":                     func(d *SnapshotLayout) { d.Recurrent[0].Slots = 3 },
		"KV type":                   func(d *SnapshotLayout) { d.KVType = 99 },
	} {
		d := good()
		edit(&d)
		if status.CodeOf(d.Validate()) != status.InvalidArgument {
			t.Errorf("%s: accepted", name)
		}
	}
}

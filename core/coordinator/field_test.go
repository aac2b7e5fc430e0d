package coordinator

import (
	"slices"
	"testing"

	"libprefixcache/core/prefix"
)

// Faults that users of comparable caches reported, as scenarios on whole
// requests. Pages hold 4 tokens where the reports speak of 128. The device
// checks the content of every reused cell besides.

func with(a Admission, e prefix.Extras) Admission {
	a.Sequences = slices.Clone(a.Sequences)
	for i := range a.Sequences {
		a.Sequences[i].Extras = &e
	}
	return a
}

func adapterOf(id, generation uint64) prefix.Extras {
	return prefix.Extras{Adapter: prefix.Adapter{Present: true, ID: prefix.Hash128{Lo: id}, Generation: generation}}
}

func TestField_AdapterIdentity(t *testing.T) { // vllm #3264, #42125, #44701
	r := newRig(t, KindVanilla)
	x := prompts(seq(1, 7))
	r.publish(with(x, adapterOf(1, 1)))
	present := prefix.OptionalHash{Present: true, Hash: prefix.Hash128{Lo: 1}}
	for name, a := range map[string]Admission{
		"another adapter": with(x, adapterOf(2, 1)), "a reload": with(x, adapterOf(1, 2)), "none": x,
		"isolation": with(x, prefix.Extras{Isolation: present}), "embedding": with(x, prefix.Extras{Embedding: present}),
		"position": with(x, prefix.Extras{Position: present}),
	} {
		if got := r.hit(a); got != 0 {
			t.Errorf("%s: start %d, want 0", name, got)
		}
	}
	if got := r.hit(with(x, adapterOf(1, 1))); got != 4 {
		t.Errorf("same adapter: start %d, want 4", got)
	}
}

func TestField_OnePlaceholderTwoImages(t *testing.T) { // LMCache #690, sglang-omni #260
	r := newRig(t, KindVanilla)
	r.publish(mediaPrompt(1, 20, 3, 14, 1))
	if got := r.hit(mediaPrompt(1, 20, 3, 14, 2)); got != 0 {
		t.Errorf("another image: start %d, want 0", got)
	}
	if got := r.hit(prompts(seq(1, 20))); got != 0 {
		t.Errorf("no image: start %d, want 0", got)
	}
	if got := r.hit(mediaPrompt(1, 20, 3, 14, 1)); got != 16 {
		t.Errorf("same image: start %d, want 16", got)
	}
}

func TestField_TextMediaAndMediaText(t *testing.T) { // ours, D-2
	r := newRig(t, KindVanilla, perPage(2, 8))
	a, b := prompts([]int32{0x00030213, 777, 5}), prompts([]int32{888, -1716864052, 5}) // 0x99aabbcc
	a.Sequences[0].Media = []prefix.Hash128{{}, {Hi: 0x1122334455667788, Lo: 0x99aabbccddeeff00}, {}}
	b.Sequences[0].Media = []prefix.Hash128{{Hi: 0x5566778813000302, Lo: 0xddeeff0011223344}, {}, {}}
	r.publish(a)
	if got := r.hit(b); got != 0 {
		t.Errorf("start %d, want 0", got)
	}
}

func TestField_FullyCachedPrompt(t *testing.T) { // vllm #11186, nano-vllm #199
	r := newRig(t, KindVanilla)
	r.publish(prompts(seq(1, 8)))
	if got := r.hit(prompts(seq(1, 8))); got != 4 {
		t.Errorf("start %d, want 4", got)
	}
	r.publish(prompts(seq(1, 8)))
	if m := r.c.Metrics(); m.CurrentRecords != 1 || m.ExistingPublications != 1 {
		t.Errorf("second run:\n%v", m)
	}
	if got := r.hit(prompts(append(seq(1, 8), 7))); got != 8 {
		t.Errorf("one token more: start %d, want 8", got)
	}
}

func TestField_CheckpointAsLongAsThePrompt(t *testing.T) { // LMCache #5249
	for _, kind := range []Kind{KindHybrid, KindPureRecurrent} {
		r := newRig(t, kind)
		r.publish(prompts(seq(1, 6)))
		if got := r.hit(prompts(seq(1, 6))); got != 0 {
			t.Errorf("%v: start %d, want 0", kind, got)
		}
		r.publish(prompts(seq(1, 4)))
		if got := r.hit(prompts(seq(1, 6))); got != 4 {
			t.Errorf("%v: start %d, want the shorter checkpoint at 4", kind, got)
		}
	}
}

func TestField_TailPageIsNeverShared(t *testing.T) { // TensorRT-LLM #8813
	r := newRig(t, KindVanilla)
	r.publish(prompts(seq(1, 11)))
	if got := r.hit(prompts(slices.Concat(seq(1, 10), seq(2, 1)))); got != 8 {
		t.Errorf("start %d, want 8", got)
	}
}

func TestField_BaseLongerThanDraft(t *testing.T) { // TensorRT-LLM #10875
	r := newRig(t, KindEAGLE)
	a, b := prompts(seq(1, 12)), prompts(seq(1, 21))
	a.Mode = ModeEAGLE
	r.publish(a) // 3 blocks in both
	r.publish(b) // 5 in base
	b.Mode = ModeEAGLE
	q := r.full(b)
	s := r.info(q.h, 0)
	if s.PrefillStart != 8 || s.Matched != 12 || s.Reason != prefix.ReasonDraftShorter {
		t.Errorf("%+v, want start 8 of 12 matched for want of a longer draft", s)
	}
	r.must(r.decode(q, [][]int32{{4, 5}}))
	r.must(r.finish(q))
	r.emptied()
}

func TestField_AttentionHitWithoutRecurrentState(t *testing.T) { // vllm #43090
	r := newRig(t, KindHybrid, slots(2, 2))
	r.publish(prompts(seq(1, 6)))
	r.publish(prompts(seq(1, 11)))
	r.publish(prompts(seq(2, 5))) // takes the slot of the checkpoint at 6
	if got := r.hit(prompts(seq(1, 9))); got != 0 {
		t.Errorf("start %d: the pages of two blocks are there, a state is not", got)
	}
	if got := r.hit(prompts(seq(1, 12))); got != 11 {
		t.Errorf("start %d, want 11", got)
	}
}

func TestField_EvictedBlockLosesItsIdentity(t *testing.T) { // kvcached #362
	r := newRig(t, KindVanilla, pages(8))
	r.publish(prompts(seq(1, 9)))
	r.publish(prompts(seq(2, 32))) // takes the whole pool
	if got := r.hit(prompts(seq(2, 32))); got != 28 {
		t.Errorf("start %d, want 28", got)
	}
	if got := r.hit(prompts(seq(1, 9))); got != 0 {
		t.Errorf("evicted prompt: start %d, want 0", got)
	}
}

func TestField_PagesOfALiveRequestAreNeverHandedOut(t *testing.T) { // atlas #373
	r := newRig(t, KindVanilla, pages(12), requests(2))
	r.publish(prompts(seq(1, 9)))
	a := prompts(seq(1, 9))
	a.Slots = []int32{3}
	q := r.full(a)
	for i := range int32(6) { // each evicts what was cached before it
		r.publish(prompts(seq(2+i, 28)))
		r.must(r.decode(q, [][]int32{{i}})) // and the device checks q's pages
	}
	r.must(r.finish(q))
	r.emptied()
}

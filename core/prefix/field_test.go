package prefix

import (
	"testing"

	"libprefixcache/core/status"
)

// Faults that users of comparable caches reported, as scenarios on this level.
// publish(X) is a whole cold request, hit(X) the prefill start.

// weak is an 8-bit table hash: real prompts collide all the time.
func weak(parent uint32, words []int32) uint64 {
	h := parent
	for _, w := range words {
		h = h*31 + uint32(w)
	}
	return uint64(h & 0xFF)
}

func TestField_CraftedCollisionGetsNobodyElsesState(t *testing.T) { // vllm 12621, openvino.genai 3722
	for name, hash := range map[string]func(uint32, []int32) uint64{
		"8 bits": weak, "constant": func(uint32, []int32) uint64 { return 0 }} {
		h := newHost(t, Config{Hash: hash, BasePages: 3000})
		a := tokens(1, 257)
		h.run(AcquireRequest{Tokens: a})
		before := h.Counters().HashCollisions
		for i := range uint64(600) { // with 8 bits, some have the digest of a
			_, p := h.vanilla(tokens(100+i, 257))
			if p.Matched != 0 {
				t.Fatalf("%s: prompt %d got %d tokens of another one", name, i, p.Matched)
			}
			if i%3 == 0 {
				h.run(AcquireRequest{Tokens: join(a[:128], tokens(700+i, 128))}) // collisions in block 2 as well
			}
		}
		if h.Counters().HashCollisions == before {
			t.Errorf("%s: no collision was counted", name)
		}
		b := join(a[:128], tokens(2, 129))
		wantEqual(t, name+": hit that differs in block 2", h.hit(AcquireRequest{Tokens: b}), 128)
		wantEqual(t, name+": hit of the real thing", h.hit(AcquireRequest{Tokens: a}), 256)
	}
}

func TestField_ExtrasAreDomainSeparated(t *testing.T) { // vllm 44701
	testExtras(t, "none", "adapter", "isolation", "embedding")
}

func TestField_AdapterIdIsPartOfTheIdentity(t *testing.T) { // vllm 3264, 3263
	h := newHost(t, Config{})
	x := tokens(1, 129)
	a, b := &Extras{Adapter: Adapter{true, d1, 0}}, &Extras{Adapter: Adapter{true, d2, 0}}
	h.run(AcquireRequest{Tokens: x, Extras: a})
	wantEqual(t, "other adapter", h.hit(AcquireRequest{Tokens: x, Extras: b}), 0)
	wantEqual(t, "no adapter", h.hit(AcquireRequest{Tokens: x}), 0)
	wantEqual(t, "same adapter", h.hit(AcquireRequest{Tokens: x, Extras: a}), 128)
}

func adapter(gen uint64) *Extras { return &Extras{Adapter: Adapter{true, d1, gen}} }

func TestField_ReloadedAdapterServesNoStaleState(t *testing.T) { // vllm 42125, 42495
	h := newHost(t, Config{})
	x := tokens(1, 257)
	h.run(AcquireRequest{Tokens: x, Extras: adapter(1)})
	h.run(AcquireRequest{Tokens: x, Extras: adapter(2)})
	h.run(AcquireRequest{Tokens: x})
	wantEqual(t, "generation 3", h.hit(AcquireRequest{Tokens: x, Extras: adapter(3)}), 0)
	live, _ := h.acquire(AcquireRequest{Tokens: x, Extras: adapter(1)})
	pages := h.pages(live, BasePages)
	one := uint64(1)
	wantEqual(t, "records of generation 1", h.Invalidate(d1, &one), 1)
	wantEqual(t, "generation 1", h.hit(AcquireRequest{Tokens: x, Extras: adapter(1)}), 0)
	wantEqual(t, "generation 2", h.hit(AcquireRequest{Tokens: x, Extras: adapter(2)}), 256)
	wantSlice(t, "pages in use", h.pages(live, BasePages), pages)
	for _, p := range pages[:2] {
		wantEqual(t, "counts of a page in use", h.refs(BasePages, p), [2]int32{1, 0})
	}
	// What the old weights computed is not published any more, before or after a reload.
	wantEqual(t, "publication", h.publish(live, 256), PublishResult{Published, 0, 2, true})
	h.run(AcquireRequest{Tokens: tokens(5, 257), Extras: adapter(1)}) // the new life of the same id
	wantEqual(t, "publication", h.publish(live, 256).Stale, true)
	wantEqual(t, "stale prefix", h.hit(AcquireRequest{Tokens: x, Extras: adapter(1)}), 0)
	wantEqual(t, "new state", h.hit(AcquireRequest{Tokens: tokens(5, 257), Extras: adapter(1)}), 256)
	wantEqual(t, "records of the adapter", h.Invalidate(d1, nil), 2)
	wantEqual(t, "records of another adapter", h.Invalidate(d2, nil), 0)
	h.release(live)
	wantEqual(t, "records", h.Records(), 1)
	wantEqual(t, "no adapter", h.hit(AcquireRequest{Tokens: x}), 256)
	wantEqual(t, "free", h.Free(BasePages), 62)
	wantEqual(t, "stale publications", h.Counters().StalePublishes, 2)
}

func TestFlush_ForgetsAllAndTouchesNothingInUse(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, BasePages: 32, DraftPages: 32, RecurrentSlots: 4, PartialSlots: 4})
	h.run(AcquireRequest{Tokens: tokens(1, 8)})
	h.run(spec(tokens(2, 8)))
	y, _ := h.acquire(hybrid(tokens(3, 7)))
	h.checkpoint(y, 6)
	z, pz := h.acquire(hybrid(tokens(3, 7)))
	live, _ := h.vanilla(append(tokens(1, 8), 1))
	pages := h.pages(live, BasePages)
	wantEqual(t, "records dropped", h.Flush(), 3)
	wantEqual(t, "index", h.IndexedPages(), 0)
	wantSlice(t, "pages in use", h.pages(live, BasePages), pages)
	wantEqual(t, "restored slot in use", h.refs(RecurrentSlots, pz.Recurrent), [2]int32{1, 0})
	for _, tok := range [][]int32{tokens(1, 9), tokens(2, 9)} {
		wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: tok}), 0)
		wantEqual(t, "spec hit", h.hit(spec(tok)), 0)
	}
	wantEqual(t, "hybrid hit", h.hit(hybrid(tokens(3, 7))), 0)
	wantEqual(t, "publication from before the flush", h.publish(live, 8).Stale, true)
	wantEqual(t, "capture from before the flush", h.checkpoint(z, 5).Stale, true)
	// Requests that begin after the flush are cached as ever.
	h.run(AcquireRequest{Tokens: tokens(1, 8)})
	wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: tokens(1, 9)}), 8)
	h.release(live, y, z)
	h.Flush()
	for pool := range resourceCount {
		wantEqual(t, "free "+pool.String(), h.Free(pool), h.Capacity(pool))
	}
	wantEqual(t, "second flush", h.Flush(), 0)
}

func TestField_OneImagesStateIsNotAnothers(t *testing.T) { // LMCache 690 and others
	prompt := join(tokens(1, 10), make([]int32, 200), tokens(2, 60)) // one placeholder id for every image
	image := func(d Hash128) []Hash128 {
		m := make([]Hash128, 270)
		for i := 10; i < 210; i++ {
			m[i] = d
		}
		return m
	}
	h := newHost(t, Config{})
	h.run(AcquireRequest{Tokens: prompt, Media: image(d1)})
	wantEqual(t, "other image", h.hit(AcquireRequest{Tokens: prompt, Media: image(d2)}), 0)
	wantEqual(t, "no digests", h.hit(AcquireRequest{Tokens: prompt}), 0)
	// With the same image both blocks match; the boundary at 256 lies in text.
	wantEqual(t, "same image", h.hit(AcquireRequest{Tokens: prompt, Media: image(d1)}), 256)
	// A prompt that ends inside the image's second block: 128 would split the image.
	p := plan(t, h, AcquireRequest{Tokens: prompt[:255], Media: image(d1)[:255]})
	wantEqual(t, "reuse", p.Reuse, 0)
	wantEqual(t, "reason", p.Reason, ReasonMediaBoundary)
}

func TestField_MediaRequestWithGeneratedTokens(t *testing.T) { // D-1
	h := newHost(t, Config{})
	tok, media := tokens(1, 257), make([]Hash128, 255)
	for i := 20; i < 90; i++ {
		media[i] = d1
	}
	id, _ := h.acquire(AcquireRequest{Tokens: tok[:255], Media: media})
	h.append(id, tok[255:])
	h.publish(id, 256)
	h.release(id)
	wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: tok, Media: append(media, Hash128{}, Hash128{})}), 256)
	h.refused(status.InvalidArgument, "255 digests for 257 tokens", func() error {
		_, err := h.Acquire(&AcquireRequest{Tokens: tok, Media: media})
		return err
	})
}

func TestField_FullyCachedPrompt(t *testing.T) { // vllm 11186, 17999; nano-vllm 199; LMCache 3322
	h := newHost(t, Config{})
	x := tokens(1, 257)
	h.run(AcquireRequest{Tokens: x[:256]})
	id, p := h.vanilla(x[:256])
	wantEqual(t, "start", p.Reuse, 128)
	wantEqual(t, "publication", h.publish(id, 256).Status, ExistingRecord)
	h.release(id)
	wantEqual(t, "one more token", h.hit(AcquireRequest{Tokens: x}), 256)
}

func TestField_TheProducersTailPageIsNeverShared(t *testing.T) { // TensorRT-LLM 8813
	h := newHost(t, Config{})
	x := tokens(1, 200)
	a, _ := h.vanilla(x)
	h.publish(a, 200)
	tail := h.pages(a, BasePages)[1]
	b, p := h.vanilla(join(x[:129], []int32{7}))
	wantEqual(t, "reuse", p.Reuse, 128)
	for _, page := range h.pages(b, BasePages) {
		if page == tail {
			t.Error("the tail page of a running request was bound")
		}
	}
	wantEqual(t, "counts of the tail page", h.refs(BasePages, tail), [2]int32{1, 0})
}

func TestField_BothWindowsStartAtTheSameToken(t *testing.T) { // TensorRT-LLM 10875, 10183
	h := newHost(t, Config{DraftPages: 32})
	x := tokens(1, 5*P+1)
	cacheBlocks(h, x, 5, Vanilla)
	cacheBlocks(h, x, 3, Spec)
	id, p := h.acquire(spec(x))
	wantEqual(t, "start", p.Reuse, 256)
	wantEqual(t, "bound", [2]int{p.BoundBase, p.BoundDraft}, [2]int{2, 2})
	for _, page := range h.pages(id, BasePages)[2:] {
		wantEqual(t, "counts of a private page", h.refs(BasePages, page), [2]int32{1, 0})
	}
}

func TestField_AttentionWithoutItsCheckpointIsNoHit(t *testing.T) { // vllm 43090
	h := hybridHost(t)
	x := tokens(1, 9)
	id, _ := h.acquire(hybrid(x))
	snap := h.checkpoint(id, 8)
	h.release(id)
	h.run(AcquireRequest{Tokens: join(x[:8], tokens(2, 4))}) // keeps the pages alive
	if err := h.EvictRecord(snap.Record); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "attention pages left", h.IndexedPages(), 3)
	p := plan(t, h, hybrid(x))
	wantEqual(t, "start", p.Reuse, 0)
	wantEqual(t, "reason", p.Reason, ReasonNoCheckpoint)
}

func TestField_NoRecordWithoutItsSnapshot(t *testing.T) { // vllm 53084
	h := newHost(t, Config{PageTokens: 4, RecurrentSlots: 1, PartialSlots: 1})
	a, _ := h.acquire(hybrid(tokens(1, 7)))
	b, _ := h.acquire(hybrid(tokens(2, 7)))
	if _, ok, _ := h.Reserve(a, true); !ok {
		t.Fatal("no slot")
	}
	slots, ok, _ := h.Reserve(b, true)
	wantEqual(t, "slot for b", ok, false)
	h.refused(status.InvalidArgument, "publishing without a slot", func() error { _, err := h.PublishHybrid(b, 7, slots); return err })
	h.refused(status.WrongState, "publishing with a's slot", func() error { _, err := h.PublishHybrid(b, 7, Reservation{0, 0}); return err })
	wantEqual(t, "records", h.Records(), 0)
}

func TestField_IdenticalColdPromptsOfOneStep(t *testing.T) { // vllm 29387
	h := newHost(t, Config{})
	x := tokens(1, 257)
	a, pa := h.vanilla(x)
	b, pb := h.vanilla(x)
	wantEqual(t, "starts", [2]int{pa.Reuse, pb.Reuse}, [2]int{0, 0})
	h.publish(a, 257)
	h.publish(b, 257)
	wantEqual(t, "records", h.Records(), 1)
}

func TestField_ReleaseWithoutPublishLeavesNothing(t *testing.T) { // vllm 43569, xllm 828, TensorRT-LLM 15018
	h := newHost(t, Config{PageTokens: 4, BasePages: 64})
	for i := range uint64(2000) {
		id, _ := h.vanilla(tokens(i, int(i%40)+1))
		if i%3 == 0 && i%40 >= 4 {
			h.publish(id, int(i%40))
		}
		h.release(id)
		if free, cached := h.Free(BasePages), h.IndexedPages(); free+cached != 64 || h.Active(BasePages) != 0 {
			t.Fatalf("request %d: %d free, %d cached, %d active of 64", i, free, cached, h.Active(BasePages))
		}
	}
	h.Flush()
	id, _ := h.vanilla(tokens(9000, 9))
	h.release(id)
	wantEqual(t, "hit on what was never published", h.hit(AcquireRequest{Tokens: tokens(9000, 9)}), 0)
}

func TestField_EvictionNeverTakesALivePage(t *testing.T) { // atlas 373, mini-sglang 52
	h := newHost(t, Config{PageTokens: 4, BasePages: 12, MaxRecords: 4, OriginalRecency: true})
	x := tokens(1, 16)
	h.run(AcquireRequest{Tokens: x})
	live, p := h.vanilla(append(x, 1)) // the deepest page, not only its ancestors
	wantEqual(t, "bound", p.BoundBase, 4)
	held := map[int32]bool{}
	for _, page := range h.pages(live, BasePages) {
		held[page] = true
	}
	for i := range uint64(50) {
		id, _ := h.vanilla(tokens(10+i, 20))
		for _, page := range h.pages(id, BasePages) {
			if held[page] {
				t.Fatalf("page %d was handed out while a lease owned it", page)
			}
		}
		h.publish(id, 20)
		h.release(id)
	}
}

func TestField_ReusedPagesForgetTheirOldIdentity(t *testing.T) { // kvcached 362
	h := newHost(t, Config{BasePages: 2})
	x, y := tokens(1, 129), tokens(2, 129)
	r := h.run(AcquireRequest{Tokens: x[:128]})
	page := h.recordPages(r.Record, BasePages)[0]
	h.run(AcquireRequest{Tokens: y}) // needs both pages: x is evicted
	wantEqual(t, "x, evicted", h.hit(AcquireRequest{Tokens: x}), 0)
	s := h.run(AcquireRequest{Tokens: tokens(3, 128)})
	wantEqual(t, "page, which was x's", h.recordPages(s.Record, BasePages)[0], page)
	wantEqual(t, "x, on a page of another", h.hit(AcquireRequest{Tokens: x}), 0)
	wantEqual(t, "y", h.hit(AcquireRequest{Tokens: y}), 128)
}

func TestField_SharedPagesCountOnceAsReclaimable(t *testing.T) { // sglang 35270
	h := newHost(t, Config{PageTokens: 4, BasePages: 40})
	stem := tokens(1, 20) // 5 pages that 8 records share
	for i := range uint64(8) {
		h.run(AcquireRequest{Tokens: join(stem, tokens(10+i, 4))})
	}
	wantEqual(t, "reclaimable pages", h.Capacity(BasePages)-h.Free(BasePages)-h.Active(BasePages), 5+8)
	for n := range 42 {
		wantEqual(t, "feasible", h.Feasible(Demand{n}), n <= 40)
		wantEqual(t, "simulated", preview(h, Demand{n}, 0).Feasible, n <= 40)
	}
	hold, _ := h.vanilla(append(stem, 1)) // pins the stem
	for n := range 42 {
		wantEqual(t, "feasible", h.Feasible(Demand{n}), n <= 34)
		wantEqual(t, "simulated", preview(h, Demand{n}, 0).Feasible, n <= 34)
	}
	h.release(hold)
}

func TestField_ExhaustedPoolFailsTheRequestOnly(t *testing.T) { // TensorRT-LLM 1279, 1687
	h := newHost(t, Config{PageTokens: 4, BasePages: 4})
	a, _ := h.vanilla(tokens(1, 8))
	b, _ := h.vanilla(tokens(2, 8))
	r, err := h.Acquire(&AcquireRequest{Tokens: tokens(3, 1)})
	if err != nil || r.Status != InsufficientCapacity {
		t.Errorf("acquire: %+v %v", r, err)
	}
	wantEqual(t, "growth", h.grow(a, 1, 0), false)
	h.publish(a, 8)
	h.release(a, b)
	c, _ := h.vanilla(tokens(3, 1))
	h.release(c)
	wantEqual(t, "free", h.Free(BasePages), 2)
}

func TestReason_EveryAnswerHasOne(t *testing.T) {
	for r := range reasonCount {
		if r.String() == "" || r.String() == "unknown" {
			t.Errorf("reason %d has no name", r)
		}
	}
	wantEqual(t, "a reason that does not exist", reasonCount.String(), "unknown")
	wantEqual(t, "a pool that does not exist", resourceCount.String(), "unknown")
	h := newHost(t, Config{PageTokens: 4})
	h.run(AcquireRequest{Tokens: tokens(1, 8)})
	id, p := h.vanilla(tokens(2, 8))
	h.release(id)
	wantEqual(t, "reason", p.Reason, ReasonFirstBlock)
	wantEqual(t, "count", h.Counters().ReasonCount[ReasonFirstBlock], 1)
}

package prefix

import (
	"testing"

	"libprefixcache/core/status"
)

var d1, d2 = Hash128{1, 2}, Hash128{3, 4}

func digest(t testing.TB, parent Hash128, tok []int32, media []Hash128, e *Extras) Hash128 {
	t.Helper()
	var d digester
	return d.block(parent, tok, media, encodeExtras(nil, e))
}

// chainOf is the digests of the full blocks, and that of the whole sequence.
func chainOf(t testing.TB, tok []int32, page int, media []Hash128) ([]Hash128, Hash128) {
	t.Helper()
	chain := make([]Hash128, len(tok)/page)
	all, err := Digests(chain, tok, media, nil, page)
	if err != nil {
		t.Fatal(err)
	}
	return chain, all
}

// distinct checks that all values differ.
func distinct(t *testing.T, all map[string]Hash128) {
	t.Helper()
	seen := map[Hash128]string{}
	for name, d := range all {
		if other, dup := seen[d]; dup {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[d] = name
	}
}

func TestC01_EqualInputsGiveEqualDigestsOnEveryHost(t *testing.T) {
	e := &Extras{Adapter: Adapter{true, d1, 7}, Spans: []MediaSpan{{d1, d2, 3, 4, 5}}}
	got := digest(t, ChainRoot, []int32{1, 2, 3}, []Hash128{{}, d1, {}}, e)
	if again := digest(t, ChainRoot, []int32{1, 2, 3}, []Hash128{{}, d1, {}}, e); again != got {
		t.Errorf("digests differ: %x and %x", got, again)
	}
	// A golden value: no seed, pointer or byte order of this machine went in.
	wantEqual(t, "digest", got, Hash128{0x22761c58639a71d3, 0x74181af58b28da57})
}

func TestC02_ParentChangesThisBlockAndAllBelow(t *testing.T) {
	a, _ := chainOf(t, tokens(1, 12), 4, nil)
	tok := tokens(1, 12)
	tok[0]++
	b, _ := chainOf(t, tok, 4, nil)
	for i := range a {
		if a[i] == b[i] {
			t.Errorf("block %d has the same digest under another parent", i)
		}
	}
}

// The extras that C-3 to C-6 tell apart, and what they are called there.
var extrasKinds = map[string]*Extras{
	"none":                  nil,
	"adapter zero":          {Adapter: Adapter{Present: true}},
	"position zero":         {Position: OptionalHash{Present: true}},
	"embedding zero":        {Embedding: OptionalHash{Present: true}},
	"isolation zero":        {Isolation: OptionalHash{Present: true}},
	"adapter":               {Adapter: Adapter{true, d1, 0}},
	"adapter generation 1":  {Adapter: Adapter{true, d1, 1}},
	"adapter 2":             {Adapter: Adapter{true, d2, 0}},
	"position":              {Position: OptionalHash{true, d1}},
	"embedding":             {Embedding: OptionalHash{true, d1}},
	"isolation":             {Isolation: OptionalHash{true, d1}},
	"position+isolation":    {Position: OptionalHash{true, d1}, Isolation: OptionalHash{true, d1}},
	"span":                  {Spans: []MediaSpan{{d1, d2, 3, 4, 5}}},
	"span, other content":   {Spans: []MediaSpan{{d2, d2, 3, 4, 5}}},
	"span, other placement": {Spans: []MediaSpan{{d1, d1, 3, 4, 5}}},
	"span, other offset":    {Spans: []MediaSpan{{d1, d2, 2, 4, 5}}},
	"span, other order":     {Spans: []MediaSpan{{d1, d2, 3, 3, 5}}},
	"span, other modality":  {Spans: []MediaSpan{{d1, d2, 3, 4, 6}}},
	"two spans":             {Spans: []MediaSpan{{d1, d2, 3, 4, 5}, {d2, d2, 3, 4, 5}}},
	"two spans, swapped":    {Spans: []MediaSpan{{d2, d2, 3, 4, 5}, {d1, d2, 3, 4, 5}}},
	"empty span":            {Spans: []MediaSpan{{}}},
}

// testExtras: all kinds have different digests, and none finds state of another.
func testExtras(t *testing.T, names ...string) {
	t.Helper()
	all := map[string]Hash128{}
	for _, n := range names {
		all[n] = digest(t, ChainRoot, tokens(1, 8), nil, extrasKinds[n])
		if extrasKinds[n] == nil && n != "none" {
			t.Fatalf("no kind %q", n)
		}
		h := newHost(t, Config{PageTokens: 8})
		h.run(AcquireRequest{Tokens: tokens(1, 17), Extras: extrasKinds[n]})
		for _, o := range names {
			want := 0
			if o == n {
				want = 16
			}
			wantEqual(t, "hit of "+o+" on state of "+n, h.hit(AcquireRequest{Tokens: tokens(1, 17), Extras: extrasKinds[o]}), want)
		}
	}
	distinct(t, all)
}

func TestC03_AbsentAndZeroDiffer(t *testing.T) {
	testExtras(t, "none", "adapter zero", "position zero", "embedding zero", "isolation zero")
}

func TestC04_OptionalDigestsAreSeparateDomains(t *testing.T) {
	testExtras(t, "none", "position", "embedding", "isolation", "adapter", "position+isolation")
}

func TestC05_AdapterIdAndGenerationBothMatter(t *testing.T) {
	testExtras(t, "none", "adapter", "adapter generation 1", "adapter 2")
}

func TestC06_EveryFieldAndTheOrderOfSpansMatter(t *testing.T) {
	testExtras(t, "none", "span", "span, other content", "span, other placement", "span, other offset", "span, other order",
		"span, other modality", "two spans", "two spans, swapped", "empty span")
}

func TestC07_ZeroMediaDigestMeansTheToken(t *testing.T) {
	tok, zero := tokens(1, 8), make([]Hash128, 8)
	wantEqual(t, "digest with an all-zero media array", digest(t, ChainRoot, tok, zero, nil), digest(t, ChainRoot, tok, nil, nil))
	h := newHost(t, Config{PageTokens: 4})
	h.run(AcquireRequest{Tokens: tok})
	wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: append(tok, 1), Media: make([]Hash128, 9)}), 8)
	// And a digest replaces the token: the token below it no longer matters.
	media := []Hash128{{}, d1, {}, {}}
	other := append([]int32(nil), tok[:4]...)
	other[1]++
	wantEqual(t, "digest under another placeholder token", digest(t, ChainRoot, other, media, nil), digest(t, ChainRoot, tok[:4], media, nil))
	h.run(AcquireRequest{Tokens: tok[:4], Media: media})
	wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: append(other, 1), Media: append(media, Hash128{})}), 4)
	// Those beside it do, also where the block is compared before it is hashed: an only child.
	h = newHost(t, Config{PageTokens: 4})
	h.run(AcquireRequest{Tokens: tok[:4], Media: media})
	for _, at := range []int{0, 2, 3} {
		text := append([]int32(nil), tok[:4]...)
		text[at]++
		wantEqual(t, "hit of other text beside the same media", h.hit(AcquireRequest{Tokens: append(text, 1), Media: append(media, Hash128{})}), 0)
	}
}

func TestC08_MediaOfAnotherLengthIsRefused(t *testing.T) { // a slice cannot be null with a count; this is what is left of the rule
	for _, n := range []int{0, 3, 5} {
		if _, err := Digests(make([]Hash128, 1), tokens(1, 4), make([]Hash128, n), nil, 4); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("%d media entries for 4 tokens: %v", n, err)
		}
	}
	if _, err := Digests(nil, nil, nil, nil, 4); err != nil {
		t.Errorf("no tokens at all: %v", err)
	}
}

func TestC09_ChainNeverCoversAPartialTail(t *testing.T) {
	tok := tokens(1, 11)
	a, _ := chainOf(t, tok, 4, nil)
	tok[8], tok[10] = tok[8]+1, tok[10]+1
	b, _ := chainOf(t, tok, 4, nil)
	wantSlice(t, "chain", b, a)
	wantEqual(t, "length", len(a), 2)
	h := newHost(t, Config{PageTokens: 4})
	h.run(AcquireRequest{Tokens: tokens(1, 11)})
	wantEqual(t, "hit with another tail", h.hit(AcquireRequest{Tokens: tok}), 8)
	wantEqual(t, "pages in the index", h.IndexedPages(), 2)
}

func TestC10_MediaArrayOfTheChainHasOneEntryPerToken(t *testing.T) {
	tok, media := tokens(1, 8), make([]Hash128, 8)
	media[5] = d1
	with, _ := chainOf(t, tok, 4, media)
	plain, _ := chainOf(t, tok, 4, nil)
	if with[0] != plain[0] || with[1] == plain[1] {
		t.Error("each block must see its own slice of the media array")
	}
	for name, f := range map[string]func() error{
		"7 media entries": func() error { _, err := Digests(plain, tok, media[:7], nil, 4); return err },
		"page 0":          func() error { _, err := Digests(plain, tok, nil, nil, 0); return err },
		"page -1":         func() error { _, err := Digests(plain, tok, nil, nil, -1); return err },
		"1 of 2 blocks":   func() error { _, err := Digests(plain[:1], tok, nil, nil, 4); return err },
	} {
		if err := f(); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestC11_ExtrasApplyToEveryBlock(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	e := &Extras{Isolation: OptionalHash{true, d1}}
	tok := tokens(1, 13)
	h.run(AcquireRequest{Tokens: tok})
	h.run(AcquireRequest{Tokens: tok, Extras: e})
	wantEqual(t, "pages in the index: nothing is shared", h.IndexedPages(), 6)
	wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: tok, Extras: e}), 12)
}

func TestC12_GeneratedTokensAreIdentityLikePromptTokens(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	e := &Extras{Adapter: Adapter{true, d1, 1}}
	all := tokens(1, 13)
	id, _ := h.acquire(AcquireRequest{Tokens: all[:6], Extras: e})
	h.grow(id, 2, 0)
	h.append(id, all[6:])
	h.publish(id, 12)
	h.release(id)
	wantEqual(t, "hit of a prompt that contains the answer", h.hit(AcquireRequest{Tokens: all, Extras: e}), 12)
	wantEqual(t, "hit without the extras", h.hit(AcquireRequest{Tokens: all}), 0)
}

func TestC13_LookupAndPublicationAgreeOnExactLengths(t *testing.T) {
	tok := tokens(1, 11)
	chain, tail := chainOf(t, tok, 4, nil)
	_, aligned := chainOf(t, tok[:8], 4, nil)
	wantEqual(t, "exact digest of 8 tokens", aligned, chain[1])
	_, empty := chainOf(t, nil, 4, nil)
	wantEqual(t, "exact digest of nothing", empty, ChainRoot)
	wantEqual(t, "exact digest of 11 tokens", tail, digest(t, chain[1], tok[8:], nil, nil))

	for length := 1; length <= 10; length++ { // every remainder
		h := newHost(t, Config{PageTokens: 4, RecurrentSlots: 1, PartialSlots: 1})
		id, _ := h.acquire(AcquireRequest{Mode: Hybrid, Tokens: tok})
		h.checkpoint(id, length)
		h.release(id)
		wantEqual(t, "restart", h.hit(AcquireRequest{Mode: Hybrid, Tokens: tok}), length)
		other := tokens(1, 11)
		other[length-1]++
		wantEqual(t, "restart after another token", h.hit(AcquireRequest{Mode: Hybrid, Tokens: other}), 0)
	}
}

func TestC14_PositionsBeyondThePromptAreText(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	tok, media := tokens(1, 12), make([]Hash128, 12)
	for i := 1; i < 6; i++ {
		media[i] = d1
	}
	id, _ := h.acquire(AcquireRequest{Tokens: tok[:6], Media: media[:6]})
	h.grow(id, 1, 0)
	h.append(id, tok[6:])
	h.publish(id, 12)
	h.release(id)
	wantEqual(t, "hit with text behind the media", h.hit(AcquireRequest{Tokens: append(tok, 1), Media: append(media, Hash128{})}), 12)
	media[8] = d1
	wantEqual(t, "hit with media there", h.hit(AcquireRequest{Tokens: append(tok, 1), Media: append(media, Hash128{})}), 8)
}

func TestOpaqueIdentity_LengthAndTrailingZerosMatter(t *testing.T) {
	all := map[string]Hash128{"empty": OpaqueIdentity(nil), "zero": OpaqueIdentity([]byte{0}), "two zeros": OpaqueIdentity([]byte{0, 0}),
		"a": OpaqueIdentity([]byte("a")), "a0": OpaqueIdentity([]byte("a\x00")), "nothing": {}}
	distinct(t, all)
}

package prefix

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// scrambled puts a manager's free pages in random order, in runs of random length.
func scrambled(m *Manager, r *rand.Rand, longest int) {
	var order []int32
	var runs [][]int32
	for at := 0; at < m.base.size; {
		n := min(1+r.IntN(longest), m.base.size-at)
		run := make([]int32, n)
		for i := range run {
			run[i] = int32(at + i)
		}
		runs = append(runs, run)
		at += n
	}
	r.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
	for _, run := range runs {
		order = append(order, run...)
	}
	m.base.free.ring = order
}

// TestLongPromptsOverScatteredPages covers the paths that only long prompts take,
// streamed stores, range comparison and cells asked for ahead, for every kind of layout,
// and looks at the content word by word.
func TestLongPromptsOverScatteredPages(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, page := range []int{1, 3, 4, 16, 20, 32, 128, 1100} {
		for _, longest := range []int{1, 2, 6, 1000} {
			pages := 12000/page + 8
			h := newHost(t, Config{PageTokens: page, BasePages: pages})
			scrambled(h.Manager, r, longest)
			if longest == 6 { // a former tenant left media in every page
				media := make([]Hash128, pages*page)
				for i := range media {
					media[i] = d1
				}
				id, _ := h.acquire(AcquireRequest{Tokens: make([]int32, pages*page), Media: media})
				h.release(id)
			}
			tok := tokens(uint64(page), 5000)
			rec := h.run(AcquireRequest{Tokens: tok})
			got := h.recordTokens(rec.Record)
			full := len(tok) / page * page
			if !slices.Equal(got, tok[:full]) {
				t.Fatalf("page %d: the record's tokens differ", page)
			}
			path := h.recordPages(rec.Record, BasePages)
			for range 60 {
				n := 1 + r.IntN(len(tok)-1)
				prompt := slices.Clone(tok[:n])
				differs := n
				if r.IntN(4) > 0 { // in one token, anywhere
					differs = r.IntN(n)
					prompt[differs]++
				}
				blocks, pages, err := h.Lookup(&AcquireRequest{Tokens: prompt}, nil)
				if err != nil {
					t.Fatal(err)
				}
				want := min(differs, n) / page
				if blocks != want || !slices.Equal(pages, path[:want]) {
					t.Fatalf("page %d, runs up to %d: %d tokens that differ at %d match %d blocks, want %d", page, longest, n, differs, blocks, want)
				}
			}
			id, p := h.vanilla(append(slices.Clone(tok), 1))
			wantEqual(t, "reuse", p.Reuse, full)
			out := make([]int32, 5001)
			if err := h.History(id, 0, out); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(out[:5000], tok) {
				t.Fatalf("page %d: the lease's history differs", page)
			}
			h.release(id)
		}
	}
}

// TestComparePages holds the assembly against its plain twin: every width it is
// used for, every length, a difference in every word.
func TestComparePages(t *testing.T) {
	if !haveKernels {
		t.Log("no assembly in this build; the twin compares with itself")
	}
	r := rand.New(rand.NewPCG(5, 5))
	for _, width := range []int{4, 8, 12, 16, 20, 32, 36, 128} {
		const cells = 50
		c := &content{width: width, base: cells, words: tokens(7, cells*width)}
		order := make([]int32, 0, cells)
		var words []int32
		for _, p := range r.Perm(cells) {
			order = append(order, int32(p))
			words = append(words, c.cell(int32(p))...)
		}
		check := func(n, want int) {
			t.Helper()
			a, b := c.equalScattered(words[:n*width], order[:n]), c.equalScatteredGo(words[:n*width], order[:n])
			if a != want || b != want {
				t.Fatalf("width %d, %d cells: %d and %d are equal, want %d", width, n, a, b, want)
			}
		}
		for n := 1; n <= cells; n++ {
			check(n, n)
			at, bit := r.IntN(n*width), int32(1)<<r.IntN(32)
			words[at] ^= bit
			check(n, at/width)
			words[at] ^= bit
		}
		for at := range 2 * width { // every word of a cell, and bits at both ends
			for _, bit := range []int{0, 31} {
				words[at] ^= 1 << bit
				check(2, at/width)
				words[at] ^= 1 << bit
			}
		}
	}
}

// TestFillPages looks at every word of the slab: what was to be written is, in the order of
// the cells, and nothing beside it.
func TestFillPages(t *testing.T) {
	if !haveKernels {
		t.Log("no assembly in this build, nothing to hold against a twin")
		return
	}
	r := rand.New(rand.NewPCG(6, 6))
	const cells = 40
	for _, width := range []int{16, 32, 48, 128} {
		slab, words := make([]int32, cells*width), make([]int32, cells*width)
		for i := range words {
			words[i] = int32(r.Uint32())
		}
		for n := 1; n < cells; n++ {
			clear(slab)
			var order []int32
			want := make([]int32, cells*width)
			for i, p := range r.Perm(cells)[:n] {
				order = append(order, int32(p))
				copy(want[p*width:], words[i*width:(i+1)*width])
			}
			fillPages(&words[0], &slab[0], &order[0], int64(n), int64(width)*4)
			if !slices.Equal(slab, want) {
				t.Fatalf("width %d, %d cells: wrong words", width, n)
			}
		}
	}
}

func TestPromptOfSeveralPieces(t *testing.T) {
	tok := tokens(1, 2*pieceWords+300)
	for _, page := range []int{32, 2 * pieceWords} {
		h := newHost(t, Config{PageTokens: page, BasePages: len(tok)/page + 1})
		scrambled(h.Manager, rand.New(rand.NewPCG(7, 7)), 50)
		id, _ := h.vanilla(tok)
		got := make([]int32, len(tok))
		if err := h.History(id, 0, got); err != nil || !slices.Equal(got, tok) {
			t.Fatalf("page %d: the lease's history differs, %v", page, err)
		}
		h.publish(id, len(tok))
		h.release(id)
		wantEqual(t, "hit", h.hit(AcquireRequest{Tokens: tok}), len(tok)/page*page)
	}
}

// TestTableGrows: shadow cells are not bounded by a pool, so the table starts
// small and is rebuilt.
func TestTableGrows(t *testing.T) {
	h := newHost(t, Config{PageTokens: 2, RecurrentSlots: 600})
	for i := range int32(500) {
		id, _ := h.acquire(AcquireRequest{Mode: Hybrid, NoAttention: true, Tokens: []int32{i, i, i, i, i}})
		h.checkpoint(id, 4)
		h.release(id)
	}
	for i := range int32(500) {
		wantEqual(t, "restart", h.hit(AcquireRequest{Mode: Hybrid, NoAttention: true, Tokens: []int32{i, i, i, i, i + 1}}), 4)
	}
}

func TestQueries_AnswerForRecordsOfEveryKind(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, RecurrentSlots: 4, PartialSlots: 4, DraftPages: 8})
	id, _ := h.acquire(hybrid(tokens(1, 7)))
	r := h.checkpoint(id, 7)
	wantSlice(t, "tokens with the tail", h.recordTokens(r.Record), tokens(1, 7))
	n, err := h.HistoryLength(id)
	wantEqual(t, "history", n, 7)
	wantEqual(t, "error", err, nil)
	info, err := h.Lease(id)
	wantEqual(t, "error", err, nil)
	wantEqual(t, "lease", info, LeaseInfo{Mode: Hybrid, Attention: true, History: 7, Base: 2, Recurrent: -1, Partial: -1})
	wantEqual(t, "leases", h.Leases(), 1)
	wantEqual(t, "page tokens", h.Config().PageTokens, 4)
	k := newHost(t, Config{PageTokens: 4, Identity: Keys, RecurrentSlots: 1, PartialSlots: 1})
	y, _ := k.acquire(AcquireRequest{Mode: Hybrid, TokenCount: 7, Keys: []Hash128{d1}})
	slots, _, _ := k.Reserve(y, true)
	if _, err := k.PublishHybridKeys(y, 1, nil, Checkpoint{7, d2}, slots); err != nil {
		t.Fatal(err)
	}
	wantSlice(t, "keys of a record", k.recordTokens(1), keyWords([]Hash128{d1, d2}))
}

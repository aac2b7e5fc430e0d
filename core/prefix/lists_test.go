package prefix

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Lists of every length come, grow and go; each holds what was put into it, and their room
// is used again. With few pages they are put together anew time and again.
func TestCellLists(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for _, most := range []int{0, 300, 1 << 16} {
		c := newCellLists(most / idsPerPage)
		nodes := make([]node, 20)
		want := make([][]int32, len(nodes))
		compacted, longest := 0, 0
		for step := range 20000 {
			i, before := r.IntN(len(nodes)), len(c.ids)
			x := &nodes[i]
			switch more := tokens(uint64(step), 1+r.IntN(1+r.IntN(9))); {
			case x.list.size == 0 && step/1000%2 == 0:
				more = tokens(uint64(step), 1+r.IntN(70))
				fallthrough
			case x.list.size == 0:
				c.store(nodes, int32(i), more)
				want[i] = more
			case len(want[i]) < 200 && r.IntN(4) > 0:
				c.add(nodes, int32(i), more)
				want[i] = join(want[i], more)
			default:
				c.put(x.list)
				x.list, want[i] = list{}, nil
			}
			x.end = x.start + int32(len(want[i]))
			if len(c.ids) < before {
				compacted++
			}
			longest = max(longest, cap(c.ids))
			for k := range nodes {
				if l := nodes[k].list; l.size > 0 && !slices.Equal(c.ids[l.at:][:len(want[k])], want[k]) {
					t.Fatalf("step %d: list %d holds %v, want %v", step, k, c.ids[l.at:][:len(want[k])], want[k])
				}
			}
		}
		if bound := max(most, 2*20*512); longest > bound || most == 300 && compacted < 3 || most == 1<<16 && compacted > 0 {
			t.Errorf("room for %d ids at first: for %d at last, %d times put together anew", most, longest, compacted)
		}
	}
}

// The free slots come back in the order in which they went (C-17), whatever the ring's
// state, and a slot too many is noticed.
func TestIDQueue(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 10))
	for _, size := range []int{1, 2, 7, 64} {
		q := newIDQueue(size)
		want := slices.Collect(q.all())
		var out []int32
		for range 3000 {
			if n := r.IntN(q.n + 1); n == 1 {
				out = append(out, q.takeOne())
				wantEqual(t, "slot", out[len(out)-1], want[0])
				want = want[1:]
			} else {
				out = q.take(n, out)
				wantSlice(t, "slots", out[len(out)-n:], want[:n])
				want = want[n:]
			}
			n := r.IntN(len(out) + 1)
			q.put(out[:n])
			want = append(slices.Clone(want), out[:n]...)
			out = slices.Clone(out[n:])
			wantSlice(t, "free", slices.Collect(q.all()), want)
		}
		q.put(out)
		none := newIDQueue(1)
		none.takeOne()
		for what, wrong := range map[string]func(){"put": func() { q.put([]int32{0}) }, "takeOne": func() { none.takeOne() }, "take": func() { q.take(size+1, nil) }} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s of a slot too many was not noticed", what)
					}
				}()
				wrong()
			}()
		}
	}
}

// A manager whose lists are put together anew while requests come and go, pages are
// shortened, split and detached: everything is still where it was.
func TestListsOfAManagerMove(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 11))
	h := newHost(t, Config{PageTokens: 2, BasePages: 48, MaxRecords: 30, ShortenVictims: true})
	var live []LeaseID
	compacted := 0
	for step := range 20000 {
		before := len(h.lists.ids)
		if len(live) > 4 || len(live) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(live))
			if h.grow(live[i], 1, 0) {
				h.append(live[i], tokens(uint64(step), 2))
			}
			if n, _ := h.HistoryLength(live[i]); n > 1 {
				h.publish(live[i], n/2*2)
			}
			if r.IntN(3) == 0 {
				h.release(live[i])
				live = slices.Delete(live, i, i+1)
			}
		} else {
			tok := tokens(uint64(r.IntN(6)), 1+r.IntN(1+r.IntN(60)))
			if len(tok) > 4 && r.IntN(2) == 0 {
				tok[r.IntN(len(tok))] = 7
			}
			a, err := h.Acquire(&AcquireRequest{Tokens: tok})
			if err != nil {
				t.Fatal(err)
			}
			if a.Status == Acquired {
				live = append(live, a.Lease)
				got := make([]int32, len(tok))
				if err := h.History(a.Lease, 0, got); err != nil || !slices.Equal(got, tok) {
					t.Fatalf("step %d: lease holds %v, want %v", step, got, tok)
				}
			}
		}
		if err := h.Check(); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if len(h.lists.ids) < before {
			compacted++
		}
	}
	if compacted < 3 || cap(h.lists.ids) != idsPerPage*48 {
		t.Errorf("put together anew %d times, room for %d ids, expected at least 3 and %d", compacted, cap(h.lists.ids), idsPerPage*48)
	}
}

// The room that New makes is enough whatever is split.
func TestASplitTakesNoMemoryBeyondTheSizing(t *testing.T) {
	const pages = 1<<10 + 2
	h := newHost(t, Config{PageTokens: 1, BasePages: pages, MaxRecords: 1000})
	for i := range 600 {
		h.run(AcquireRequest{Tokens: []int32{int32(-i - 1)}})
	}
	h.Flush()
	h.run(AcquireRequest{Tokens: tokens(1, pages)})
	h.acquire(AcquireRequest{Tokens: join(tokens(1, pages)[:1], []int32{-9})}) // split at block 1
	if got := cap(h.lists.ids); got != idsPerPage*pages {
		t.Errorf("room for %d ids, New made %d", got, idsPerPage*pages)
	}
}

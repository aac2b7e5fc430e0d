package prefix

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// oldest is an Order of another kind: first in, first out, whatever is used.
type oldest struct{ lru }

func (*oldest) Touch(int32) {}

func TestOrder_IsWhatDecidesWhichRecordGoes(t *testing.T) {
	for name, c := range map[string]struct {
		order Order
		want  []RecordID
	}{
		"least recently used": {nil, []RecordID{2, 3, 1}},
		"first in, first out": {&oldest{*newLRU()}, []RecordID{1, 2, 3}},
	} {
		h := newHost(t, Config{PageTokens: 4, BasePages: 6, Order: c.order})
		for i := range uint64(3) {
			h.run(AcquireRequest{Tokens: tokens(i, 8)})
		}
		id, _ := h.vanilla(tokens(0, 8)) // 2 pages, one of them bound: evicts the first in order but its own
		h.release(id)
		order := h.order()
		wantSlice(t, name+": order", order, slices.DeleteFunc(c.want, func(id RecordID) bool { return !slices.Contains(order, id) }))
		if _, err := h.Record(1); err != nil {
			t.Errorf("%s: the record of the hit is spared while there is another one", name)
		}
	}
}

func TestLRU_AgainstAList(t *testing.T) {
	r, l := rand.New(rand.NewPCG(1, 1)), newLRU()
	var want []int32
	for range 5000 {
		i := int32(r.IntN(20))
		at := slices.Index(want, i)
		switch {
		case at < 0:
			l.Add(i)
			want = append(want, i)
		case r.IntN(3) == 0:
			l.Remove(i)
			want = slices.Delete(want, at, at+1)
		default:
			l.Touch(i)
			want = append(slices.Delete(want, at, at+1), i)
		}
		var got []int32
		for i := l.First(); i >= 0; i = l.After(i) {
			got = append(got, i)
		}
		wantSlice(t, "order", got, want)
	}
}

package prefix

import (
	"slices"
	"testing"

	"libprefixcache/core/status"
)

// The history reads back as it was given, over page bounds, with and without a
// page under the last tokens, and after the prompt was found in the cache.
func TestHistory_ReadsBackWhatWasAppended(t *testing.T) {
	m, err := New(Config{PageTokens: 4, BasePages: 32, MaxRecords: 8})
	if err != nil {
		t.Fatal(err)
	}
	var want []int32
	for i := range int32(10) {
		want = append(want, i+1)
	}
	for round := range 2 { // the second one begins with a hit
		res, err := m.Acquire(&AcquireRequest{Tokens: want[:10:10]})
		if err != nil || res.Status != Acquired {
			t.Fatal(res, err)
		}
		all := slices.Clone(want[:10])
		for i := range int32(7) {
			if err := m.Append(res.Lease, []int32{100 + i}); err != nil {
				t.Fatal(err)
			}
			all = append(all, 100+i)
			if i == 5 {
				if ok, err := m.Grow(res.Lease, 1, 0); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			for first := range all {
				got := make([]int32, len(all)-first)
				if err := m.History(res.Lease, first, got); err != nil || !slices.Equal(got, all[first:]) {
					t.Fatalf("round %d, %d appended, from %d: %v %v, expected %v", round, i+1, first, got, err, all[first:])
				}
			}
		}
		if got := status.CodeOf(m.History(res.Lease, 0, make([]int32, len(all)+1))); got != status.InvalidArgument {
			t.Fatalf("one token too many: status %d, expected invalid argument", got)
		}
		if _, err := m.Publish(res.Lease, 8); err != nil {
			t.Fatal(err)
		}
		if err := m.Release(res.Lease); err != nil {
			t.Fatal(err)
		}
	}
}

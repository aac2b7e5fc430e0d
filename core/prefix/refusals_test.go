package prefix

import (
	"strings"
	"testing"

	"libprefixcache/core/status"
)

// Every call refuses what does not exist or does not belong, by its code, and leaves
// the manager as it was.
func TestWhatDoesNotExistIsRefused(t *testing.T) {
	h := hybridHost(t)
	h.run(AcquireRequest{Tokens: tokens(1, 9)})
	lease, _ := h.acquire(hybrid(tokens(2, 10)))
	plain, _ := h.vanilla(tokens(3, 6))
	before := h.state()
	none := RecordID(99)
	for name, c := range map[string]struct {
		code status.Code
		call func() error
	}{
		"record":           {status.NotFound, func() error { _, err := h.Record(none); return err }},
		"pages of one":     {status.NotFound, func() error { _, err := h.RecordPages(none, BasePages, nil); return err }},
		"eviction of one":  {status.NotFound, func() error { return h.EvictRecord(none) }},
		"pool":             {status.InvalidArgument, func() error { _, err := h.RecordPages(1, RecurrentSlots, nil); return err }},
		"lease":            {status.BadHandle, func() error { _, err := h.Lease(lease + 99); return err }},
		"history of one":   {status.BadHandle, func() error { return h.History(lease+99, 0, nil) }},
		"length of one":    {status.BadHandle, func() error { _, err := h.HistoryLength(lease + 99); return err }},
		"length 0":         {status.InvalidArgument, func() error { _, err := h.PublishHybrid(lease, 0, Reservation{}); return err }},
		"beyond history":   {status.InvalidArgument, func() error { _, err := h.PublishHybrid(lease, 11, Reservation{}); return err }},
		"no snapshot":      {status.InvalidArgument, func() error { _, err := h.PublishHybrid(lease, 8, Reservation{-1, -1}); return err }},
		"partial too many": {status.InvalidArgument, func() error { _, err := h.PublishHybrid(lease, 8, Reservation{0, 0}); return err }},
		"partial missing":  {status.InvalidArgument, func() error { _, err := h.PublishHybrid(lease, 10, Reservation{0, -1}); return err }},
		"slot not its own": {status.WrongState, func() error { _, err := h.PublishHybrid(lease, 8, Reservation{7, -1}); return err }},
		"media of a batch": {status.InvalidArgument, func() error {
			_, err := h.AcquireBatch([]AcquireRequest{{Tokens: tokens(4, 4)}, {Tokens: tokens(5, 4), Media: make([]Hash128, 3)}}, make([]AcquireResult, 2))
			return err
		}},
	} {
		if err := c.call(); status.CodeOf(err) != c.code || err == nil {
			t.Errorf("%s: %v, want code %d", name, err, c.code)
		} else if strings.Contains(err.Error(), "want ") {
			t.Errorf("%s: %v; the other errors of the library say \"expected\"", name, err)
		}
	}
	if after := h.state(); after != before {
		t.Errorf("something changed:\n%s\nbefore:\n%s", after, before)
	}
	if err := h.Check(); err != nil {
		t.Error(err)
	}
	h.release(lease, plain)
	if _, err := New(Config{PageTokens: 4, BasePages: 4, TenantQuota: 1001}); status.CodeOf(err) != status.InvalidArgument {
		t.Errorf("a quota of more than everything: %v", err)
	}
}

// What is too short for a publication is named: the count that was given, or the history.
func TestAPublicationSaysWhatHoldsNoFullBlock(t *testing.T) {
	h := newHost(t, Config{PageTokens: 8, BasePages: 4, MaxRecords: 4})
	long, _ := h.vanilla(tokens(1, 20))
	short, _ := h.vanilla(tokens(2, 7))
	for lease, want := range map[LeaseID]string{
		long:  "resident is 7, which holds no full block; expected at least 8",
		short: "the history has 7 tokens, which hold no full block; expected at least 8",
	} {
		resident := 7
		if lease == short {
			resident = 8
		}
		if _, err := h.Publish(lease, resident); status.CodeOf(err) != status.InvalidArgument || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	h.release(long, short)
}

func TestKeysAndTokensAreToldApart(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4, RecurrentSlots: 2, PartialSlots: 2, Identity: Keys})
	keys := []Hash128{{1, 1}, {2, 2}}
	lease, _ := h.acquire(AcquireRequest{Mode: Hybrid, Keys: keys, TokenCount: 9})
	slots, ok, err := h.Reserve(lease, false)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	h.refused(status.WrongState, "History on a cache of keys", func() error { return h.History(lease, 0, make([]int32, 1)) })
	h.refused(status.Unsupported, "Append on a cache of keys", func() error { return h.Append(lease, []int32{1}) })
	h.refused(status.Unsupported, "PublishHybrid on a cache of keys", func() error {
		_, err := h.PublishHybrid(lease, 8, slots)
		return err
	})
	for name, c := range map[string]struct {
		first int
		keys  []Hash128
		at    Checkpoint
	}{
		"a block too few": {0, keys[:1], Checkpoint{Length: 8, Digest: keys[0]}},
		"another digest":  {0, keys, Checkpoint{Length: 8, Digest: Hash128{9, 9}}},
		"nothing":         {0, keys, Checkpoint{Length: 0}},
		"longer than any": {0, keys, Checkpoint{Length: maxTokens + 1}},
		"a block skipped": {3, nil, Checkpoint{Length: 12, Digest: keys[1]}},
		"a negative one":  {-1, append(keys, keys[1]), Checkpoint{Length: 8, Digest: keys[1]}},
	} {
		h.refused(status.InvalidArgument, name, func() error {
			_, err := h.PublishHybridKeys(lease, c.first, c.keys, c.at, slots)
			return err
		})
	}
	if err := h.Retire(lease, slots); err != nil {
		t.Fatal(err)
	}
	h.release(lease)
}

// A dump is for people: it names what tells two realms of the same tokens apart.
func TestDump_NamesAdaptersAndWhatWasInvalidated(t *testing.T) {
	h := newHost(t, Config{PageTokens: 4})
	adapter := Adapter{Present: true, ID: Hash128{0xABC, 1}, Generation: 7}
	lease, _ := h.acquire(AcquireRequest{Tokens: tokens(1, 8), Extras: &Extras{Adapter: adapter}})
	h.publish(lease, 8)
	want := "adapter 0000000000000abc0000000000000001 generation 7"
	if d := h.state(); !strings.Contains(d, want) || strings.Contains(d, "invalidated") {
		t.Errorf("%s\nwant %q", d, want)
	}
	h.Invalidate(adapter.ID, nil)
	if d := h.state(); !strings.Contains(d, want+" invalidated") {
		t.Errorf("%s\nwant %q", d, want+" invalidated")
	}
	h.release(lease)
}

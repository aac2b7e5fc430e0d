package prefix

import (
	"runtime"
	"strings"
	"syscall"
	"testing"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Each request for memory of a new manager fails in turn: an error that names the bytes.
func TestAManagerThatDoesNotFitIsRefused(t *testing.T) {
	defer rows.FailSystem(nil)
	for nth := 1; ; nth++ {
		calls := 0
		rows.FailSystem(func(call string) error {
			if call == "mmap" {
				if calls++; calls == nth {
					return syscall.ENOMEM
				}
			}
			return nil
		})
		_, err := New(Config{PageTokens: 16, BasePages: 1 << 20, MaxRecords: 4})
		if err == nil {
			if nth != 3 {
				t.Errorf("%d requests for memory, expected the tables and the tokens", nth-1)
			}
			return
		}
		want := []string{"a manager of 1048576 base and 0 draft pages needs 20971520 bytes", "cannot reserve 67108864 bytes (mirror)"}[nth-1]
		if status.CodeOf(err) != status.OutOfMemory || !strings.Contains(err.Error(), want) {
			t.Errorf("request %d: %v", nth, err)
		}
	}
}

// A new manager leaves its memory to the system; Touch takes it, up to a bound.
func TestMemoryOfTokensIsPresentWhenThatIsAskedFor(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want int64
	}{
		{Config{PageTokens: 1 << 10, BasePages: 1 << 10}, 4 << 20},
		{Config{PageTokens: 1 << 20, BasePages: 1 << 10}, maxTouch}, // of 4 GiB
		{Config{PageTokens: 1 << 10, RecurrentSlots: 4}, 0},
	} {
		m, err := New(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		resident := func() int64 {
			if m.content.slab == nil {
				return 0
			}
			return m.content.slab.Memory().Resident()
		}
		if got := resident(); got != 0 {
			t.Errorf("%+v: %d bytes are present, expected none", c.cfg, got)
		}
		if m.Touch(); resident() != c.want {
			t.Errorf("%+v: %d bytes are present after Touch, expected %d", c.cfg, resident(), c.want)
		}
		m.Close()
	}
}

// Looking for what is left of released tokens makes no memory present that held none.
func TestTheCheckMakesNoTokensPresent(t *testing.T) {
	m, err := New(Config{PageTokens: 1 << 10, BasePages: 16 << 10, MaxRecords: 4, ZeroOnRelease: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r, err := m.Acquire(&AcquireRequest{Tokens: make([]int32, 5000)})
	if err != nil || r.Status != Acquired {
		t.Fatal(r.Status, err)
	}
	if err := m.Release(r.Lease); err != nil {
		t.Fatal(err)
	}
	before := m.content.slab.Memory().Resident()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	// The system may make huge pages of small ones meanwhile.
	if got := m.content.slab.Memory().Resident(); got > before+8<<20 {
		t.Errorf("%d bytes are present after a check, %d before", got, before)
	}
	m.content.words[9999<<10] = 7
	if err := m.Check(); err == nil || !strings.Contains(err.Error(), "cell 9999 is free and holds") {
		t.Errorf("Check of a token that was left: %v", err)
	}
	m.content.words[9999<<10] = 0
}

// A lease lists its blocks in an array that is made once, at its size: one that grew with
// the match left as much again behind for the collector. What could never be had takes none.
func TestALeaseTakesMemoryForItsBlocksOnce(t *testing.T) {
	const blocks = 4096
	m, err := New(Config{PageTokens: 1, BasePages: 2 * blocks, MaxRecords: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	allocated := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	req := AcquireRequest{Tokens: make([]int32, blocks+1)}
	acquire := func() LeaseID {
		r, err := m.Acquire(&req)
		if err != nil || r.Status != Acquired {
			t.Fatal(r.Status, err)
		}
		return r.Lease
	}
	if _, err := m.Publish(acquire(), blocks); err != nil {
		t.Fatal(err)
	}
	l, err := m.find(acquire())
	if err != nil {
		t.Fatal(err)
	}
	if n := cap(l.cells); n < blocks+1 || n > (blocks+1)*9/8 { // the allocator rounds up
		t.Errorf("room for %d blocks, expected %d", n, blocks+1)
	}
	k, err := New(Config{PageTokens: 1, BasePages: 8, Identity: Keys})
	if err != nil {
		t.Fatal(err)
	}
	if n := allocated(func() {
		if r, err := k.Acquire(&AcquireRequest{TokenCount: maxTokens}); err != nil || r.Status != InsufficientCapacity {
			t.Error(r.Status, err)
		}
	}); n > 1<<16 {
		t.Errorf("%d bytes allocated for a request beyond the pool", n)
	}
}

// The figures are those of docs/sizing.md, worked out by hand.
func TestMostBytesIsTheSizingFormula(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want int64
	}{
		{Config{PageTokens: 16, BasePages: 1000, MaxRecords: 10}, 1000*(64+20) + 10*380},
		{Config{PageTokens: 16, BasePages: 1000, MaxRecords: 1 << 22}, 1000 * (64 + 20 + 380)}, // a record ends a block at least
		{Config{PageTokens: 128, BasePages: 1000, DraftPages: 500, MaxRecords: 0}, 1000*(512+20) + 500*16},
		{Config{PageTokens: 128, BasePages: 1000, Identity: Keys}, 1000 * (16 + 20)},
		{Config{PageTokens: 128, RecurrentSlots: 7, MaxRecords: 100}, 7*380 + 7*12},
		{Config{PageTokens: 1 << 20, BasePages: maxCapacity}, maxCapacity * (4<<20 + 20)},
	} {
		if got := c.cfg.MostBytes(); got != c.want {
			t.Errorf("%+v: %d bytes, expected %d", c.cfg, got, c.want)
		}
	}
}

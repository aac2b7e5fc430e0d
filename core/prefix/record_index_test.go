package prefix

import (
	"testing"

	"libprefixcache/core/status"
)

// Looking a record up by id takes as long among many as among few, and an id that was
// never given, or whose record is gone, is found nowhere.
func TestRecordsAreFoundByIDAmongMany(t *testing.T) {
	const many = 20000
	m, err := New(Config{PageTokens: 1, BasePages: many, MaxRecords: many})
	if err != nil {
		t.Fatal(err)
	}
	last := RecordID(0)
	publish := func(token int) {
		t.Helper()
		res, err := m.Acquire(&AcquireRequest{Tokens: []int32{int32(token), 0}[:1]})
		if err != nil || res.Status != Acquired {
			t.Fatal(res, err)
		}
		p, err := m.Publish(res.Lease, 1)
		if err != nil {
			t.Fatal(err)
		}
		last = p.Record
		if err := m.Release(res.Lease); err != nil {
			t.Fatal(err)
		}
	}
	for i := range many / 2 {
		publish(i)
	}
	if _, err := m.Record(1); err != nil { // from here on there is an index
		t.Fatal(err)
	}
	for i := many / 2; i < 3*many; i++ { // it grows, and most records go again
		publish(i)
	}
	for id := last - many + 1; id <= last; id += 97 {
		if r, err := m.Record(id); err != nil || r.ID != id {
			t.Fatalf("record %d: %+v, %v", id, r, err)
		}
	}
	for _, id := range []RecordID{0, 1, last - many, last + 1, ^RecordID(0)} {
		if _, err := m.Record(id); status.CodeOf(err) != status.NotFound {
			t.Errorf("record %d: %v", id, err)
		}
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	probes := 0
	for at := range m.byID.slot { // clusters stay short
		for k := at; m.byID.slot[k] != 0; k = (k + 1) % len(m.byID.slot) {
			probes++
		}
	}
	if mean := float64(probes) / many; mean > 4 {
		t.Errorf("%.1f probes to the end of a cluster on average", mean)
	}
}

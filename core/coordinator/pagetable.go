package coordinator

import (
	"fmt"
	"math"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// PageTable is the authoritative host state of one model's page table: for
// each batch slot its K page ids, then its V page ids, layout
// [maxBatch][2][width] int32, unused entries -1 in both halves.
// V is always K + number of pages. The device mirror has the same layout.
//
// The table decides which rows travel; it never copies anything itself. Not
// safe for concurrent use: the embedding layer serialises.
type PageTable struct {
	maxBatch, width, pages int32

	ids   []int32  // [slot][2][width]
	live  []int32  // used entries of each row
	state []uint8  // rowDirty, rowPlanned
	seen  []uint32 // stamp of the last call that named this slot
	stamp uint32
	spare []int32 // copy of ids during a compaction

	dirty         int32 // rows with rowDirty
	identity      bool
	planned       bool // an upload was handed out and not yet reported
	direct        bool // and it is PlanUpload's, for any stream
	uploadPending bool // the event of an upload may still be unfinished on the device
	foreign       bool // and that may be of another stream than the coordinator's
}

const (
	rowDirty   uint8 = 1 // host differs from the mirror
	rowPlanned uint8 = 2 // part of the upload that is handed out
)

const noPage int32 = -1

// NewPageTable makes a table of maxBatch rows of width pages over a pool of pages K
// pages: max_batch, row_width and num_pages of the options, whose names texts have. All
// rows start empty and dirty, so that the first upload transfers the whole table (C-79).
func NewPageTable(maxBatch, width, pages int32) (*PageTable, error) {
	if err := CheckPageTable(maxBatch, width, pages); err != nil {
		return nil, err
	}
	cells := int64(maxBatch) * 2 * int64(width)
	if err := rows.Probe(8*cells+9*int64(maxBatch), fmt.Sprintf("page table of %d rows of %d pages", maxBatch, width)); err != nil {
		return nil, err
	}
	t := &PageTable{
		maxBatch: maxBatch, width: width, pages: pages,
		ids: make([]int32, cells), spare: make([]int32, cells),
		live: make([]int32, maxBatch), state: make([]uint8, maxBatch), seen: make([]uint32, maxBatch),
		dirty: maxBatch,
	}
	for i := range t.ids {
		t.ids[i] = noPage
	}
	for i := range t.state {
		t.state[i] = rowDirty
	}
	return t, nil
}

// CheckPageTable checks the shape of a table that is to be made.
func CheckPageTable(maxBatch, width, pages int32) error {
	for _, a := range [...]struct {
		name string
		v    int32
	}{{"max_batch", maxBatch}, {"row_width", width}, {"num_pages", pages}} {
		if a.v <= 0 {
			return status.New(status.InvalidArgument, "page table: %s is %d, expected > 0", a.name, a.v)
		}
	}
	if pages > math.MaxInt32/2 {
		return status.New(status.InvalidArgument, "page table: num_pages is %d, expected at most %d so that V ids fit", pages, math.MaxInt32/2)
	}
	cells := int64(maxBatch) * 2 * int64(width)
	if cells > math.MaxInt32 {
		return status.New(status.InvalidArgument, "page table: max_batch * 2 * row_width is %d * 2 * %d, expected at most %d entries", maxBatch, width, math.MaxInt32)
	}
	return nil
}

func (t *PageTable) MaxBatch() int32 { return t.maxBatch }
func (t *PageTable) Width() int32    { return t.width }
func (t *PageTable) Pages() int32    { return t.pages }

// IsIdentity reports whether the last change was SetIdentity.
func (t *PageTable) IsIdentity() bool { return t.identity }

// Rows returns the host state of rows [first, first+count): count x 2 x width
// ids. It is a view for the executor: read only, valid until the next change.
func (t *PageTable) Rows(first, count int32) []int32 {
	stride := 2 * t.width
	return t.ids[first*stride : (first+count)*stride : (first+count)*stride]
}

// RowLength returns the number of used entries of a row.
func (t *PageTable) RowLength(slot int32) int32 { return t.live[slot] }

// Dirty reports whether the host row differs from the device mirror.
func (t *PageTable) Dirty(slot int32) bool { return t.state[slot] != 0 }

// halves returns the K and V halves of a row.
func (t *PageTable) halves(slot int32) (k, v []int32) {
	row := t.Rows(slot, 1)
	return row[:t.width:t.width], row[t.width:]
}

func (t *PageTable) touch(slot int32) {
	if t.state[slot]&rowDirty == 0 {
		t.state[slot] |= rowDirty
		t.dirty++
	}
}

// SetIdentity gives slot b the pages b*width .. b*width+width-1. A pool with
// more pages leaves the rest unused; one with fewer cannot hold the identity.
func (t *PageTable) SetIdentity() error {
	if need := int64(t.maxBatch) * int64(t.width); need > int64(t.pages) {
		return status.New(status.InvalidArgument, "page table: identity needs %d pages, the pool has %d", need, t.pages)
	}
	for b := range t.maxBatch {
		k, v := t.halves(b)
		changed := false
		for j := range k {
			id := b*t.width + int32(j)
			changed = changed || k[j] != id
			k[j], v[j] = id, id+t.pages
		}
		t.live[b] = t.width
		if changed {
			t.touch(b)
		}
	}
	t.identity = true
	return nil
}

// RowUpdate gives one slot a new list of pages.
type RowUpdate struct {
	Slot  int32
	Pages []int32
}

// SetRows replaces rows. Every update is checked before the first is applied
// (C-72); rows whose content does not change stay clean (C-73).
func (t *PageTable) SetRows(updates []RowUpdate) error {
	if len(updates) == 0 {
		return nil
	}
	t.nextStamp()
	for i := range updates {
		u := &updates[i]
		if u.Slot < 0 || u.Slot >= t.maxBatch {
			return status.New(status.InvalidArgument, "page table: update %d has slot %d, expected [0,%d)", i, u.Slot, t.maxBatch)
		}
		if t.seen[u.Slot] == t.stamp {
			return status.New(status.InvalidArgument, "page table: update %d names slot %d a second time", i, u.Slot)
		}
		t.seen[u.Slot] = t.stamp
		if len(u.Pages) > int(t.width) {
			return status.New(status.InvalidArgument, "page table: row of slot %d has %d pages, expected at most %d", u.Slot, len(u.Pages), t.width)
		}
		if err := t.checkPages(u.Slot, u.Pages); err != nil {
			return err
		}
	}
	for i := range updates {
		t.write(updates[i].Slot, updates[i].Pages)
	}
	t.identity = false
	return nil
}

// SetRow is SetRows of one row; count 0 clears it.
func (t *PageTable) SetRow(slot int32, pages []int32) error {
	u := [1]RowUpdate{{Slot: slot, Pages: pages}}
	return t.SetRows(u[:])
}

// AppendRow adds pages at the end of a row: what a decode step grows, without
// looking at the pages that are there already.
func (t *PageTable) AppendRow(slot int32, pages []int32) error {
	if slot < 0 || slot >= t.maxBatch {
		return status.New(status.InvalidArgument, "page table: slot is %d, expected [0,%d)", slot, t.maxBatch)
	}
	if n := int64(t.live[slot]) + int64(len(pages)); n > int64(t.width) {
		return status.New(status.InvalidArgument, "page table: row of slot %d would have %d pages, expected at most %d", slot, n, t.width)
	}
	if err := t.checkPages(slot, pages); err != nil {
		return err
	}
	t.identity = false
	if len(pages) == 0 {
		return nil
	}
	k, v := t.halves(slot)
	at := t.live[slot]
	for i, id := range pages {
		k[at+int32(i)], v[at+int32(i)] = id, id+t.pages
	}
	t.live[slot] = at + int32(len(pages))
	t.touch(slot)
	return nil
}

func (t *PageTable) checkPages(slot int32, pages []int32) error {
	for j, id := range pages {
		if id < 0 || id >= t.pages {
			return status.New(status.InvalidArgument, "page table: entry %d of slot %d is %d, expected [0,%d)", j, slot, id, t.pages)
		}
	}
	return nil
}

// write puts pages into a row whose content was checked, and clears its tail.
func (t *PageTable) write(slot int32, pages []int32) {
	k, v := t.halves(slot)
	n := int32(len(pages))
	changed := t.live[slot] != n
	for i, id := range pages {
		changed = changed || k[i] != id
		k[i], v[i] = id, id+t.pages
	}
	for i := n; i < t.live[slot]; i++ {
		k[i], v[i] = noPage, noPage
	}
	t.live[slot] = n
	if changed {
		t.touch(slot)
	}
}

func (t *PageTable) nextStamp() {
	t.stamp++
	if t.stamp == 0 { // wrapped: old stamps could match again
		clear(t.seen)
		t.stamp = 1
	}
}

// CompactRows moves whole rows by oldToNew (-1 retires a row); pages are
// neither copied nor renumbered (C-75). Every destination in [0,newBatch) must
// occur exactly once (C-74); rows that are no destination become empty.
// Permutations are allowed here: the stricter order of C-100 belongs to the
// coordinator, whose slot state moves in place.
func (t *PageTable) CompactRows(oldToNew []int32, newBatch int32) error {
	if len(oldToNew) > int(t.maxBatch) {
		return status.New(status.InvalidArgument, "page table: mapping has %d entries, expected at most %d", len(oldToNew), t.maxBatch)
	}
	if newBatch < 0 || newBatch > t.maxBatch {
		return status.New(status.InvalidArgument, "page table: new batch is %d, expected [0,%d]", newBatch, t.maxBatch)
	}
	t.nextStamp()
	covered := int32(0)
	for old, to := range oldToNew {
		if to == -1 {
			continue
		}
		if to < 0 || to >= newBatch {
			return status.New(status.InvalidArgument, "page table: slot %d moves to %d, expected -1 or [0,%d)", old, to, newBatch)
		}
		if t.seen[to] == t.stamp {
			return status.New(status.InvalidArgument, "page table: two slots move to %d", to)
		}
		t.seen[to] = t.stamp
		covered++
	}
	if covered != newBatch {
		return status.New(status.InvalidArgument, "page table: mapping covers %d of %d new slots", covered, newBatch)
	}
	copy(t.spare, t.ids)
	stride := 2 * t.width
	// write compares against what the row held before, which is still in place
	// for every row not yet written: each row is written exactly once.
	for old, to := range oldToNew {
		if to >= 0 {
			from := t.spare[int32(old)*stride : int32(old)*stride+t.width]
			n := int32(0)
			for n < t.width && from[n] != noPage {
				n++
			}
			t.write(to, from[:n])
		}
	}
	for b := range t.maxBatch {
		if t.seen[b] != t.stamp {
			t.write(b, nil)
		}
	}
	t.identity = false
	return nil
}

// CheckInvariants verifies that every id is -1 or in range, that V follows K,
// and that nothing live comes after a -1.
func (t *PageTable) CheckInvariants() error {
	for b := range t.maxBatch {
		if err := t.checkRow(b); err != nil {
			return err
		}
	}
	return nil
}

func (t *PageTable) checkRow(slot int32) error {
	k, v := t.halves(slot)
	for j := range k {
		live := int32(j) < t.live[slot]
		switch {
		case live && (k[j] < 0 || k[j] >= t.pages || v[j] != k[j]+t.pages),
			!live && (k[j] != noPage || v[j] != noPage):
			return status.New(status.Internal, "page table: entry %d of slot %d is corrupt (K %d, V %d, %d used)", j, slot, k[j], v[j], t.live[slot])
		}
	}
	return nil
}

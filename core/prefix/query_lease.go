package prefix

import "libprefixcache/core/status"

// PageCount is the number of pages that a lease holds in a page pool.
func (m *Manager) PageCount(id LeaseID, pool Resource) (int, error) {
	pages, err := m.pagesOf(id, pool)
	return len(pages), err
}

// LastPages copies the last len(out) pages of a lease: those of a Grow right before.
func (m *Manager) LastPages(id LeaseID, pool Resource, out []int32) error {
	pages, err := m.pagesOf(id, pool)
	if err != nil {
		return err
	}
	if len(out) > len(pages) {
		return status.New(status.InvalidArgument, "the last %d pages asked for, the lease has %d", len(out), len(pages))
	}
	copy(out, pages[len(pages)-len(out):])
	return nil
}

// Pages copies pages [first, first+len(out)) of a lease: the shared prefix, then
// the private pages, in block order.
func (m *Manager) Pages(id LeaseID, pool Resource, first int, out []int32) error {
	pages, err := m.pagesOf(id, pool)
	if err != nil {
		return err
	}
	if first < 0 || first > len(pages) || len(out) > len(pages)-first {
		return status.New(status.InvalidArgument, "pages [%d, %d) asked for, the lease has %d", first, first+len(out), len(pages))
	}
	copy(out, pages[first:])
	return nil
}

func (m *Manager) pagesOf(id LeaseID, pool Resource) ([]int32, error) {
	l, err := m.find(id)
	switch {
	case err != nil:
		return nil, err
	case pool == DraftPages:
		return l.draft, nil
	case pool != BasePages:
		return nil, status.New(status.InvalidArgument, "pool is %d, expected 0 (base) or 1 (draft)", pool)
	case !l.attention:
		return nil, nil
	}
	return l.cells, nil
}

// LeaseInfo describes a lease.
type LeaseInfo struct {
	Mode       Mode
	Attention  bool
	History    int // tokens
	Matched    int // blocks matched at acquisition
	Base       int // pages
	Draft      int
	Recurrent  int32 // restored slots still pinned, -1 = none
	Partial    int32
	Reserved   int  // recurrent slots reserved for captures
	Stale      bool // invalidated or flushed: publishes nothing any more
	Dependency int
}

// Lease describes a live lease.
func (m *Manager) Lease(id LeaseID) (LeaseInfo, error) {
	l, err := m.find(id)
	if err != nil {
		return LeaseInfo{}, err
	}
	base := len(l.cells)
	if !l.attention {
		base = 0
	}
	return LeaseInfo{l.mode, l.attention, l.history, int(l.matched), base, len(l.draft), l.recurrent, l.partial,
		len(l.reserved), m.realms[l.realm].dead, int(l.dependency)}, nil
}

// Covers says whether a lease is live and its history has that many tokens.
func (m *Manager) Covers(id LeaseID, tokens int) bool {
	l := m.lookup(id)
	return l != nil && tokens <= l.history
}

// HistoryLength is the number of tokens in a lease's history.
func (m *Manager) HistoryLength(id LeaseID) (int, error) {
	l, err := m.find(id)
	if err != nil {
		return 0, err
	}
	return l.history, nil
}

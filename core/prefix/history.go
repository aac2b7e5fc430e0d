package prefix

import "libprefixcache/core/status"

// History copies tokens [first, first+len(out)) of a lease's history: the words
// of its pages, then those that have no page yet. Media positions read 0, as their
// identity is the digest (C-7).
func (m *Manager) History(id LeaseID, first int, out []int32) error {
	l, err := m.find(id)
	if err != nil {
		return err
	}
	if m.cfg.Identity == Keys {
		return status.New(status.WrongState, "History on a cache of keys, which has no tokens")
	}
	if first < 0 || first > l.history || len(out) > l.history-first {
		return status.New(status.InvalidArgument, "tokens [%d, %d) asked for, the history has %d", first, first+len(out), l.history)
	}
	p, early := m.cfg.PageTokens, l.history-len(l.early)
	for at := first; len(out) > 0; {
		var n int
		if at >= early {
			n = copy(out, l.early[at-early:])
		} else {
			words := m.content.cell(l.cells[at/p])[at%p : p]
			n = copy(out, words[:min(len(words), early-at)])
		}
		at, out = at+n, out[n:]
	}
	return nil
}

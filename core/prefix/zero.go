package prefix

import "libprefixcache/core/rows"

// With Config.ZeroOnRelease no token, media digest or block key stays in memory once
// nothing can find it any more: cells are cleared when they go back to a free list, and
// the rest of a lease's tokens when it ends. Off, what is in them stays until they are
// filled again.

// clearCells clears cells that are about to be free.
func (m *Manager) clearCells(cells []int32) {
	if !m.cfg.ZeroOnRelease {
		return
	}
	for _, cell := range cells {
		clear(m.content.cell(cell))
		m.content.clearMedia(cell)
	}
}

// clearTokens clears what a lease keeps outside of cells.
func (m *Manager) clearTokens(l *lease) {
	if m.cfg.ZeroOnRelease {
		clear(l.early[:cap(l.early)])
	}
}

// Close gives the tokens' memory back, and clears it first if that is wanted. The
// manager must not be used afterwards. Without it the collector does so some day.
func (m *Manager) Close() {
	if m.cfg.ZeroOnRelease {
		for i := range m.leases {
			m.clearTokens(&m.leases[i])
		}
		for _, chunk := range m.content.shadow {
			clear(chunk)
		}
		clear(m.content.media)
		if m.content.slab != nil {
			m.content.slab.Memory().Wipe()
		}
	}
	if m.content.slab != nil {
		m.content.words = nil
		m.content.slab.Free()
	}
}

// zero looks at the memory of every free cell.
func (c *checker) zero() {
	m := c.m
	if !m.cfg.ZeroOnRelease {
		return
	}
	var slab *rows.Scan // what was never written is not read: that would make it present
	if m.content.slab != nil {
		slab = rows.NewScan(m.content.slab.Memory())
	}
	bytes := int64(m.content.width) * 4
	for cell, use := range c.cached {
		if use != 4 {
			continue
		}
		if int32(cell) >= m.content.base || !slab.Zero(int64(cell)*bytes, bytes) {
			for _, w := range m.content.cell(int32(cell)) {
				if w != 0 {
					c.fail("cell %d is free and holds %d", cell, w)
				}
			}
		}
		if m.content.digests(int32(cell)) != nil {
			c.fail("cell %d is free and has media digests", cell)
		}
	}
	free := map[int32]bool{}
	for _, e := range m.content.mediaFree {
		free[e] = true
	}
	for e := range free {
		for _, h := range m.content.media[int(e)*m.content.width : int(e+1)*m.content.width] {
			if !h.IsZero() {
				c.fail("media entry %d is free and not zero", e)
			}
		}
	}
}

// add is append that leaves no copy of the old entries behind.
func add[T any](s []T, zero bool, more ...T) []T {
	if !zero || len(s)+len(more) <= cap(s) {
		return append(s, more...)
	}
	grown := append(make([]T, 0, 2*(len(s)+len(more))), s...)
	clear(s)
	return append(grown, more...)
}

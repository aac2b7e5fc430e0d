package prefix

import (
	"fmt"
	"io"
	"strings"
)

// Dump writes the whole state readably: pools, trees with the records that end
// in them, leases, and the eviction order. For people and for tests; the format
// may change.
func (m *Manager) Dump(w io.Writer) error {
	var b strings.Builder
	for pool := range resourceCount {
		fmt.Fprintf(&b, "pool %s: capacity %d free %d active %d cached-only %d\n", pool, m.Capacity(pool), m.Free(pool),
			m.Active(pool), m.Capacity(pool)-m.Free(pool)-m.Active(pool))
	}
	for i := range m.realms {
		r := &m.realms[i]
		if r.root < 0 {
			continue
		}
		fmt.Fprintf(&b, "realm %d:", i)
		if r.adapter.Present {
			fmt.Fprintf(&b, " adapter %016x%016x generation %d", r.adapter.ID.Hi, r.adapter.ID.Lo, r.adapter.Generation)
		}
		if m.nodes[r.root].shadow {
			b.WriteString(" pure-recurrent")
		}
		if r.dead {
			b.WriteString(" invalidated")
		}
		fmt.Fprintf(&b, " leases %d\n", r.leases)
		m.dumpNode(&b, r.root, 1)
	}
	for i := range m.leases {
		l := &m.leases[i]
		if !l.live {
			continue
		}
		fmt.Fprintf(&b, "lease %#x: mode %d history %d matched %d pages %v", uint64(m.leaseID(int32(i))), l.mode, l.history, l.matched, l.cells)
		if len(l.draft) > 0 {
			fmt.Fprintf(&b, " draft %v", l.draft)
		}
		if l.recurrent >= 0 || len(l.reserved) > 0 {
			fmt.Fprintf(&b, " restored %d/%d reserved %v %v", l.recurrent, l.partial, l.reserved, l.reservedPartial)
		}
		b.WriteByte('\n')
	}
	b.WriteString("order:")
	for r := range m.AllRecords() {
		fmt.Fprintf(&b, " %d", r.ID)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

func (m *Manager) dumpNode(b *strings.Builder, id int32, depth int) {
	x := &m.nodes[id]
	if !x.isRoot() || x.deep >= 0 {
		fmt.Fprintf(b, "%*sblocks [%d, %d) pins %d cells", 2*depth, "", x.start, x.end, x.pins)
		for _, cell := range m.cells(x) {
			fmt.Fprintf(b, " %d", cell)
		}
		for r := x.deep; r >= 0; r = m.records[r].above {
			k := &m.records[r]
			fmt.Fprintf(b, " record %d@%d", k.id, k.at)
			if k.exact > 0 {
				fmt.Fprintf(b, "(%d tokens, slots %d/%d)", k.exact, k.recurrent, k.partial)
			}
			if k.draftLast >= 0 {
				b.WriteString("+draft")
			}
		}
		b.WriteByte('\n')
	}
	for c := x.child; c >= 0; c = m.nodes[c].sibling {
		m.dumpNode(b, c, depth+1)
	}
}

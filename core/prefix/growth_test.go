package prefix

import (
	"math/rand/v2"
	"testing"
)

// Nodes are not merged again when the branch or the record that split them is gone, and
// need not be: a node goes with the last record below it, so with traffic that splits at
// every depth there are four for a record, more than half of them without need, and no
// more after any number of requests. At 90 bytes each that is in the figure of
// docs/sizing.md.
func TestNodesDoNotPileUp(t *testing.T) {
	m, err := New(Config{PageTokens: 4, BasePages: 20000, MaxRecords: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	var tok []int32
	serve := func() {
		// Prompts fork off each other at every depth: most of them split a node.
		family := r.IntN(40)
		n := 40 + r.IntN(400)
		fork := r.IntN(n)
		tok = tok[:0]
		for i := range n {
			if i < fork {
				tok = append(tok, int32(family*1000+i))
			} else {
				tok = append(tok, int32(r.IntN(1<<20)))
			}
		}
		res, err := m.Acquire(&AcquireRequest{Tokens: tok})
		if err != nil || res.Status != Acquired {
			t.Fatal(res, err)
		}
		if _, err := m.Publish(res.Lease, n); err != nil {
			t.Fatal(err)
		}
		if err := m.Release(res.Lease); err != nil {
			t.Fatal(err)
		}
	}
	const runs = 20000
	for range runs {
		serve()
	}
	nodes := m.Nodes()
	for range runs {
		serve()
	}
	t.Logf("%d nodes after %d requests, %d after twice as many, %d of them without need, for %d records", nodes, runs,
		m.Nodes(), m.mergeable(), m.Records())
	if m.Nodes() > nodes+nodes/10 || m.Nodes() > 5*m.Records() {
		t.Errorf("%d nodes for %d records, %d after half of the requests", m.Nodes(), m.Records(), nodes)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
}

// mergeable counts the nodes that could be one with their only child.
func (m *Manager) mergeable() (n int) {
	for i := range m.realms {
		if m.realms[i].root >= 0 {
			n += m.mergeableBelow(m.realms[i].root)
		}
	}
	return n
}

func (m *Manager) mergeableBelow(id int32) (n int) {
	x := &m.nodes[id]
	if c := x.child; c >= 0 && m.nodes[c].sibling < 0 && !x.isRoot() && (x.deep < 0 || m.records[x.deep].at < x.end) && x.pins == m.nodes[c].pins {
		n++
	}
	for c := x.child; c >= 0; c = m.nodes[c].sibling {
		n += m.mergeableBelow(c)
	}
	return n
}

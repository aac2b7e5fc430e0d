package prefix

import "encoding/binary"

// realm is one set of extras. Because extras apply to every block of a sequence
// (C-11), each realm is a tree of its own: sequences with different extras never
// meet, whatever their tokens are. Pure recurrent sequences have realms of their
// own too, since their blocks have content but no page.
type realm struct {
	name    string // canonical bytes of the extras, see encodeExtras
	adapter Adapter
	root    int32 // node of length 0
	leases  int32
	tenant  int32 // see tenant.go
	dead    bool  // invalidated: nothing of it may be published any more
}

// encodeExtras appends an unambiguous form: every field has a fixed width or a
// count before it, every optional field a presence byte (C-3, C-4, C-6).
func encodeExtras(b []byte, e *Extras) []byte {
	le := binary.LittleEndian
	hash := func(h Hash128) { b = le.AppendUint64(le.AppendUint64(b, h.Hi), h.Lo) }
	if e == nil {
		e = &noExtras
	}
	b = append(b, presence(e.Adapter.Present))
	if e.Adapter.Present {
		hash(e.Adapter.ID)
		b = le.AppendUint64(b, e.Adapter.Generation)
	}
	for _, o := range [...]*OptionalHash{&e.Position, &e.Embedding, &e.Isolation} {
		b = append(b, presence(o.Present))
		if o.Present {
			hash(o.Hash)
		}
	}
	b = le.AppendUint32(b, uint32(len(e.Spans)))
	for i := range e.Spans {
		s := &e.Spans[i]
		hash(s.Content)
		hash(s.Placement)
		b = le.AppendUint32(b, uint32(s.Offset))
		b = le.AppendUint32(b, uint32(s.Order))
		b = append(b, s.Modality)
	}
	return b
}

var noExtras Extras

func presence(on bool) byte {
	if on {
		return 1
	}
	return 0
}

// findRealm returns the realm of some extras, or -1; its encoded name stays in m.name.
func (m *Manager) findRealm(e *Extras, attention bool) int32 {
	m.name = encodeExtras(append(m.name[:0], presence(attention)), e)
	if r, ok := m.realmOf[string(m.name)]; ok {
		return r
	}
	return -1
}

// openRealm is findRealm that makes the realm when it is new.
func (m *Manager) openRealm(e *Extras, attention bool) int32 {
	r := m.findRealm(e, attention)
	if r >= 0 {
		return r
	}
	if n := len(m.realmFree); n > 0 {
		r, m.realmFree = m.realmFree[n-1], m.realmFree[:n-1]
	} else {
		r = int32(len(m.realms))
		m.realms = append(m.realms, realm{})
	}
	root := m.newNode()
	x := &m.nodes[root]
	x.realm, x.attached, x.shadow = r, true, !attention
	m.realms[r] = realm{name: string(m.name), root: root}
	if e != nil {
		m.realms[r].adapter = e.Adapter
	}
	m.realmOf[m.realms[r].name] = r
	if m.tenants != nil {
		m.realms[r].tenant = m.tenants.enter(isolation(e))
	}
	return r
}

// closeRealm forgets a realm that holds nothing and that no lease is in.
func (m *Manager) closeRealm(r int32) {
	x := &m.realms[r]
	if root := &m.nodes[x.root]; x.leases > 0 || root.child >= 0 || root.deep >= 0 {
		return
	}
	m.freeNode(x.root)
	if !x.dead {
		delete(m.realmOf, x.name)
	}
	if m.tenants != nil {
		m.tenants.leave(x.tenant)
	}
	*x = realm{root: -1}
	m.realmFree = append(m.realmFree, r)
}

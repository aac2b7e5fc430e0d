package prefix

// Draft pages are counted for their tenant like base pages: they come with a lease, stay
// with a record, and no two tenants share one. Their quota is one of its own, because
// records of one prefix share its base pages while each may have draft pages: copies of
// a prompt that begin together leave a path each.

// takeDraft appends n private draft pages to a lease.
func (m *Manager) takeDraft(l *lease, n int) {
	l.draft = m.draft.take(n, l.draft)
	m.chargeDraft(l.realm, n, n)
}

// inactiveDraft counts the draft pages that pinning a path would activate.
func (m *Manager) inactiveDraft(path []int32) int {
	if len(path) == 0 {
		return 0
	}
	return m.draft.inactive(path[len(path)-1])
}

// pinDraft makes the lease an owner of the draft path that it binds.
func (m *Manager) pinDraft(l *lease) {
	if n := len(l.draft); n > 0 {
		before := m.draft.active
		m.draft.pin(l.draft[n-1])
		m.chargeDraft(l.realm, 0, m.draft.active-before)
	}
}

// unpinDraft ends what a lease owns of its draft path.
func (m *Manager) unpinDraft(l *lease) {
	if n := len(l.draft); n > 0 {
		before := m.draft.active
		freed := m.draft.unpin(l.draft[n-1])
		m.chargeDraft(l.realm, -freed, m.draft.active-before)
	}
}

// chargeDraft counts draft pages that were taken or freed, and that leases came to own
// or gave up.
func (m *Manager) chargeDraft(realm int32, all, active int) {
	if m.tenants != nil {
		x := &m.tenants.all[m.realms[realm].tenant].draft
		x.all += all
		x.active += active
	}
}

package prefix

import "libprefixcache/core/status"

// findHybrid is the precondition that all calls of this file share.
func (m *Manager) findHybrid(id LeaseID) (*lease, error) {
	l, err := m.find(id)
	if err == nil && l.mode != Hybrid {
		err = status.New(status.WrongState, "lease %#x is not hybrid", uint64(id)) // C-63
	}
	return l, err
}

// Reserve takes the slots of one capture for the lease, evicting if needed, unless the
// lease was flushed or invalidated.
// False means that none can be had: retention pressure, not an error.
func (m *Manager) Reserve(id LeaseID, needPartial bool) (Reservation, bool, error) {
	none := Reservation{-1, -1}
	l, err := m.findHybrid(id)
	if err != nil {
		return none, false, err
	}
	if needPartial && !l.attention {
		return none, false, status.New(status.InvalidArgument, "need_partial is 1, expected 0 for a pure recurrent lease")
	}
	d := Demand{RecurrentSlots: 1}
	if needPartial {
		d[PartialSlots] = 1
	}
	// Both pools are judged before either gives anything (C-18).
	if !m.recurrent.canHold(0, 1) || !m.partial.canHold(0, d[PartialSlots]) {
		return none, false, nil
	}
	if m.realms[l.realm].dead && !m.fitsNow(&d) {
		return none, false, nil // what it publishes is dropped: no snapshot of others goes for it
	}
	if !m.slotsWithinQuota(l, &d) {
		return none, false, nil
	}
	m.evictOwnSlots(l, &d)
	m.evictFor(d, -1)
	m.endCause()
	r := Reservation{m.takeSlot(RecurrentSlots, l.realm), -1}
	l.reserved = append(l.reserved, r.Recurrent)
	if needPartial {
		r.Partial = m.takeSlot(PartialSlots, l.realm)
		l.reservedPartial = append(l.reservedPartial, r.Partial)
	}
	m.notePeaks()
	return r, true, nil
}

func position(list []int32, s int32) int {
	for i := range list {
		if list[i] == s {
			return i
		}
	}
	return -1
}

func remove(list []int32, s int32) []int32 {
	i := position(list, s)
	last := len(list) - 1
	list[i] = list[last]
	return list[:last]
}

// checkOwned: the lease still owns the reserved slots.
func (l *lease) checkOwned(r Reservation) error {
	if position(l.reserved, r.Recurrent) < 0 {
		return status.New(status.WrongState, "recurrent slot %d is not reserved by this lease", r.Recurrent)
	}
	if r.Partial != -1 && position(l.reservedPartial, r.Partial) < 0 {
		return status.New(status.WrongState, "partial slot %d is not reserved by this lease", r.Partial)
	}
	return nil
}

// Retire drops the producer's hold on reserved slots; a published one stays
// with its record (C-62).
func (m *Manager) Retire(id LeaseID, slots Reservation) error {
	l, err := m.findHybrid(id)
	if err == nil {
		err = l.checkOwned(slots)
	}
	if err != nil {
		return err
	}
	l.reserved = remove(l.reserved, slots.Recurrent)
	m.dropSlot(RecurrentSlots, l.realm, slots.Recurrent, 1, 0)
	if slots.Partial >= 0 {
		l.reservedPartial = remove(l.reservedPartial, slots.Partial)
		m.dropSlot(PartialSlots, l.realm, slots.Partial, 1, 0)
	}
	return nil
}

// ReleaseRestored drops the pins on the slots that the hit bound: their content
// has been copied out.
func (m *Manager) ReleaseRestored(id LeaseID) error {
	l, err := m.findHybrid(id)
	if err == nil {
		m.dropRestored(l)
	}
	return err
}

func (m *Manager) dropRestored(l *lease) {
	if !l.live || l.mode != Hybrid {
		return
	}
	m.dropSlot(RecurrentSlots, l.realm, l.recurrent, 1, 0)
	m.dropSlot(PartialSlots, l.realm, l.partial, 1, 0)
	l.recurrent, l.partial = -1, -1
}

// PublishHybrid publishes the checkpoint of the first length tokens. The
// snapshot must have been written on the device before (C-61).
func (m *Manager) PublishHybrid(id LeaseID, length int, slots Reservation) (PublishResult, error) {
	l, err := m.findHybrid(id)
	if err != nil {
		return PublishResult{}, err
	}
	if m.cfg.Identity == Keys {
		return PublishResult{}, status.New(status.Unsupported, "PublishHybrid on a cache of keys; use PublishHybridKeys")
	}
	if length > l.history {
		return PublishResult{}, status.New(status.InvalidArgument, "length is %d, the history has %d tokens", length, l.history)
	}
	if err := m.checkHybrid(l, length, slots); err != nil {
		return PublishResult{}, err
	}
	if length%m.cfg.PageTokens != 0 && length/m.cfg.PageTokens >= len(l.cells) {
		return PublishResult{}, status.New(status.InvalidArgument, "length is %d, the lease has pages for %d", length, len(l.cells)*m.cfg.PageTokens)
	}
	if err := m.checkUnpublished(length, slots, nil); err != nil {
		return PublishResult{}, err
	}
	return m.publishHybrid(l, length, slots, nil), nil
}

// PublishHybridKeys is PublishHybrid on the block-key level. The digest of an
// aligned checkpoint is the key of its last block (C-13).
func (m *Manager) PublishHybridKeys(id LeaseID, first int, keys []Hash128, at Checkpoint, slots Reservation) (PublishResult, error) {
	l, err := m.findHybrid(id)
	if err == nil {
		_, err = m.findKeys(id, first, keys)
	}
	if err == nil {
		err = m.checkHybrid(l, at.Length, slots)
	}
	if err != nil {
		return PublishResult{}, err
	}
	p := m.cfg.PageTokens
	c := at.Length / p
	if first+len(keys) != c {
		return PublishResult{}, status.New(status.InvalidArgument, "keys reach block %d, expected exactly the %d full blocks of %d tokens", first+len(keys), c, at.Length)
	}
	if at.Length%p == 0 && len(keys) > 0 && keys[len(keys)-1] != at.Digest {
		return PublishResult{}, status.New(status.InvalidArgument, "digest of the aligned length %d differs from the key of block %d", at.Length, c-1)
	}
	if err := m.checkUnpublished(at.Length, slots, &at.Digest); err != nil {
		return PublishResult{}, err
	}
	// A pure recurrent lease has no pages to run out of; its content grows here.
	if !l.attention {
		m.takeCells(l, max(0, c-len(l.cells)))
	}
	if err := m.settleKeys(l, first, keys, int32(c)); err != nil {
		return PublishResult{}, err
	}
	return m.publishHybrid(l, at.Length, slots, &at.Digest), nil
}

func (m *Manager) checkHybrid(l *lease, length int, slots Reservation) error {
	p := m.cfg.PageTokens
	needPartial := l.attention && length%p != 0
	switch {
	case length <= 0:
		return status.New(status.InvalidArgument, "length is %d, expected > 0", length)
	case length > maxTokens:
		return status.New(status.InvalidArgument, "length is %d, expected at most %d", length, maxTokens)
	case slots.Recurrent < 0:
		return status.New(status.InvalidArgument, "recurrent slot is %d, expected >= 0", slots.Recurrent)
	case needPartial != (slots.Partial >= 0):
		return status.New(status.InvalidArgument, "partial slot is %d at length %d, expected one exactly when the last page is partial", slots.Partial, length)
	case l.attention && length/p > len(l.cells):
		return status.New(status.InvalidArgument, "length is %d, the lease has %d base pages", length, len(l.cells))
	}
	return l.checkOwned(slots)
}

// checkUnpublished: a slot holds one snapshot. Once it is a record's, another length of the
// lease would be a second record with the state of one of the two. The same once more is
// the record that is there.
func (m *Manager) checkUnpublished(length int, slots Reservation, digest *Hash128) error {
	if m.recurrent.refs[slots.Recurrent].cache == 0 && (slots.Partial < 0 || m.partial.refs[slots.Partial].cache == 0) {
		return nil // nearly always
	}
	for i := m.order.First(); i >= 0; i = m.order.After(i) {
		r := &m.records[i]
		if r.recurrent != slots.Recurrent && (slots.Partial < 0 || r.partial != slots.Partial) {
			continue
		}
		same := int(r.exact) == length && r.recurrent == slots.Recurrent && r.partial == slots.Partial &&
			(digest == nil || r.tail < 0 || equalWords(keyWords([]Hash128{*digest}), m.content.cell(r.tail)))
		if !same {
			return status.New(status.WrongState, "recurrent slot %d and partial slot %d: record %d, a snapshot of %d tokens, has %d and %d; expected slots that were reserved for this snapshot",
				slots.Recurrent, slots.Partial, r.id, r.exact, r.recurrent, r.partial)
		}
	}
	return nil
}

func (m *Manager) publishHybrid(l *lease, length int, slots Reservation, digest *Hash128) PublishResult {
	p := m.cfg.PageTokens
	c := int32(length / p)
	if m.realms[l.realm].dead {
		m.counters.StalePublishes++
		return PublishResult{Status: Published, Blocks: int(c), Stale: true}
	}
	// What lies behind the full blocks is compared too, so the record keeps a copy:
	// the page it is in belongs to the producer, who goes on writing to it.
	tail := int32(-1)
	if length%p != 0 {
		tail = m.content.takeShadow()
		m.fillTail(l, tail, c, length%p, digest)
	}
	at, _ := m.index(l, c)
	if i := m.recordAt(at, int32(length), tail); i >= 0 {
		// The slots stay with the lease until it retires them.
		if tail >= 0 {
			m.putShadowCell(tail)
		}
		m.order.Touch(i)
		return PublishResult{ExistingRecord, RecordID(m.records[i].id), int(c), false}
	}
	i := m.addRecord(at, int32(length))
	r := &m.records[i]
	r.tail, r.recurrent, r.partial = tail, slots.Recurrent, slots.Partial
	m.holdSlot(RecurrentSlots, l.realm, r.recurrent, 0, 1)
	m.holdSlot(PartialSlots, l.realm, r.partial, 0, 1)
	m.chargePartial(l.realm, r.partial)
	return m.retain(i, c)
}

// fillTail copies what a checkpoint has behind its full blocks into a shadow
// cell: n positions of the lease's block c, or the caller's digest.
func (m *Manager) fillTail(l *lease, tail, c int32, n int, digest *Hash128) {
	to := m.content.cell(tail)
	clear(to)
	m.content.clearMedia(tail)
	if digest != nil {
		copy(to, keyWords([]Hash128{*digest}))
		return
	}
	copy(to, m.content.cell(l.cells[c])[:n])
	m.content.copyMedia(tail, l.cells[c], n)
}

func (m *Manager) putShadowCell(c int32) { m.freeCells([]int32{c}, true) }

package prefix

import "libprefixcache/core/status"

// Publish makes the full blocks of the first resident tokens of the history
// findable. For a speculative lease resident is the common length.
// It costs what is new: nothing that was matched or published is looked at again.
func (m *Manager) Publish(id LeaseID, resident int) (PublishResult, error) {
	l := m.lookup(id)
	if l == nil {
		return PublishResult{}, staleLease(id)
	}
	if m.cfg.Identity == Keys {
		return PublishResult{}, status.New(status.Unsupported, "Publish on a cache of keys; use PublishKeys")
	}
	c := min(l.history, resident) / m.cfg.PageTokens
	if c > 0 && c == int(l.last.blocks) {
		// What was published last is still there if it has the id, and ends where it did.
		if r := &m.records[l.last.record]; r.live && r.id == l.last.id && r.at == l.last.blocks {
			return m.again(l, l.last.record, r.at), nil
		}
	}
	if err := m.checkPublish(l, c, l.history, resident); err != nil {
		return PublishResult{}, err
	}
	return m.publish(l, int32(c)), nil
}

// PublishKeys is Publish on the block-key level: keys[i] belongs to block
// first+i, and blocks before first are as they were given before. Blocks that
// were matched or published keep their keys (C-55, C-59).
func (m *Manager) PublishKeys(id LeaseID, first int, keys []Hash128, resident int) (PublishResult, error) {
	l, err := m.findKeys(id, first, keys)
	if err != nil {
		return PublishResult{}, err
	}
	known := (first + len(keys)) * m.cfg.PageTokens
	c := min(known, resident) / m.cfg.PageTokens
	if err := m.checkPublish(l, c, known, resident); err != nil {
		return PublishResult{}, err
	}
	if err := m.settleKeys(l, first, keys, int32(c)); err != nil {
		return PublishResult{}, err
	}
	return m.publish(l, int32(c)), nil
}

// checkPublish is C-55; everything is checked before anything changes. c blocks are to be
// published, of known tokens that have an identity and resident ones that are computed.
func (m *Manager) checkPublish(l *lease, c, known, resident int) error {
	switch {
	case l.mode == Hybrid:
		return status.New(status.WrongState, "publish of a hybrid lease, expected publish_hybrid") // C-63
	case resident < 0:
		return status.New(status.InvalidArgument, "resident is %d, expected >= 0", resident)
	case resident < m.cfg.PageTokens:
		return status.New(status.InvalidArgument, "resident is %d, which holds no full block; expected at least %d", resident, m.cfg.PageTokens)
	case c < 1 && m.cfg.Identity == Keys:
		return status.New(status.InvalidArgument, "keys reach block 0; expected that of block 0 at least, to publish one")
	case c < 1:
		return status.New(status.InvalidArgument, "the history has %d tokens, which hold no full block; expected at least %d", known, m.cfg.PageTokens)
	case c > len(l.cells):
		return status.New(status.InvalidArgument, "%d blocks to publish, the lease has %d base pages", c, len(l.cells))
	case l.mode == Spec && c > len(l.draft):
		return status.New(status.InvalidArgument, "%d blocks to publish, the lease has %d draft pages", c, len(l.draft))
	case int(l.dependency) > c:
		return status.New(status.InvalidArgument, "%d blocks to publish, the replayed block %d must be among them", c, l.dependency)
	}
	return nil
}

func (m *Manager) findKeys(id LeaseID, first int, keys []Hash128) (*lease, error) {
	l, err := m.find(id)
	switch {
	case err != nil:
		return nil, err
	case m.cfg.Identity != Keys:
		return nil, status.New(status.Unsupported, "keys given to a cache of tokens")
	case first < 0 || first > int(l.known()):
		return nil, status.New(status.InvalidArgument, "first is %d, expected 0..%d, the blocks whose keys are known", first, l.known())
	}
	return l, nil
}

// known is the number of blocks whose keys a caller has given.
func (l *lease) known() int32 { return max(l.settled, l.keyed) }

// settleKeys compares keys that can no longer change, behind block c too, and stores the
// new ones, as far as block c. Nothing changes when one differs.
func (m *Manager) settleKeys(l *lease, first int, keys []Hash128, c int32) error {
	for i := range keys {
		at := int32(first + i)
		if at >= l.settled {
			break
		}
		if !equalWords(m.content.cell(l.cells[at]), keyWords(keys[i:i+1])) {
			return status.New(status.InvalidArgument, "key of block %d differs from the one that was matched or published", at)
		}
	}
	for i := range keys {
		at := int32(first + i)
		if at >= l.settled && at < c {
			copy(m.content.cell(l.cells[at]), keyWords(keys[i:i+1]))
			l.keyed = max(l.keyed, at+1)
			l.miss.known = false // its hash may have been that of another key
		}
	}
	return nil
}

// publish commits the first c blocks of a lease as one record (C-57).
func (m *Manager) publish(l *lease, c int32) PublishResult {
	if m.realms[l.realm].dead {
		m.counters.StalePublishes++
		return PublishResult{Status: Published, Blocks: int(c), Stale: true}
	}
	p, fresh := m.index(l, c)
	i := int32(-1)
	if fresh == c {
		i = m.recordAt(p, 0, -1)
	}
	if i >= 0 {
		l.published(i, c, m.records[i].id)
		return m.again(l, i, c)
	}
	i = m.addRecord(p, 0)
	l.published(i, c, m.records[i].id)
	if l.mode == Spec {
		m.setDraft(i, l.draft[c-1])
	}
	return m.retain(i, c)
}

func (l *lease) published(record, blocks int32, id uint64) {
	l.last.record, l.last.blocks, l.last.id = record, blocks, id
}

// again publishes a record that is there.
func (m *Manager) again(l *lease, i, c int32) PublishResult {
	r := &m.records[i]
	res := PublishResult{ExistingRecord, RecordID(r.id), int(c), false}
	if l.mode == Spec && r.draftLast < 0 { // draft upgrade (C-56)
		m.setDraft(i, l.draft[c-1])
		res.Status = Published
	}
	m.order.Touch(i)
	return res
}

// retain applies the record limit after an insert and reports what is left.
func (m *Manager) retain(i, c int32) PublishResult {
	id := RecordID(m.records[i].id)
	if m.recordCount > m.cfg.MaxRecords || m.tenants != nil {
		m.enforceLimit(i)
	}
	if m.cfg.MaxRecords == 0 {
		id = 0
	}
	return PublishResult{Status: Published, Record: id, Blocks: int(c)}
}

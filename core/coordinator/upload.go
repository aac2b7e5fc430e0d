package coordinator

import "libprefixcache/core/status"

// UploadCommands is the most commands PlanUpload can write: each second row
// dirty, plus the wait and the record.
func (t *PageTable) UploadCommands() int { return int(t.maxBatch+1)/2 + 2 }

// PlanUpload writes the commands that bring the device mirror up to date and
// returns how many; 0 when nothing is dirty (C-76, C-77). The rows count as
// uploaded only when FinishUpload reports success; rows that change in between
// stay dirty.
func (t *PageTable) PlanUpload(cache Cache, dst []Command) (int, error) {
	if t.planned {
		return 0, status.New(status.WrongState, "page table: an upload is already handed out")
	}
	if t.dirty == 0 {
		return 0, nil
	}
	if len(dst) < t.UploadCommands() {
		return 0, status.New(status.BufferTooSmall, "page table: room for %d commands, expected %d", len(dst), t.UploadCommands())
	}
	for b := range t.maxBatch {
		if t.state[b]&rowDirty != 0 {
			if err := t.checkRow(b); err != nil {
				return 0, err
			}
		}
	}
	l := list{dst: dst}
	t.plan(cache, &l)
	t.direct = true
	return l.n, nil
}

// plan is PlanUpload without the checks, for the coordinator: it checked room,
// and it only writes rows through SetRow, AppendRow and CompactRows, which check
// every id. Scanning whole rows again would make a grown row cost its length.
func (t *PageTable) plan(cache Cache, l *list) {
	if t.dirty == 0 {
		return
	}
	if t.uploadPending {
		l.put(Command{Kind: CmdWaitUpload, Cache: cache})
	}
	for b := int32(0); b < t.maxBatch; {
		if t.state[b]&rowDirty == 0 {
			b++
			continue
		}
		first := b
		for b < t.maxBatch && t.state[b]&rowDirty != 0 {
			t.state[b] = rowPlanned
			b++
		}
		l.put(Command{Kind: CmdUploadRows, Cache: cache, Slot: first, Count: b - first})
	}
	l.put(Command{Kind: CmdRecordUpload, Cache: cache})
	t.dirty, t.planned = 0, true
}

// FinishUpload ends the upload that PlanUpload handed out. After a failure the
// rows are dirty again: nobody knows what the mirror holds.
func (t *PageTable) FinishUpload(ok bool) {
	if !t.planned {
		return
	}
	t.foreign = t.direct || t.foreign && !ok // one that failed may not have waited for the one before
	t.planned, t.direct = false, false
	t.uploadPending = true // even a failed one may have enqueued a copy
	for b := range t.maxBatch {
		if t.state[b]&rowPlanned == 0 {
			continue
		}
		t.state[b] &^= rowPlanned
		if !ok {
			t.touch(b)
		}
	}
}

// UploadPending reports whether the event of an earlier upload may still be
// unfinished: the owner waits for it before it frees the device mirror.
func (t *PageTable) UploadPending() bool { return t.uploadPending }

// Drained tells the table that the stream of its coordinator was synchronised since
// the last upload, so that the next one need not wait (C-78). An upload that was made
// through PlanUpload may be on another stream: only a wait ends it.
func (t *PageTable) Drained() {
	if !t.planned && !t.foreign {
		t.uploadPending = false
	}
}

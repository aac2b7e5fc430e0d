package prefix

// Order decides which record is evicted next. Records are small integers that
// are reused after Remove. Implementations allocate only in Add, and only to
// grow.
//
// Least recently used is what the specification asks for (C-36, C-41); a policy
// that learns reuse intervals fits behind the same five methods.
type Order interface {
	Add(record int32)         // new: most recent
	Touch(record int32)       // used now
	Remove(record int32)      // evicted
	First() int32             // the next victim, -1 = none
	After(record int32) int32 // the victim after this one, -1 = none
}

// lru is the default Order: a doubly linked list over record indexes.
type lru struct {
	link        []lruLink
	first, last int32
}

type lruLink struct{ prev, next int32 }

func newLRU() *lru { return &lru{first: -1, last: -1} }

func (l *lru) Add(r int32) {
	for int(r) >= len(l.link) {
		l.link = append(l.link, lruLink{-1, -1})
	}
	l.link[r] = lruLink{l.last, -1}
	if l.last >= 0 {
		l.link[l.last].next = r
	} else {
		l.first = r
	}
	l.last = r
}

func (l *lru) Remove(r int32) {
	k := l.link[r]
	if k.prev >= 0 {
		l.link[k.prev].next = k.next
	} else {
		l.first = k.next
	}
	if k.next >= 0 {
		l.link[k.next].prev = k.prev
	} else {
		l.last = k.prev
	}
}

func (l *lru) Touch(r int32) {
	if l.last != r {
		l.Remove(r)
		l.Add(r)
	}
}

func (l *lru) First() int32        { return l.first }
func (l *lru) After(r int32) int32 { return l.link[r].next }

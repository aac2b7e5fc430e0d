package omni

import (
	"math"
	"unsafe"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// HiddenKey is the reserved name of the hidden state.
const HiddenKey = "__hidden_states__"

// KeyID is the number of a key: 0, 1, 2, … in the order of first opening.
type KeyID int32

// NoKey in a Read stands for "no rows, only the errors of these requests".
const NoKey KeyID = -1

// Schedule is when the rows of a key reach the mirror.
type Schedule uint8

const (
	JoinNextStep Schedule = 0 // "immediate": with the step that computed them
	JoinOnFinish Schedule = 1 // "deferred": when the request finishes, or memory presses
)

const (
	maxKeys      = 1 << 16
	maxNameBytes = 4096
)

// key is one named tensor: its rows, and what is known about each slot.
//
// Tables are outside the Go heap: one entry a slot adds up, and the garbage
// collector has no business there.
type key struct {
	name     string
	rowBytes int64
	dtype    uint32
	sched    Schedule
	visible  bool // a successful save carried it; hits plan it, saves claim it

	mirror *rows.Mirror
	words  []word   // by slot
	heads  []link   // by granule: first reader of rows of these slots
	busy   []uint64 // a bit for each granule that has a reader: what a claim looks at
	rowOf  []int32  // by slot, deferred keys: the row a deferred word stands for
	store  rowStore // rows outside the mirror: deferred, and preserved for readers
	mem    []*rows.Memory

	landing *rows.Memory // StagingDepth pages of StagingCapacity rows, on first use
	warm    int64        // bytes of the mirror that Warm has made present
	gone    bool         // opened anew while Warm was at it, which frees it
	readers int          // planned reads of this key that are still open

	// For the save in progress: its index in SaveArgs.Rows, or -1.
	carried int32
}

// KeyInfo describes a key.
type KeyInfo struct {
	Name     string
	RowBytes int64
	DType    uint32
	Schedule Schedule
	Visible  bool
}

// OpenKey gives the number of a key. The key becomes visible to hits and claims
// with the first save that carries it and succeeds; until then it may be opened
// again with another shape. A visible key of another shape is a KeyMismatch: the
// caller hands that tensor out without caching it (S-8), and because its saves do
// not carry the key, its slots become absent for it (S-7).
func (c *Cache) OpenKey(name string, rowBytes int64, dtype uint32, s Schedule) (KeyID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.enter(); err != nil {
		return NoKey, err
	}
	defer c.leave()
	if c.closed {
		return NoKey, status.New(status.Closed, "open_key: the cache is shut down")
	}
	switch {
	case name == "" || len(name) > maxNameBytes:
		return NoKey, status.New(status.InvalidArgument, "name has %d bytes, expected 1 to %d", len(name), maxNameBytes)
	case rowBytes < 1 || rowBytes > maxRowBytes:
		return NoKey, status.New(status.InvalidArgument, "row_bytes of key %s is %d, expected 1 to %d", name, rowBytes, int64(maxRowBytes))
	case s > JoinOnFinish:
		return NoKey, status.New(status.InvalidArgument, "schedule of key %s is %d, expected 0 or 1", name, s)
	case name == HiddenKey && !c.wantsHidden:
		return NoKey, status.New(status.InvalidArgument, "key %s: the policy does not want hidden states", name)
	case name == HiddenKey && s != JoinNextStep:
		return NoKey, status.New(status.InvalidArgument, "key %s has schedule %d, expected 0: hidden rows are never deferred", name, s)
	}
	id, known := c.byName[name]
	if known {
		k := c.keys[id]
		if k.rowBytes == rowBytes && k.dtype == dtype && k.sched == s {
			return id, nil
		}
		if k.visible {
			return NoKey, status.New(status.KeyMismatch,
				"key %s is cached with %d bytes a row, type %d, schedule %d; got %d bytes, type %d, schedule %d: hand it out uncached",
				name, k.rowBytes, k.dtype, k.sched, rowBytes, dtype, s)
		}
	} else if len(c.keys) == maxKeys {
		return NoKey, status.New(status.InvalidArgument, "key %s is one too many, expected at most %d keys", name, maxKeys)
	}
	k, err := c.newKey(name, rowBytes, dtype, s)
	if err != nil {
		return NoKey, err
	}
	if known {
		c.giveUp(c.keys[id])
		c.keys[id] = k
		return id, nil
	}
	id = KeyID(len(c.keys))
	c.keys = append(c.keys, k)
	c.byName[name] = id
	if name == HiddenKey {
		c.hidden = id
	}
	return id, nil
}

// giveUp frees a key that no save has carried, or leaves that to Warm.
func (c *Cache) giveUp(k *key) {
	c.warmed -= k.warm
	if k == c.warming {
		k.gone = true
		return
	}
	k.free()
}

// newKey reserves address space for a key; nothing is touched yet.
func (c *Cache) newKey(name string, rowBytes int64, dtype uint32, s Schedule) (*key, error) {
	k := &key{name: name, rowBytes: rowBytes, dtype: dtype, sched: s, carried: -1}
	k.store.init(rowBytes, c.cfg.ZeroOnRelease)
	var err error
	if k.mirror, err = rows.NewMirror(c.slots, rowBytes, rows.MirrorOptions{DontDump: true}); err != nil {
		return nil, err
	}
	if k.words, err = table[word](k, c.slots); err == nil {
		k.heads, err = table[link](k, c.granules)
	}
	if err == nil {
		k.busy, err = table[uint64](k, c.granules/64+1)
	}
	if err == nil && s == JoinOnFinish {
		k.rowOf, err = table[int32](k, c.slots)
	}
	if err != nil {
		k.free()
		return nil, err
	}
	return k, nil
}

// table reserves a zeroed array of n entries outside the Go heap.
func table[T any](k *key, n int64) ([]T, error) {
	var t T
	size := int64(unsafe.Sizeof(t))
	if n > math.MaxInt64/size {
		return nil, status.New(status.OutOfMemory, "cannot reserve %d entries of %d bytes for key %s", n, size, k.name)
	}
	m, err := rows.Reserve(n*size, rows.MemoryOptions{Purpose: rows.PurposeMeta})
	if err != nil {
		return nil, err
	}
	k.mem = append(k.mem, m)
	return unsafe.Slice((*T)(m.Base()), n), nil
}

// page is the address of landing page p.
func (k *key) page(p int, capacity int64) unsafe.Pointer {
	return k.landing.At(int64(p) * capacity * k.rowBytes)
}

func (k *key) free() {
	if k.mirror != nil {
		k.mirror.Free()
	}
	for _, m := range k.mem {
		m.Free()
	}
	if k.landing != nil {
		k.landing.Free()
	}
	k.store.free()
	*k = key{name: k.name, rowBytes: k.rowBytes, dtype: k.dtype, sched: k.sched}
}

// key returns an opened key. Caller holds mu.
func (c *Cache) key(id KeyID) (*key, error) {
	if id < 0 || int(id) >= len(c.keys) {
		return nil, status.New(status.InvalidArgument, "key is %d, expected a number that open_key gave (0 to %d)", id, len(c.keys)-1)
	}
	return c.keys[id], nil
}

// Key describes a key.
func (c *Cache) Key(id KeyID) (KeyInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, err := c.key(id)
	if err != nil {
		return KeyInfo{}, err
	}
	return KeyInfo{Name: k.name, RowBytes: k.rowBytes, DType: k.dtype, Schedule: k.sched, Visible: k.visible}, nil
}

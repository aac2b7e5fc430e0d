package omni

import (
	"unsafe"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Inspect reads the state of slots for a key, and their rows as the mirror has
// them (zeros unless committed). It changes nothing. states has one entry for each
// slot or is nil; out may be nil.
func (c *Cache) Inspect(id KeyID, slots []int64, states []SlotState, out unsafe.Pointer, outBytes int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due()
	k, err := c.key(id)
	if err != nil {
		return err
	}
	if i := rows.FirstOutside(slots, c.slots); i >= 0 {
		return status.New(status.InvalidArgument, "slots[%d] is %d, expected 0 to %d", i, slots[i], c.slots-1)
	}
	if states != nil && len(states) < len(slots) {
		return status.New(status.BufferTooSmall, "states has %d entries, expected %d", len(states), len(slots))
	}
	if out != nil && outBytes/k.rowBytes < int64(len(slots)) {
		return status.New(status.BufferTooSmall, "rows_bytes is %d, expected %d rows of %d bytes", outBytes, len(slots), k.rowBytes)
	}
	for i, s := range slots {
		st := k.words[s].state(c.written)
		if states != nil {
			states[i] = st
		}
		if out == nil {
			continue
		}
		to := unsafe.Add(out, int64(i)*k.rowBytes)
		if st.State == Committed {
			copyRow(to, k.mirror.Row(s), k.rowBytes)
		} else {
			rows.Zero(to, k.rowBytes)
		}
	}
	return nil
}

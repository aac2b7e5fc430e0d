package omni

// trimWindow is for how many saves memory outside the mirror is kept after its last
// need: demand comes in waves, and a segment that comes back costs page faults.
const trimWindow = 1024

// trimStores gives memory back that rows outside the mirror do not need any more. Each
// save looks at one key and gives back one segment at most, so no step pays for a
// wave that has passed. It runs in Save, because only Save takes rows.
func (c *Cache) trimStores() {
	if len(c.visible) == 0 {
		return
	}
	if c.last%trimWindow == 0 {
		for _, id := range c.visible {
			c.keys[id].store.window()
		}
		return
	}
	k := c.keys[c.visible[c.last%uint64(len(c.visible))]]
	if m := k.store.surplus(); m != nil {
		c.unlocked(m.Free)
	}
}

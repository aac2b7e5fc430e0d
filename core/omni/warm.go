package omni

// Fresh memory costs a page fault on the first row that lands in it, and with huge
// pages each fault clears 2 MiB: some hundred microseconds in the middle of a decode
// step. Warm takes that off the engine's thread.

// Warm makes up to piece more bytes of the mirrors present, from slot 0 of each key on,
// which is the order in which a scheduler first gives blocks out. done: there is nothing
// left to warm, until another key is opened. It does nothing while an engine call runs,
// so that it does not compete with one for the memory; the caller tries again.
func (c *Cache) Warm(piece int64) (bytes int64, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, true
	}
	if c.engine {
		return 0, false
	}
	for _, k := range c.keys {
		size := k.mirror.Memory().Size()
		if n := min(piece, size-k.warm, c.cfg.WarmBytes-c.warmed); n > 0 {
			m, from := k.mirror.Memory(), k.warm
			k.warm += n
			c.warmed += n
			c.warming = k // Free waits, and who gives the key up leaves its memory
			c.unlocked(func() { _ = m.Touch(from, n) })
			if c.warming = nil; k.gone {
				k.free()
			}
			if c.closed {
				c.wake(Callers)
			}
			return n, false
		}
	}
	return 0, true
}

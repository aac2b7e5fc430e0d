package omni

// MostBytes is what the keys opened so far may come to hold, by the formula of
// docs/sizing.md: every slot has had a row, as much waits outside the mirror as may.
// Memory comes as rows do, so it is a figure to compare with what there is, not a need.
func (c *Cache) MostBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	// In floating point: the options may multiply to anything.
	var total, step, deferred, waiting float64
	for _, k := range c.keys {
		total += float64(k.mirror.Memory().Size())
		for _, m := range k.mem {
			total += float64(m.Size())
		}
		if k.sched == JoinOnFinish {
			deferred += float64(k.rowBytes)
			waiting += rowBooks
		} else {
			step += float64(k.rowBytes) * float64(c.cfg.StagingCapacity)
		}
	}
	if deferred > 0 {
		rows := min(float64(c.cfg.BudgetBytes)/deferred, float64(c.slots))
		total += rows * (deferred + waiting)
	}
	if c.cfg.Threaded && step >= float64(c.cfg.InlineBytes) {
		total += step * float64(c.cfg.StagingDepth)
	}
	return int64(min(total, mostBytes))
}

const (
	rowBooks  = 24      // unsafe.Sizeof(rowMeta{})
	mostBytes = 1 << 47 // the address space
)

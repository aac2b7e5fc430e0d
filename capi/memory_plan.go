package main

import "sync/atomic"

// memoryPlan is what one cache may come to hold, by the formula of docs/sizing.md. What
// is limited is the process, so all plans of it are summed. A limit is compared when a
// plan is made and is never an error: the memory is address space that may stay empty,
// and nobody knows what the rest of the process needs.
type memoryPlan struct {
	bytes  int64
	limit  memoryLimit // once looked: reading it takes as long as a key takes to open
	looked bool
	short  bool // told that the limit may be passed
}

// planned is the sum of all plans.
var planned atomic.Int64

// leastPlanned is not worth a look at the files of the system: the library's runtime
// takes as much.
const leastPlanned = 16 << 20

// set says what the cache may hold now, and returns what all may.
func (p *memoryPlan) set(bytes int64) (total int64) {
	total = planned.Add(bytes - p.bytes)
	p.bytes = bytes
	return total
}

// passes returns the limit that all caches together pass: once for each cache.
func (p *memoryPlan) passes(total int64, root string) (limit memoryLimit, yes bool) {
	if p.short || p.bytes == 0 || total < leastPlanned {
		return limit, false
	}
	if !p.looked {
		p.looked = true
		p.limit, _ = limitOfMemory(root)
	}
	p.short = p.limit.from != "" && total > p.limit.bytes
	return p.limit, p.short
}

// end takes the plan back; the cache is gone.
func (p *memoryPlan) end() { p.set(0) }

package omni

import (
	"fmt"

	"libprefixcache/core/status"
)

// fail makes a write failure sticky: rows are missing behind hashes that the
// scheduler has published, which nothing can repair, and the first error may reach
// nobody. So every later StepBegin, Save and Materialize reports it (O-42); the
// first failure is the one that is kept (O-13).
func (c *Cache) fail(cause error, what string, args ...any) {
	c.stats.FailedWrites++
	c.note(NoticeFailed)
	if c.fatal == nil {
		c.fatal = status.New(status.Unmatch, "prefix cache write failed for %s: %v; cached rows are lost behind published hashes",
			fmt.Sprintf(what, args...), cause)
	}
}

// failedBefore is what a waiter for the write that failed gets (O-43).
func (c *Cache) failedBefore(what string, n uint64) error {
	return status.New(status.Unmatch, "%s %d write failed before done: %v", what, n, c.fatal)
}

// Failure is the sticky failure, or nil.
func (c *Cache) Failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fatal
}

// FailWrite is a fail point for tests: the nth write from now fails, 1 is the next
// one; 0 clears it.
func (c *Cache) FailWrite(nth uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failAt = nth
}

// failPoint counts one write. Caller holds mu.
func (c *Cache) failPoint() bool {
	if c.failAt == 0 {
		return false
	}
	c.failAt--
	return c.failAt == 0
}

// errShutDown is what a waiter gets when the cache stops under it.
func errShutDown(call string) error {
	return status.New(status.Unmatch, "%s: the cache is shut down", call)
}

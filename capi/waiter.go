package main

import (
	"sync"

	"libprefixcache/core/omni"
	"libprefixcache/gpu"
)

// waiter parks threads for an omni cache and is its clock: one place to sleep for
// each queue. One per cache; a cache on which nobody waits pays nothing.
type waiter struct {
	queues [2]gpu.Parker // by omni.Queue
}

func (w *waiter) Now() int64 { return gpu.Now() }

func (w *waiter) Wait(mu *sync.Mutex, q omni.Queue, deadline int64) bool {
	return w.queues[q].Wait(mu, deadline)
}

func (w *waiter) Wake(q omni.Queue) { w.queues[q].Wake() }

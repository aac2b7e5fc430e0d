package main

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"math/bits"

	"libprefixcache/core/omni"
)

// report tells what happened in the cache since the last call. It follows every call
// that may have noticed something, and costs a load when nothing has.
func (o *omniCache) report() {
	if n := o.cache.Notices(); n != 0 {
		o.tell(n)
	}
}

// done is fail, after that.
func (o *omniCache) done(err error) C.pc_status {
	o.report()
	return fail(err)
}

func (o *omniCache) tell(n omni.Notice) {
	if n&omni.NoticeFlush != 0 {
		o.log.tell(aboutFlush, C.PC_LOG_WARNING, func() string {
			s := o.cache.Stats()
			return fmt.Sprintf("omni cache: deferred rows are written before their request finishes, because staging memory (%d bytes) is full; flushes so far: %d",
				s.BudgetBytes, s.Flushes)
		})
	}
	if n&omni.NoticeStaging != 0 {
		o.log.tell(aboutStaging, C.PC_LOG_WARNING, func() string {
			s := o.cache.Stats()
			return fmt.Sprintf("omni cache: a save waited for a staging slot, because steps that nobody has consumed hold all of them (staging depth: %d); waits so far: %d, of %.1f ms in all",
				s.StagingDepth, s.StagingWaits, float64(s.Waits[omni.WaitStaging].Nanoseconds)/1e6)
		})
	}
	if n&omni.NoticeFailed != 0 {
		o.log.tell(aboutFailure, C.PC_LOG_ERROR, func() string {
			return fmt.Sprintf("omni cache: %v; every later call fails, create a new cache", o.cache.Failure())
		})
	}
	if n&omni.NoticeDropped != 0 {
		o.log.tell(aboutDropped, C.PC_LOG_INFO, func() string {
			s := o.cache.Stats()
			return fmt.Sprintf("omni cache: prefix rows were planned and not used, because a step was discarded or nobody asked for them; reads so far: %d of %d",
				s.ReadsDropped, s.ReadsDropped+s.ReadsUsed)
		})
	}
}

// tellPinning tells that memory for rows from a device could not be pinned. The save
// fails with the same error, but an error that a host survives is easily lost.
func tellPinning(l *limiter, bytes int64, err error) {
	l.tell(aboutPinning, C.PC_LOG_WARNING, func() string {
		return fmt.Sprintf("omni cache: %d bytes of host memory could not be pinned for rows from a device: %v; see the limit of locked memory (ulimit -l)", bytes, err)
	})
}

// tellLost tells that an object was destroyed and left something behind.
func tellLost(what string, err error) {
	logLine(C.PC_LOG_ERROR, fmt.Sprintf("%s: not all of its memory could be given back: %v", what, err))
}

// tellMemory warns, once for each cache, when all caches of the process may come to hold
// more than the system allows it. most is what this one may hold now, remedy what makes
// that less. Where memory is short, none is to be taken ahead of use.
func tellMemory(plan *memoryPlan, most int64, cache, remedy string) (short bool) {
	total := plan.set(most)
	if limit, passed := plan.passes(total, "/"); passed {
		logLine(C.PC_LOG_WARNING, fmt.Sprintf("%s: its memory may come to %d bytes, that of all caches of this process to %d, but %s allows %d: there the system slows the process down or ends it; %s, or raise the limit",
			cache, most, total, limit.from, limit.bytes, remedy))
	}
	return plan.short
}

// lowerPages is what makes the tables of a context cache smaller.
const lowerPages = "lower the number of pages, the tokens of a page or max_records"

// tellNoDevice tells that a page table or a coordinator works on host memory although
// nobody asked for that.
func tellNoDevice(err error) {
	processLog.tell(aboutNoDevice, C.PC_LOG_INFO, func() string {
		return fmt.Sprintf("context cache: page tables and snapshots are in host memory, because there is no CUDA device: %v", err)
	})
}

// degradations are the counts that a context cache has told so far.
type degradations struct {
	forcedCold, skipped, quarantined int64
	poisoned                         bool
}

func (x *contextCache) degradations() degradations {
	var d degradations
	d.forcedCold, d.skipped, d.quarantined = x.c.Degradations()
	d.poisoned = x.c.Poisoned()
	return d
}

// doubled says whether a count that rose from was to is met a power of two on its way.
func doubled(was, is int64) bool { return bits.Len64(uint64(is)) > bits.Len64(uint64(was)) }

// tell tells what has become worse from one call to the next. No lock is held.
func (x *contextCache) tell(was, is degradations) {
	// These two are told when their count reaches a power of two: rare ones
	// all, frequent ones ever more rarely.
	if doubled(was.forcedCold, is.forcedCold) {
		logLine(C.PC_LOG_WARNING, fmt.Sprintf("context cache: a batch fitted only without its cached prefixes, so they are computed again; sequences so far: %d", is.forcedCold))
	}
	if doubled(was.skipped, is.skipped) {
		logLine(C.PC_LOG_WARNING, fmt.Sprintf("context cache: a snapshot was not captured, because every slot is in use; so far: %d", is.skipped))
	}
	if is.quarantined > was.quarantined {
		x.log.tell(aboutQuarantine, C.PC_LOG_WARNING, func() string {
			return fmt.Sprintf("context cache: a request is in quarantine, because work of the device may still use its pages; so far: %d", is.quarantined)
		})
	}
	if is.poisoned && !was.poisoned {
		x.log.tell(aboutPoison, C.PC_LOG_ERROR, func() string {
			return "context cache: a synchronisation failed, so the state of the device is unknown: the coordinator takes no more requests, destroy it and create a new one"
		})
	}
}

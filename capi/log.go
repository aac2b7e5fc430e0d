package main

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"time"
	"unsafe"

	"libprefixcache/core/rows"
	"libprefixcache/gpu"
)

// subject is what a line of the log is about. A degradation that goes on is told once
// at once, and then no more often than every logInterval, with how many lines were left
// out: what matters is that it happens, and how often; the metrics have the figures.
type subject uint8

const (
	aboutFlush subject = iota
	aboutStaging
	aboutDropped
	aboutFailure
	aboutPinning
	aboutQuarantine
	aboutPoison
	aboutHugePages
	aboutNoDevice
	numSubjects
)

const logInterval = int64(10 * time.Second)

// limiter lets lines through or not. One for each cache, so that a noisy one does not
// hide another; what belongs to no cache has processLog.
type limiter struct {
	mu      sync.Mutex
	subject [numSubjects]struct {
		until   int64 // no line before
		left    uint64
		started bool
	}
}

var processLog limiter

// admit decides on a line at a time, and says how many were left out before it.
func (l *limiter) admit(s subject, now int64) (ok bool, left uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.subject[s]
	if e.started && now < e.until {
		e.left++
		return false, 0
	}
	left, e.left = e.left, 0
	e.started, e.until = true, now+logInterval
	return true, left
}

// tell writes a line unless the host does not want its level or has just been told.
// text is made only when it is written. No lock of a cache may be held: the host's
// callback takes as long as it likes.
func (l *limiter) tell(s subject, level C.int32_t, text func() string) {
	if C.pcshim_log_wants(level) == 0 {
		return
	}
	ok, left := l.admit(s, gpu.Now())
	if !ok {
		return
	}
	line := text()
	if left > 0 {
		line += fmt.Sprintf(" (such lines left out since the last one: %d)", left)
	}
	logLine(level, line)
}

// logLine hands a line to the host's log callback.
func logLine(level C.int32_t, text string) {
	if C.pcshim_log_wants(level) == 0 {
		return
	}
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	C.pcshim_log(level, c)
}

// tellHugePages warns once when the rows of a cache will lie on small pages.
func tellHugePages() {
	if mode := rows.HugePages(); mode == "never" {
		processLog.tell(aboutHugePages, C.PC_LOG_WARNING, func() string {
			return "transparent huge pages are off (never in " + rows.HugePagesFile + "): moving rows takes 1.3 to 1.8 times as long; write madvise to it"
		})
	}
}

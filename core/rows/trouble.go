package rows

import (
	"sync"
	"sync/atomic"

	"libprefixcache/core/status"
)

// What the system may refuse, and what becomes of it. Memory that cannot be had is an
// error of the call that wanted it. Advice that is refused costs speed or privacy, not
// correctness: it is a warning, once for each kind.

// trouble is the warnings so far. Memory is reserved by every cache of the process, on
// any thread; the one who listens comes when it likes.
var trouble struct {
	sync.Mutex
	texts  []string
	listen func(text string)
}

// OnWarning has f told of every warning that is still to come, and returns those that
// there were. f may be called on any thread, with locks held: it must not call back.
func OnWarning(f func(text string)) (sofar []string) {
	trouble.Lock()
	defer trouble.Unlock()
	trouble.listen = f
	return append(sofar, trouble.texts...)
}

// once is a warning that is given the first time only.
type once struct{ given atomic.Bool }

func (o *once) warn(text string) {
	if o.given.Swap(true) {
		return
	}
	trouble.Lock()
	trouble.texts = append(trouble.texts, text)
	listen := trouble.listen
	trouble.Unlock()
	if listen != nil {
		listen(text)
	}
}

var noHuge, noDontDump, noDontFork once

// failSystem is a fail point, see FailSystem.
var failSystem atomic.Pointer[func(call string) error]

// FailSystem is a fail point for tests: f is asked before every system call about
// memory ("mmap", "hugepage", "dontdump", "dontfork", "populate", "mincore"), and what
// it returns is the call's error. nil ends it.
func FailSystem(f func(call string) error) {
	if f == nil {
		failSystem.Store(nil)
		return
	}
	failSystem.Store(&f)
}

func fails(call string) error {
	if f := failSystem.Load(); f != nil {
		return (*f)(call)
	}
	return nil
}

// Probe says whether bytes more bytes of address space can be had now, for tables that
// the Go heap will hold: the Go runtime ends the process when it gets no memory, and an
// address space limit (RLIMIT_AS) or strict overcommit is better met here. what names
// the tables in the error.
func Probe(bytes int64, what string) error {
	if bytes < probeBytes {
		return nil
	}
	raw, err := sysProbe(bytes + bytes/16 + probeSlack)
	if err != nil {
		return status.New(status.OutOfMemory, "%s needs %d bytes: mmap: %v", what, bytes, err)
	}
	_ = sysRelease(raw)
	return nil
}

const (
	// probeBytes is what the Go runtime is taken to have at hand.
	probeBytes = 1 << 20
	// probeSlack is what it takes besides: it asks for 64 MiB at a time, and keeps
	// books of each.
	probeSlack = 160 << 20
)

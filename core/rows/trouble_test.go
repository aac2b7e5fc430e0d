package rows

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"libprefixcache/core/status"
)

// refuse lets one kind of system call fail for the rest of a test.
func refuse(t *testing.T, calls ...string) {
	t.Helper()
	FailSystem(func(call string) error {
		if slices.Contains(calls, call) {
			return syscall.ENOMEM
		}
		return nil
	})
	t.Cleanup(func() { FailSystem(nil) })
}

func TestMemoryThatCannotBeHadIsAnErrorThatNamesTheBytes(t *testing.T) {
	refuse(t, "mmap")
	before := usageOf(PurposeMirror)
	_, err := NewMirror(1<<20, 4096, MirrorOptions{})
	if status.CodeOf(err) != status.OutOfMemory || !strings.Contains(err.Error(), "4294967296 bytes (mirror)") {
		t.Errorf("NewMirror is %v", err)
	}
	if got := usageOf(PurposeMirror); got != before {
		t.Errorf("counters went from %+v to %+v", before, got)
	}
	a := NewArena(ArenaOptions{})
	if _, _, err := a.Get(3 << 20); status.CodeOf(err) != status.OutOfMemory {
		t.Errorf("Arena.Get is %v", err)
	}
	if err := a.Check(); err != nil {
		t.Error(err)
	}
	if err := Probe(1<<30, "a table of 5 pages"); status.CodeOf(err) != status.OutOfMemory || !strings.Contains(err.Error(), "a table of 5 pages needs 1073741824 bytes") {
		t.Errorf("Probe is %v", err)
	}
	FailSystem(nil)
	if p, id, err := a.Get(3 << 20); err != nil || p == nil {
		t.Errorf("Arena.Get after the failure is %v", err)
	} else if err := a.Put(id); err != nil {
		t.Error(err)
	}
	if err := Probe(1<<30, "a table"); err != nil {
		t.Error(err)
	}
}

// Without huge pages, and without the rest of the advice, everything works; whoever
// listens is told once for each kind, also when it listens late.
func TestRefusedAdviceIsAWarningOnce(t *testing.T) {
	kinds := []*once{&noHuge, &noDontDump, &noDontFork}
	for _, k := range kinds {
		k.given.Store(false)
	}
	trouble.texts = nil
	var heard []string
	OnWarning(func(text string) { heard = append(heard, text) })
	t.Cleanup(func() { OnWarning(nil) })
	refuse(t, "hugepage", "dontdump", "dontfork", "populate", "mincore")
	for range 3 {
		m := mustReserve(t, 4*HugeBytes, MemoryOptions{DontDump: true, DontFork: true})
		if err := m.Touch(0, m.Size()); err != nil { // by hand
			t.Fatal(err)
		}
		*(*byte)(m.At(HugeBytes)) = 5
		m.Wipe()
		if *(*byte)(m.At(HugeBytes)) != 0 {
			t.Error("Wipe left a byte where mincore fails")
		}
		m.Free()
	}
	if len(heard) != 3 || !strings.Contains(heard[0], "huge pages are not available") || !strings.Contains(heard[1], "core dumps") || !strings.Contains(heard[2], "fork") {
		t.Errorf("heard %q", heard)
	}
	if got := OnWarning(nil); !slices.Equal(got, heard) {
		t.Errorf("a late listener gets %q", got)
	}
	trouble.texts = nil
}

// A limit of the process, not a fail point.
func TestAddressSpaceLimit(t *testing.T) {
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &old); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var pages uint64
	if _, err := fmt.Sscan(string(text), &pages); err != nil {
		t.Fatal(err)
	}
	low := old
	low.Cur = pages*PageBytes + 64<<30
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &low); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_AS, &old) }()
	if _, err := Reserve(128<<30, MemoryOptions{}); status.CodeOf(err) != status.OutOfMemory {
		t.Errorf("Reserve beyond RLIMIT_AS is %v", err)
	}
	if err := Probe(128<<30, "tables"); status.CodeOf(err) != status.OutOfMemory {
		t.Errorf("Probe beyond RLIMIT_AS is %v", err)
	}
	m := mustReserve(t, 1<<30, MemoryOptions{})
	*(*byte)(m.At(1<<30 - 1)) = 1
}

package coordinator

import (
	"strings"
	"syscall"
	"testing"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Tables on the Go heap are asked for beforehand: the runtime would end the process.
func TestTablesThatDoNotFitAreRefusedBeforeTheyAreMade(t *testing.T) {
	rows.FailSystem(func(call string) error {
		if call == "mmap" {
			return syscall.ENOMEM
		}
		return nil
	})
	defer rows.FailSystem(nil)
	_, err := NewPageTable(1<<14, 1<<15, 1<<20)
	if status.CodeOf(err) != status.OutOfMemory || !strings.Contains(err.Error(), "page table of 16384 rows of 32768 pages needs 8590082048 bytes") {
		t.Errorf("NewPageTable is %v", err)
	}
	if _, err := NewPageTable(4, 8, 32); err != nil { // nothing worth asking for
		t.Error(err)
	}
}

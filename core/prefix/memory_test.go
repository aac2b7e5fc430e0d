package prefix

import (
	"strings"
	"syscall"
	"testing"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Each request for memory of a new manager fails in turn: an error that names the bytes.
func TestAManagerThatDoesNotFitIsRefused(t *testing.T) {
	defer rows.FailSystem(nil)
	for nth := 1; ; nth++ {
		calls := 0
		rows.FailSystem(func(call string) error {
			if call == "mmap" {
				if calls++; calls == nth {
					return syscall.ENOMEM
				}
			}
			return nil
		})
		_, err := New(Config{PageTokens: 16, BasePages: 1 << 20, MaxRecords: 4})
		if err == nil {
			if nth != 3 {
				t.Errorf("%d requests for memory, expected the tables and the tokens", nth-1)
			}
			return
		}
		want := []string{"a manager of 1048576 base and 0 draft pages needs 4194304 bytes", "cannot reserve 67108864 bytes (mirror)"}[nth-1]
		if status.CodeOf(err) != status.OutOfMemory || !strings.Contains(err.Error(), want) {
			t.Errorf("request %d: %v", nth, err)
		}
	}
}

//go:build !race && !invariants

// Builds with invariants poison all of what is given back, present or not.

package rows

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A buffer that is not kept goes back to the system: clearing what nobody wrote would
// make all of it present first.
func TestZeroOnReleaseMakesNoMemoryPresent(t *testing.T) {
	a := NewArena(ArenaOptions{RetainBytes: 4 << 20})
	defer a.Close()
	a.ZeroOnRelease()
	peak := func() (kib int64) {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(text), "VmHWM:")
		if _, err := fmt.Sscan(after, &kib); err != nil {
			t.Fatal(err)
		}
		return kib
	}
	p, id, err := a.Get(512 << 20)
	if err != nil {
		t.Fatal(err)
	}
	*(*byte)(p) = 1
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // the peak is that of now
		t.Fatal(err)
	}
	before := peak()
	if err := a.Put(id); err != nil {
		t.Fatal(err)
	}
	if grown := peak() - before; grown > 128<<10 {
		t.Errorf("a release made %d KiB present", grown)
	}
	if s := a.Stats(); s.FreeBytes != 0 || s.LiveBytes != 0 {
		t.Errorf("%+v", s)
	}
}

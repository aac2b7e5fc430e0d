//go:build race || invariants

package rows

import "unsafe"

// invariants tells that give-backs are poisoned, which costs time.
const invariants = true

// poison fills memory that was given back, so that a late reader sees nonsense
// instead of rows that happen to be right, and a late writer is caught by the
// next user. On in builds with -race or -tags invariants.
func poison(p unsafe.Pointer, n int64) {
	b := unsafe.Slice((*byte)(p), n)
	b[0] = 0xDD
	for i := int64(1); i < n; i *= 2 {
		copy(b[i:], b[:i])
	}
}

//go:build !race && !invariants

package rows

import "unsafe"

// invariants tells that give-backs are poisoned, which costs time.
const invariants = false

// poison does nothing here; see invariants_on.go.
func poison(unsafe.Pointer, int64) {}

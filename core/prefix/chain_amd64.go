//go:build !noasm && !purego

package prefix

const haveKernels = true

// comparePages is scattered in assembly, for cells whose size is a multiple of
// 16 bytes and for one piece of at most compareWords.
//
//go:noescape
func comparePages(words, slab, next *int32, cell int32, n, bytes, ahead int64, out *int32) int64

// fillPages copies words to the n > 0 cells of a chain, past the cache, writes the
// cells to out, and returns the one behind them. Cells are whole cache lines. The stores
// are ordered before later ones by the next locked instruction: no other thread calls
// the manager before one.
//
//go:noescape
func fillPages(words, slab, next *int32, cell int32, n, bytes int64, out *int32) int32

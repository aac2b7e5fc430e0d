//go:build !noasm && !purego

package prefix

const haveKernels = true

// comparePages is equalScattered in assembly, for cells whose size is a multiple of
// 16 bytes and for one piece of at most compareWords.
//
//go:noescape
func comparePages(words, slab, cells *int32, n, bytes, ahead int64) int64

// fillPages copies words to n > 0 cells, past the cache. Cells are whole cache lines. The
// stores are ordered before later ones by the next locked instruction: no other thread
// calls the manager before one.
//
//go:noescape
func fillPages(words, slab, cells *int32, n, bytes int64)

//go:build !purego

package prefix

const haveComparePages = true

// comparePages is scattered in assembly, for cells whose size is a multiple of
// 16 bytes and for one piece of at most compareWords.
//
//go:noescape
func comparePages(words, slab, next *int32, cell int32, n, bytes, ahead int64, out *int32) int64

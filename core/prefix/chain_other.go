//go:build !amd64 || purego

package prefix

const haveComparePages = false

func comparePages(words, slab, next *int32, cell int32, n, bytes, ahead int64, out *int32) int64 {
	panic("unreachable")
}

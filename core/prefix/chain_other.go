//go:build !amd64 || noasm || purego

package prefix

const haveKernels = false

func comparePages(words, slab, next *int32, cell int32, n, bytes, ahead int64, out *int32) int64 {
	panic("unreachable")
}

func fillPages(words, slab, next *int32, cell int32, n, bytes int64, out *int32) int32 {
	panic("unreachable")
}

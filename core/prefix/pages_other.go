//go:build !amd64 || noasm || purego

package prefix

const haveKernels = false

func comparePages(words, slab, cells *int32, n, bytes, ahead int64) int64 { panic("unreachable") }

func fillPages(words, slab, cells *int32, n, bytes int64) { panic("unreachable") }

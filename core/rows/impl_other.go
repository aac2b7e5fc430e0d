//go:build !amd64 || noasm || purego

package rows

// machineKernels are the kernels besides the generic one: none.
func machineKernels() []*kernel { return nil }

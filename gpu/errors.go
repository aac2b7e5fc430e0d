package gpu

import (
	"reflect"

	"gorgonia.org/cu"

	"libprefixcache/core/status"
)

// ErrEnded says that the driver has shut down: the process is about to end, and what was
// on a device has gone already.
var ErrEnded = status.New(status.Device, "the CUDA driver has shut down, as it does when a process ends")

// cuda turns the outcome of a driver call into the one error type: code Device,
// the call, the CUDA error name, and what was asked for.
func cudaError(call string, code int, format string, args ...any) error {
	if code == 0 {
		return nil
	}
	text := call + ": " + errorName(code)
	if why := errorReason(code); why != "" {
		text += " (" + why + ")"
	}
	if format != "" {
		return status.New(status.Device, text+": "+format, args...)
	}
	return status.New(status.Device, "%s", text)
}

// codeOf is the CUresult inside an error of gorgonia.org/cu, whose type is not
// exported. 999 (CUDA_ERROR_UNKNOWN) stands for an error that is none of its.
func codeOf(err error) int {
	if err == nil {
		return 0
	}
	for e := err; e != nil; {
		if v := reflect.ValueOf(e); v.Kind() == reflect.Int {
			return int(v.Int())
		}
		c, ok := e.(interface{ Cause() error })
		if !ok {
			break
		}
		e = c.Cause()
	}
	return int(cu.Unknown)
}

// wrap is cudaError for an error of gorgonia.org/cu.
func wrap(call string, err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return cudaError(call, codeOf(err), format, args...)
}

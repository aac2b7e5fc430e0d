package gpu

import (
	"reflect"
	"strings"

	"gorgonia.org/cu"

	"libprefixcache/core/status"
)

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

// ErrorName returns the CUDA error name inside the text of an error of this
// package ("CUDA_ERROR_ILLEGAL_ADDRESS"), or "" when there is none.
func ErrorName(err error) string {
	e, ok := err.(*status.Error)
	if !ok || e.Code != status.Device {
		return ""
	}
	i := strings.Index(e.Text, "CUDA_ERROR_")
	if i < 0 {
		return ""
	}
	end := i
	for end < len(e.Text) && (e.Text[end] == '_' || e.Text[end] >= '0' && e.Text[end] <= '9' || e.Text[end] >= 'A' && e.Text[end] <= 'Z') {
		end++
	}
	return e.Text[i:end]
}

// Lost reports whether err says that the context is gone for good: every later
// call on it fails too, so the owner has to stop rather than retry.
func Lost(err error) bool {
	switch ErrorName(err) {
	case "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT",
		"CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_MISALIGNED_ADDRESS",
		"CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_ASSERT",
		"CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_NVLINK_UNCORRECTABLE", "CUDA_ERROR_CONTEXT_IS_DESTROYED",
		"CUDA_ERROR_DEINITIALIZED", "CUDA_ERROR_UNKNOWN":
		return true
	}
	return false
}

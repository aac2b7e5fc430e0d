// Package status holds the one error type of the library and the numbers that
// cross the C ABI. The numbers are part of the ABI: they never change and are
// never reused. include/prefixcache.h documents what each one means to a caller.
package status

import "fmt"

// Code is a pc_status value of the C ABI.
//
// Zero is success, small positives are outcomes a model server has to handle
// in normal operation, negatives are broken contracts or faults.
type Code int32

const (
	OK Code = 0

	// Outcomes.
	RequestFailed Code = 1 // context: no capacity now, or a request is already active
	Poisoned      Code = 2 // context: device state is unknown for good
	KeyMismatch   Code = 3 // omni: the key exists with another width or dtype
	NotFound      Code = 4 // a query found nothing

	// Broken contracts: the caller passed something it must not pass.
	InvalidArgument Code = -1 // an argument is null, out of range, overlapping or malformed
	BadHandle       Code = -2 // a handle is stale, foreign or was never issued
	WrongState      Code = -3 // the call is not legal in the object's present state
	BufferTooSmall  Code = -4 // a caller-allocated output is too short; nothing changed
	Unsupported     Code = -5 // a struct version, flag or feature this build does not know

	// Omni contract errors (OmniPrefixCacheUnmatchError and its subclass).
	Unmatch        Code = -16 // scheduler and cache have diverged, or a write failed
	StagingTimeout Code = -17 // no staging slot came free in time

	// Faults.
	Internal    Code = -32 // a panic was recovered; the object is poisoned
	OutOfMemory Code = -33 // address space or memory could not be had
	Device      Code = -34 // a CUDA driver call failed; the text carries its name
	Forked      Code = -35 // called in a child of fork; use spawn
	Busy        Code = -36 // the object is in use by another call or still owns work
	Closed      Code = -37 // the object was shut down
)

// Error is the only error type that core and gpu return.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string { return e.Text }

// New makes an error from a code and a formatted text. The text names the
// argument, the value it had, and what was expected.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of err: OK for nil, Internal for an error that is not
// an *Error (which would be a defect of ours).
func CodeOf(err error) Code {
	switch e := err.(type) {
	case nil:
		return OK
	case *Error:
		return e.Code
	default:
		return Internal
	}
}

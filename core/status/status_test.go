package status

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// codes are all that this package declares. A Go constant cannot be listed at run time:
// what keeps this table whole is the comparison with the header, below.
var codes = map[string]Code{
	"PC_OK":                     OK,
	"PC_REQUEST_FAILED":         RequestFailed,
	"PC_POISONED":               Poisoned,
	"PC_KEY_MISMATCH":           KeyMismatch,
	"PC_NOT_FOUND":              NotFound,
	"PC_ERROR_INVALID_ARGUMENT": InvalidArgument,
	"PC_ERROR_BAD_HANDLE":       BadHandle,
	"PC_ERROR_WRONG_STATE":      WrongState,
	"PC_ERROR_BUFFER_TOO_SMALL": BufferTooSmall,
	"PC_ERROR_UNSUPPORTED":      Unsupported,
	"PC_ERROR_UNMATCH":          Unmatch,
	"PC_ERROR_STAGING_TIMEOUT":  StagingTimeout,
	"PC_ERROR_INTERNAL":         Internal,
	"PC_ERROR_OUT_OF_MEMORY":    OutOfMemory,
	"PC_ERROR_DEVICE":           Device,
	"PC_ERROR_FORKED":           Forked,
	"PC_ERROR_BUSY":             Busy,
	"PC_ERROR_CLOSED":           Closed,
}

func TestTheNumbersAreThoseOfTheHeader(t *testing.T) {
	text, err := os.ReadFile("../../include/prefixcache.h")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "typedef int32_t pc_status;")
	enum, _, found := strings.Cut(rest, "};")
	if !found {
		t.Fatal("the header has no enum of statuses after pc_status")
	}
	header := map[string]Code{}
	for _, m := range regexp.MustCompile(`(PC_\w+) = (-?\d+)`).FindAllStringSubmatch(enum, -1) {
		n, err := strconv.ParseInt(m[2], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		header[m[1]] = Code(n)
	}
	if diff := cmp.Diff(header, codes); diff != "" {
		t.Errorf("the codes are not those of the header (-header +here):\n%s", diff)
	}
}

// Callers tell success, outcome and fault apart by the sign alone.
func TestTheSignSaysWhatKindOfCodeItIs(t *testing.T) {
	seen := map[Code]string{}
	for name, code := range codes {
		if other := seen[code]; other != "" {
			t.Errorf("%s and %s are both %d", name, other, code)
		}
		seen[code] = name
		if fault := strings.HasPrefix(name, "PC_ERROR_"); fault != (code < 0) {
			t.Errorf("%s is %d", name, code)
		}
	}
	if OK != 0 {
		t.Errorf("OK is %d, expected 0", OK)
	}
}

func TestNewFormatsItsText(t *testing.T) {
	e := New(InvalidArgument, "options.%s: %d, expected at least %d", "num_blocks", -3, 1)
	want := &Error{Code: InvalidArgument, Text: "options.num_blocks: -3, expected at least 1"}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if e.Error() != want.Text {
		t.Errorf("Error() is %q, expected %q", e.Error(), want.Text)
	}
}

func TestCodeOf(t *testing.T) {
	var typedNil *Error
	for _, c := range []struct {
		name string
		err  error
		want Code
	}{
		{"nil", nil, OK},
		{"ours", New(Busy, "the handle is in use"), Busy},
		{"an outcome", New(RequestFailed, "no capacity"), RequestFailed},
		{"of another package", errors.New("open /dev/nvidia0"), Internal},
		// The text of a wrapped error is not one that New made: a defect of ours, too.
		{"ours, wrapped", fmt.Errorf("save: %w", New(Busy, "the handle is in use")), Internal},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("%s: code %d, expected %d", c.name, got, c.want)
		}
	}
	// A typed nil in an error is a mistake in Go; it must not read as success.
	func() {
		defer func() {
			if recover() == nil {
				t.Error("CodeOf of a nil *Error in an error gave a code, expected a panic")
			}
		}()
		CodeOf(typedNil)
	}()
}

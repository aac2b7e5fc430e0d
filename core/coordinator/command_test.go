package coordinator

import (
	"strings"
	"testing"
)

// What a failing test prints of a list has to tell commands apart.
func TestCommand_String(t *testing.T) {
	for want, c := range map[string]Command{
		"wait-upload draft":                     {Kind: CmdWaitUpload, Cache: Draft},
		"upload-rows base [2,5)":                {Kind: CmdUploadRows, Slot: 2, Count: 3},
		"record-upload base":                    {Kind: CmdRecordUpload},
		"zero-recurrent slot 3":                 {Kind: CmdZeroRecurrent, Slot: 3},
		"restore-recurrent slot 3 snapshot 4":   {Kind: CmdRestoreRecurrent, Slot: 3, Snapshot: 4},
		"capture-recurrent slot 3 snapshot 4":   {Kind: CmdCaptureRecurrent, Slot: 3, Snapshot: 4},
		"restore-page page 7 tokens 2 snapshot": {Kind: CmdRestorePage, Page: 7, Tokens: 2},
		"capture-page page 7 tokens 2 snapshot": {Kind: CmdCapturePage, Page: 7, Tokens: 2},
		"set-reuse-lengths draft n=2":           {Kind: CmdSetReuseLengths, Cache: Draft, Count: 2},
		"upload-mapping n=4":                    {Kind: CmdUploadMapping, Count: 4},
		"compact-state base 4->2":               {Kind: CmdCompactState, Count: 4, New: 2},
		"set-active-batch draft 2":              {Kind: CmdSetActiveBatch, Cache: Draft, New: 2},
		"synchronize":                           {Kind: CmdSynchronize},
		"command(99)":                           {Kind: 99},
	} {
		if got := c.String(); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := Kind(7).String(); got != "kind(7)" {
		t.Errorf("a kind that does not exist is %q", got)
	}
}

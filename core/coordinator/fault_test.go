package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"libprefixcache/core/status"
)

// A lease that vanished behind the coordinator's back is a fault of ours, not
// of the caller's arguments: the step says so, hands nothing out, and the
// request can still be ended.
func TestFault_ALostLeaseEndsTheRequestAndNothingElse(t *testing.T) {
	everyStop(t, func(t *testing.T, kind Kind, n int) {
		r, q := stopped(t, kind, n)
		r.dev.sync()
		for i := range q.seqs {
			r.must(r.c.Manager().Release(r.info(q.h, i).Lease))
		}
		adv := make([]Advance, len(q.seqs))
		var common, done []int32
		stage := r.stage(q.h).Stage
		for i := range adv {
			s := r.info(q.h, i)
			adv[i] = Advance{Tokens: []int32{5}, Committed: s.Committed + 1}
			if stage < StageAwaitingDraft {
				adv[i].Committed = s.Tokens
			}
			if kind == KindEAGLE {
				common = append(common, min(adv[i].Committed, max(s.Common, adv[i].Committed-count32(stage == StageDecode))))
			}
			done = append(done, int32(i))
		}
		if kind == KindPureRecurrent && (stage == StageAdmitted || stage == StageSettled) {
			// These steps ask the manager for nothing: the end notices.
			r.wantCode(r.c.Abandon(q.h, true), status.Internal)
			r.emptied()
			return
		}
		k, err := 0, error(nil)
		switch stage {
		case StageAdmitted:
			k, err = r.c.PreparePrefill(q.h, r.dst)
		case StagePrefill, StageCaptured:
			err = r.c.FinalizePrefill(q.h, adv, common)
		case StageSettled, StageAwaitingDraft:
			k, err = r.c.PrepareDecodeStep(q.h, Headroom{Base: 16}, r.dst)
		case StageDecode:
			k, err = r.c.CompleteDecodeStep(q.h, adv, done, common, r.dst)
		case StageCompaction:
			k, err = r.c.CompactBatch(q.h, r.dst)
			err = r.run(q.h, k, err)
			k = 0
		}
		if status.CodeOf(err) != status.Internal || k != 0 {
			t.Fatalf("stage %v: %d commands and %v, want none and an internal error", stage, k, err)
		}
		if got := r.stage(q.h); r.c.op != opNone || got.Stage != StageFinishing {
			t.Fatalf("list %v is out, stage %v, want none and finishing", r.c.op, got.Stage)
		}
		m, err := r.c.Finish(q.h, r.dst)
		if err := r.run(q.h, m, err); status.CodeOf(err) != status.Internal {
			t.Errorf("finish: %v", err)
		}
		if r.c.Active() != 0 {
			t.Error("the request entry is still taken")
		}
		r.publish(prompts(seq(5, 6))) // the coordinator goes on
		r.emptied()
	})
}

func count32(b bool) int32 { return int32(count(b)) }

// These numbers cross the C ABI and never change.
func TestNumbers_OfTheABI(t *testing.T) {
	got := fmt.Sprint(Base, Draft, " ", KindVanilla, KindHybrid, KindPureRecurrent, KindEAGLE, " ", int32(KindEAGLE), ModeVanilla, ModeEAGLE, UseCache, Bypass,
		IncludingGenerated, PrefillOnly, PhaseAdmitted, PhaseExecuting, PhaseFinishing, Done, EnqueueFailed, SyncFailed, int32(StageFinishing), int32(CmdSynchronize))
	want := fmt.Sprint(0, 1, " ", KindVanilla, KindHybrid, KindPureRecurrent, KindEAGLE, " ", 3, 0, 1, 0, 1, 0, 1, 0, 1, 2, 0, 1, 2, 7, 13)
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(commandNames) != int(CmdSynchronize)+1 || len(stageNames) != int(StageFinishing)+1 {
		t.Error("a command or a stage has no name")
	}
	runtime := []CommandKind{CmdSetReuseLengths, CmdCompactState, CmdSetActiveBatch}
	for k := CmdNone; k <= CmdSynchronize; k++ {
		if k.Runtime() != slices.Contains(runtime, k) {
			t.Errorf("%v: runtime %v", k, k.Runtime())
		}
	}
}

func TestStrings_NameEveryCommandAndCounter(t *testing.T) {
	r := newRig(t, KindHybrid)
	r.publish(prompts(seq(1, 6)))
	q, err := r.begin(prompts(seq(1, 7)))
	r.must(err)
	r.must(r.prepare(q))
	var lines []string
	for _, c := range r.ran {
		lines = append(lines, c.String())
	}
	want := "wait-upload base|upload-rows base [0,1)|record-upload base|restore-recurrent slot 0 snapshot 0|" +
		"restore-page page 2 tokens 2 snapshot 0|set-reuse-lengths base n=1"
	if got := strings.Join(lines, "|"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	text := r.c.Metrics().String()
	for _, line := range []string{"admitted 2\n", "hits 1\n", "tokens.reused 6\n", "hybrid.restores 1\n", "records 1\n", "pool.recurrent free 7 of 8, reclaimed 0\n"} {
		if !strings.Contains(text, line) {
			t.Errorf("metrics lack %q:\n%s", line, text)
		}
	}
	r.must(r.drop(q, true))
	if got := CommandKind(99).String(); got != "command(99)" {
		t.Error(got)
	}
}

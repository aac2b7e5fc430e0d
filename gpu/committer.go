package gpu

import (
	"runtime"
	"runtime/debug"
	"time"

	"libprefixcache/core/rows"
	"libprefixcache/core/status"
)

// Source hands out jobs. core/omni's Cache is one.
type Source[J any] interface {
	// AwaitJob blocks until there is a job; false means shut down, and no job
	// comes after it.
	AwaitJob() (J, bool)
	// JobDone reports the outcome of a job. It is called exactly once per job.
	JobDone(j *J, err error)
}

// Committer is the one thread of a cache that waits for events and carries out
// writes: locked to its OS thread, bound to the device, started once and never
// per event. It ends when its source says so.
//
//	[running] --AwaitJob--> job --run--> JobDone --+
//	    ^------------------------------------------+
//	    | AwaitJob false
//	    v
//	[ended]
type Committer struct {
	ended chan struct{}
}

// StartCommitter starts the thread and returns when it is bound to dev, or with
// the error of that. run carries one job out; a panic in it becomes the error of
// the job, since a dead committer would strand every waiter.
func StartCommitter[J any](dev Device, src Source[J], run func(*J) error) (*Committer, error) {
	c := &Committer{ended: make(chan struct{})}
	bound := make(chan error)
	rows.OwnThreads(1)
	go func() {
		defer close(c.ended)
		defer rows.OwnThreads(-1)
		// Never unlocked: the thread ends with the goroutine, and with it the
		// context and the capture mode that Bind gave it.
		runtime.LockOSThread()
		err := dev.Bind()
		bound <- err
		if err != nil {
			return
		}
		var j J // escapes, so one for all jobs
		for {
			var ok bool
			if j, ok = src.AwaitJob(); !ok {
				return
			}
			src.JobDone(&j, guard(&j, run))
		}
	}()
	if err := <-bound; err != nil {
		return nil, err
	}
	return c, nil
}

func guard[J any](j *J, run func(*J) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = status.New(status.Internal, "committer: %v\n%s", p, debug.Stack())
		}
	}()
	return run(j)
}

// Stop waits for the thread to end. The source has to be shut down first: then
// only the job that runs is waited for. false means that it did not end within
// timeout; whatever the job touches must then stay alive.
func (c *Committer) Stop(timeout time.Duration) bool {
	select {
	case <-c.ended:
		return true
	default:
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-c.ended:
		return true
	case <-t.C:
		return false
	}
}

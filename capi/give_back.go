package main

import (
	"libprefixcache/core/status"
	"libprefixcache/gpu"
)

// giving is what becomes of giving an object's parts back: each is tried, whatever
// became of the others, and the first error is the one to tell.
type giving struct{ err error }

func (g *giving) back(release func() error) bool { return g.came(twice(release)) }

// came takes what became of parts that were tried twice already.
func (g *giving) came(err error) bool {
	if g.err == nil {
		g.err = err
	}
	return err == nil
}

// twice tries to give something back a second time: a driver call may report the
// failure of work enqueued long before, and have done nothing.
func twice(release func() error) error {
	if err := release(); err == nil {
		return nil
	}
	return release()
}

// giveBack gives back what an object has on dev. The caller's thread may have another
// context current, or be a finalizer's. What cannot be given back is an error, and in
// the log: those who destroy in a destructor do not look.
func giveBack(what string, dev gpu.Device, parts func(*giving)) error {
	g := &giving{}
	var leave func()
	if g.back(func() (err error) { leave, err = dev.Enter(); return err }) {
		defer leave()
	}
	parts(g) // host memory, too, which is there even if the device is not
	if g.err == gpu.ErrEnded {
		return nil
	}
	if g.err != nil {
		tellLost(what, g.err)
		return status.New(status.Device, "%v", g.err) // a refusal, too: it cannot be tried again
	}
	return nil
}

// drainElsewhere waits for what was enqueued on s, on whichever thread. Where each has a
// stream of its own no other can name it, but what is on the default stream follows all
// of them. The event is one that nobody else needs now.
func drainElsewhere(dev gpu.Device, s gpu.Stream, e gpu.Event) error {
	if s != gpu.PerThreadStream {
		return dev.Drain(s)
	}
	if err := dev.Record(e, gpu.LegacyStream); err != nil {
		return err
	}
	return dev.Await(e)
}

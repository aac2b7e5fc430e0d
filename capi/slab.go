package main

import "libprefixcache/gpu"

// slab is device memory for the life of an object. It has a stream of its own, so that
// giving it back depends on none of the host's, which may be captured, or gone, by then.
type slab struct {
	at     gpu.Addr // 0: none
	stream gpu.Stream
}

// open allocates. Work of any stream may use the memory from then on.
func (s *slab) open(dev gpu.Device, bytes int64) (err error) {
	if s.stream, err = dev.NewStream(gpu.NonBlocking); err != nil {
		return err
	}
	if s.at, err = dev.Alloc(s.stream, bytes); err != nil {
		return err
	}
	return dev.Drain(s.stream)
}

// close gives back what open got so far. No work of any stream uses it any more.
func (s *slab) close(g *giving, dev gpu.Device) {
	if s.at != 0 {
		g.back(func() error { return dev.Free(s.stream, s.at) })
	}
	if s.stream != 0 {
		g.back(func() error { return dev.FreeStream(s.stream) })
	}
}

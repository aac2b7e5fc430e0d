package rows

import "unsafe"

// Rows of a mirror lie anywhere, so the hardware prefetcher, which stops at the
// end of a 4 KiB page, starts anew at every row. The gather therefore asks for
// the head of each piece as it is queued, and copies the piece once aheadBytes
// more are queued behind it. Asking for more than the head is slower: the
// hardware follows on its own from there.
//
// Measured on Zen 3 with busy neighbours, random rows in 1 GiB, best of 40, GB/s,
// memmove per run / this:
//
//	4 KiB rows alone 5.8 / 7.2, in runs of 16 8.8 / 12.1; 16 KiB 7.8 / 11.6;
//	256 B 1.9 / 2.5; 100 kB 8.6 / 13.3; 64 B 0.94 / 0.91 (the shortest go straight)
//	4 KiB alone with the whole next row prefetched: 6.2
const (
	gatherPiece    = 64 << 10
	headBytes      = 8 * lineBytes
	aheadBytes     = 4 << 10
	aheadMoves     = 8   // queue length
	gatherMinBytes = 256 // shorter moves use a lookahead instead
)

// gatherStreamBytes is the batch from which the destination is streamed, too: it
// no longer fits the cache of a core, so to read its lines before writing them is
// waste. With a reader afterwards, GB/s, plain / streamed: 16 MiB 8.0 / 11.0,
// 8 MiB 9.6 / 11.1, 4 MiB 9.3 / 10.4; 1 MiB 6.7 / 6.0.
const gatherStreamBytes = 4 << 20

type piece struct {
	dst, src unsafe.Pointer
	n        int64
}

// source carries what is the same for every move of one gather, and the queue of
// pieces that were asked for and not yet copied.
type source struct {
	m      *Mirror
	k      *kernel
	dst    unsafe.Pointer // of row 0
	row    int64          // bytes of a row
	stream bool
	queue  [aheadMoves]piece
	head   uint // next to copy
	tail   uint // next free; tail-head are queued
	queued int64
}

func (m *Mirror) source(dst unsafe.Pointer, rows int64) source {
	return source{m: m, k: active.Load(), dst: dst, row: m.rowBytes, stream: rows*m.rowBytes >= gatherStreamBytes}
}

// short moves n bytes that are too few to be queued. It is inlined, like that of
// a sink.
func (s *source) short(i, slot, n int64) {
	copyPlain(unsafe.Add(s.dst, i*s.row), s.m.Row(slot), n)
}

// get moves the n bytes from the start of slot on to destination row i.
func (s *source) get(i, slot, n int64) {
	dst, src := unsafe.Add(s.dst, i*s.row), s.m.Row(slot)
	if s.k.prefetch == nil {
		Copy(dst, src, n)
		return
	}
	for o := int64(0); o < n; o += gatherPiece {
		p := piece{unsafe.Add(dst, o), unsafe.Add(src, o), min(n-o, gatherPiece)}
		s.k.prefetch(p.src, min(p.n, headBytes))
		s.queue[s.tail%aheadMoves] = p
		s.tail++
		s.queued += p.n
		for s.queued > aheadBytes || s.tail-s.head == aheadMoves {
			s.copyOne()
		}
	}
}

func (s *source) copyOne() {
	p := &s.queue[s.head%aheadMoves]
	s.head++
	s.queued -= p.n
	if s.stream {
		s.k.stream(p.dst, p.src, p.n)
	} else {
		s.k.plain(p.dst, p.src, p.n)
	}
}

func (s *source) done() {
	for s.head != s.tail {
		s.copyOne()
	}
	if s.stream {
		s.k.fence()
	}
}

// GatherSpans reads the slots of each span to rows Row, Row+1, … of dst. Rows of
// dst that no span names are left alone.
func (m *Mirror) GatherSpans(dst unsafe.Pointer, spans []Span) {
	s := m.source(dst, SpanRows(spans))
	s.spans(spans)
}

func (s *source) spans(spans []Span) {
	l := s.m.aheadOfSpans(s.k, spans)
	for i, p := range spans {
		if n := p.Len * s.row; n < gatherMinBytes {
			if l.due(i) {
				l.ask(i)
			}
			s.short(p.Row, p.Slot, n)
		} else {
			s.get(p.Row, p.Slot, n)
		}
	}
	s.done()
}

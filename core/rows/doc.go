// Package rows is row memory: bytes outside the Go heap, and the kernels that
// move whole rows between them. It knows widths and slots, never keys, tenants
// or versions; those belong to core/omni. There is no cgo here, because
// assembly cannot live in a package that uses it.
//
// # What is here
//
//	Memory   reserved address space; pages appear, zeroed, on first touch
//	Mirror   the durable rows of one key: slots × rowBytes, without gaps
//	Run      consecutive slots; AppendRuns makes runs from a slot array
//	Span     consecutive rows that go to (or come from) consecutive slots
//	kernels  Copy, CopyRows, Zero; Mirror.ScatterTee, GatherSpans
//	Scan     finds bytes that are not zero, and makes none present
//	Moves    the same, of which large ones are shared with the threads of a Crew
//	Arena    recycled huge-page buffers (1 MiB and up) for results
//
//	 source rows ──Scatter──▶ Mirror ──Gather──▶ result (Arena)
//	      │                       ▲
//	      ├─────ScatterTee────────┤ and, from the same loads, ──▶ result
//	      └──CopyRows──▶ Memory ──┘ Scatter, later
//
// A buffer of an Arena is in one of three states:
//
//	(no memory) ──Get──▶ live ──Put──▶ free ──Get──▶ live …
//	                                    └──over the cap, Close─▶ (no memory)
//
// Ids carry a generation that changes when the buffer is given back, so a stale
// or double give-back is an error and never frees somebody else's buffer.
//
// # Invariants
//
//   - Kernels trust their callers: slots in [0, Slots()), pointers valid for
//     the whole move, source and destination disjoint. capi and core/omni check
//     before any change; a check per row here would cost as much as the move.
//   - Rows are moved in array order. A slot named twice keeps its last row.
//   - When a kernel returns, its stores are ordered before every later store of
//     the calling thread: non-temporal stores are fenced once, at the end of a
//     batch. Publishing a commit with an ordinary atomic afterwards is enough.
//   - Every kernel implementation writes exactly the bytes of the generic one.
//   - Nothing here allocates on the Go heap once an Arena has grown
//     to its working set. Nothing but a Crew has goroutines, and nothing but Moves
//     that were given one hand it work.
//   - A single call into assembly or memmove moves at most pieceBytes, because
//     a thread inside cannot be stopped for the garbage collector.
//   - Memory that only the library reads is kept out of children of fork; memory
//     of results, which the user owns, is not.
//
// In builds with -race or -tags invariants, memory that is given back is filled
// with 0xDD. Arena.Check compares every structure with every other.
//
// # How rows are moved
//
// Which way a move takes depends on its length alone, after neighbours were
// joined; the figures are beside the constants.
//
//	scatter, tee   from 256 B (128 B in whole lines): non-temporal stores to the mirror
//	gather         from 256 B: heads of the next moves prefetched, then copied;
//	               a batch from 4 MiB is stored past the cache
//	all, shorter   memmove, with the mirror lines of the next rows prefetched
//
// # Choosing a kernel
//
// cpuid is read once. PREFIXCACHE_KERNEL (generic, sse2, avx2) forces one; a
// name that is unknown or that this CPU cannot run leaves the best one active
// and is reported by KernelError. The build tags noasm and purego leave the
// generic kernel only, as does any architecture but amd64.
package rows

// Package coordinator is the request state machine of the context cache: what
// a runtime calls around prefill, decode, batch compaction and the end of a
// request, on top of the leases, plans and records of core/prefix. "The original" is
// the ContextCacheCoordinator of such a runtime, whose interface the C++ headers keep
// and whose faults (D-n) stay out.
//
// It decides and never acts. An operation checks every argument, reserves what
// it needs and writes the device work as an ordered list of commands into the
// caller's slice. The embedding layer executes the list on its stream and
// reports the outcome; only the report commits. An operation without device
// work commits at once.
//
//	            Begin
//	              |
//	          (admitted)
//	              | PreparePrefill            [rows, zero/restore, lengths]
//	          (prefill)*
//	              | EnqueuePrefillCaptures    [capture]           may be left out
//	          (captured)*
//	              | FinalizePrefill
//	   vanilla,   |          \ EAGLE: endpoints frozen
//	   hybrid     |        (awaiting draft)* --PrepareDecodeStep--+
//	              |           | BeginCompaction [synchronize]     |
//	          (settled) <-----+                                   |
//	           |  ^  | PrepareDecodeStep      [grown rows]        |
//	           |  |  v                                            |
//	           |  | (decode)* <-----------------------------------+
//	           |  +--+ CompleteDecodeStep     [capture, synchronize]
//	           |  ^
//	           |  | CompactBatch              [rows, compact, synchronize, active batch]
//	           v  |
//	          (compaction)*
//	           BeginCompaction                [synchronize, mapping]
//
//	(finishing)  a failed growth, a failed list, or a batch compacted to 0
//	(gone)       Finish or Abandon; (quarantined) after a failed drain
//
// A star marks stages with device work pending: leaving them by Abandon needs
// a drained stream. Finish is legal in every stage and synchronises first
// where work is pending. Every other call in another stage is a contract error
// without effect (D-16).
//
// Invariants:
//
//   - A lease is released only when nothing is pending or the stream was
//     drained; otherwise the request is quarantined with everything it owns and
//     the coordinator is poisoned for its life (C-102, C-105, C-106, D-7).
//   - Pending is set when a list is handed out, before its first command can
//     run (D-8).
//   - Nothing is published from a stage with work pending on that state: base
//     state after FinalizePrefill (which follows the runtime's own
//     synchronisation), draft state after the following round, snapshots after
//     the list's own synchronize.
//   - A history is committed + exactly one lookahead token after every
//     advance; the lookahead is never part of a published block (C-96, C-98).
//   - At most one list is out at a time; everything but its Report and the
//     Abandon of its request answers Busy meanwhile.
//
// There are no goroutines, clocks or locks in here: the embedding layer
// serialises calls and injects the clock.
package coordinator

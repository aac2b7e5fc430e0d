// Package omni is the stage-output cache: it keeps every output row that a model
// stage computed, addressed by the scheduler's KV slots, and puts cached prefix
// rows in front of new ones when the scheduler found a prefix hit. There is no
// lookup and no eviction here: the scheduler decides what is a hit, and the next
// claim of a slot is the eviction. It moves bytes; types are the caller's.
//
// # One step
//
//	StepBegin    finishes, then arrivals with their hits       engine thread
//	(forward)
//	Save         claims, plans, rows; gives the step id        engine thread
//	Materialize  or Discard, once per id, any order            any thread
//
// # A (slot, key)
//
// One packed word each (word.go): kind, version, owner.
//
//	                claim by a step that carries the key
//	       ┌──────────────────────────────────────────────┐
//	       ▼                                              │
//	step(n) IN_TRANSIT ──step n written──▶ step COMMITTED ┤
//	                                            ▲         │
//	deferred(w) IN_TRANSIT ──w written──────────┘         │
//	       ▲                                              │
//	       ├──────────────────────────────────────────────┤
//	       │       claim by a deferred chunk              │
//	never ─┴──▶ claim by a step without the key ──▶ skipped ("absent for this tenant")
//
// Every claim may come from any state and adds one to the version. Committing a
// step is one store (Cache.written); committing a deferred write is one loop over
// its rows. never and skipped read as zeros, and as an error for hidden rows.
//
// # Rows
//
//	source ──Save──▶ mirror                      immediate key, written inline
//	source ──Save──▶ staging page ──job──▶ mirror    immediate key, large step, threaded
//	source ──Save──▶ row store ──job──▶ mirror       deferred key, when its request ends
//	device ──Save──▶ frozen ──copy stream──▶ staging page ──job──▶ mirror or row store
//	mirror row about to be claimed ──▶ row store     copied aside for a planned read
//	mirror, row store, zeros ──Materialize──▶ result
//
// # Invariants
//
//   - One critical section publishes a step: claims of every visible key, then the
//     plans of its hits. So a plan sees this step's tenants and nothing later.
//   - Before claims of a step, every earlier step is written. So a committed row is
//     in the mirror when a claim copies it aside.
//   - A deferred word's row is key.rowOf[slot], belongs to the write that the word
//     names and carries that slot; any other row of a write is lost.
//   - A bit in a reader's mask is a mirror row that was not claimed since planned.
//   - Per key there is one writer, and writes of one slot happen in claim order.
//   - staged = bytes of deferred writes that have not ended + bytes of the step
//     that waits for the committer.
//   - The lock covers tables, never a wait or a row move; preserve is the one
//     exception, a row at a time.
//   - A call that panics marks the lock, and nobody goes on with the tables (lock.go).
//   - Nothing grows with the number of requests served.
//
// Check verifies what can be verified by looking.
//
// # Modes
//
// Eager: the thread that causes a write carries it out. Threaded: writes are jobs
// (plain lists of copies) that a committer outside this package takes, runs and
// reports; core starts no threads and has no clock, see Waiter. Results are the
// same (O-34).
//
// Rows on a device: Save decides on an ordered list of commands, plain values that an
// Executor outside this package carries out, and publishes the step only when all of
// it is on its way (device.go). Its job, and whoever reads its page, first waits until
// the page has landed. The job is done by who needs it first, and the committer is asked
// for it when the next step begins (handOver, O-48).
package omni

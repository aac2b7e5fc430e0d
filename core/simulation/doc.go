// Package simulation runs the state machines of core under a seeded simulator: the
// host's threads, its scheduler, the device, the clock and everything that can go
// wrong are played by one scheduler whose choices all come from a seed. It has tests
// only. docs/simulation.md has what it is for, how to run a seed again, and the guards
// that it was shown to need.
//
//	                seed ──▶ plan: operation 0, 1, 2, … each with choices of its own
//	                                    │
//	                                    ▼ step
//	engine ─┐                     ┌───────────┐                ┌─ stream of a producer
//	builder ┤  who goes on,       │ scheduler │  what is done  ├─ copy stream
//	builder ┼────────────────────▶│           │◀───────────────┘
//	committer  where the lock     └───────────┘  and the clock, faults, shutdown
//	closer ─┘  is free               │     │
//	                                 ▼     ▼
//	                             core/…   model ──▶ every row, page and answer compared
//
// # Threads
//
// core starts no thread and has no clock: it calls a Waiter to sleep, an Executor for
// device work, and Preempt wherever its lock is free. So a thread of a host can be a
// coroutine (omni_thread_test.go) that gives control back at these places, and any
// interleaving of locked parts, and of single copies between them, is an order in
// which the scheduler resumes coroutines. A thread that sleeps too long, or that
// nobody is left to wake, is a failure.
//
// The context cache has no threads below its interface: its callers are serialised.
// What interleaves there is requests, lists of device work that are out, and the
// device, which does work when a synchronisation needs it or the scheduler says so.
//
// # What is compared
//
// A row, and the state in a page, is a function of its identity: which key and which
// write, or which prefix. So whoever gets one that is not its own fails, whatever path
// it took (omni_model_test.go, context_model_test.go). The models are dictionaries, and know
// nothing of threads, staging, budgets, trees or eviction. The structural checkers of
// the packages run at the end of every plan, and after every operation when a plan
// that failed is played again.
//
// # Failures
//
// A plan that fails is shrunk: operations are left out while it still fails, which is
// possible because an operation's choices depend on its number alone. The report has
// what is left of it, step by step, and the command that runs exactly that.
package simulation

// Package omnitest plays random traffic through an omni cache and compares every
// result with an independent model. It is imported by tests only: those of core/omni
// keep all rows on the host, those of capi bring a simulated GPU.
//
// A trace is one thread. Wherever the cache gives its lock up, and wherever a call
// would park, the tracer may run a call of another thread from there, so that any
// interleaving of locked parts can come up, and the same seed gives the same one.
package omnitest

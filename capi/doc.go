// Package main is the C ABI of libprefixcache: it turns the functions of
// include/prefixcache.h into calls of core and gpu. It decides nothing.
//
// A call walks like this:
//
//	host --> pc_x (shim.c)      fork guard, error text cleared
//	     --> pcgo_x (Go export)  handle looked up and held, pointers and lengths checked
//	     --> core                decisions, errors as *status.Error
//	     --> fail (errors.go)    the one place where an error becomes a number and a text
//
// Files: shim.c and context_shim.c hold the public symbols; handles.go the
// handle table; args.go the checks of pointers and lengths; errors.go error
// text and panic recovery; log.go and log_events.go the lines of the log;
// memory_plan.go and memory_limit.go what caches may come to hold, and may have;
// metrics.go, metrics_table.go and metrics_text.go the Prometheus page; buffers.go
// the result arena; omni*.go, manager*.go, table.go and context*.go one export per
// function of the header: the object itself, its steps or leases, its queries.
//
// Rules that every export keeps:
//   - it defers guard, so that no panic unwinds into C;
//   - it copies or finishes with every pointer before it returns;
//   - it checks everything before it changes anything;
//   - no Go pointer leaves Go.
package main

func main() {}

// Package gpu carries out what core decided: copies, fills, events and waits on
// raw streams. It decides nothing. One interface, Device, has two
// implementations: CUDA (the driver API) and Host (plain memory, where every
// stream is ordered at once).
//
// # Life of a CUDA device
//
//	          OpenCUDA: driver loaded, initialised once per process,
//	          the caller's current context adopted
//	[closed] ----------------------------------------------> [open]
//	    ^                                                      |
//	    |  Close: the memory pool goes; what the caller        |
//	    +----- allocated and did not free is counted <---------+
//
// Loading the library touches no driver: a process without a GPU loads it, and a
// driver initialised before fork would be dead in the child.
//
// # Rules that hold for both implementations
//
//   - Stream 0 is the legacy default stream, 2 the per-thread one, as in CUDA.
//   - A call that enqueues checks first and enqueues last: on an error nothing
//     was enqueued. Refused are a stream of another context, a stream that is
//     being captured into a graph, a null event, and a host pointer where a
//     device address is expected.
//   - Handles and addresses are passed as raw numbers, because they were made
//     elsewhere (torch, TensorRT). Size guards in handle.go keep the casts honest.
//   - No call starts a goroutine, takes a lock that a blocked call holds, or
//     (except on errors, allocation and creation) allocates Go memory.
//   - Errors are *status.Error. A failed driver call has code Device and the CUDA
//     error name in its text; a refused argument has InvalidArgument; a capturing
//     stream has WrongState.
//
// # Threads
//
// Every call is made on the caller's OS thread and uses its current context;
// where the thread has none yet, the device's own is made current. A thread of
// ours calls Bind first, which also keeps its driver calls from spoiling a graph
// capture that some other thread has under way. Committer is that thread: one
// per cache, locked, asleep in the kernel while there is nothing to do.
package gpu

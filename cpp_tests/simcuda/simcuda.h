/* simcuda.h - control functions of the simulated CUDA driver.
 *
 * libsimcuda.so stands in for libcuda.so.1 where there is no GPU. Use it to test
 * what a program does between driver calls: PREFIXCACHE_CUDA_DRIVER=libsimcuda.so
 * makes libprefixcache call it. It is a test double and no claim about a GPU.
 *
 * Model
 *   - Work is queued and runs only when somebody waits, asks, or calls
 *     simcuda_step; which of the runnable streams goes next is drawn from a seed.
 *   - Device memory is address space without access: the CPU faults on it.
 *     Addresses are never reused, so a stale one never hits something new.
 *   - The destination of a copy to pinned memory reads as 0xDB from the call until
 *     the copy runs, unless earlier queued work uses it: reading early shows.
 *   - Happens-before is tracked between streams and the host. Two uses of the same
 *     bytes that nothing orders are reported, whatever order they ran in.
 *
 * All functions may be called from any thread. */
#ifndef PREFIXCACHE_SIMCUDA_H
#define PREFIXCACHE_SIMCUDA_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Forgets every stream, event, allocation, report and count, and starts the draw
 * of the order anew. Contexts stay. */
void simcuda_reset(uint64_t seed);

enum {
    SIMCUDA_RANDOM = 0, /* some work runs at once, most late, in drawn order */
    SIMCUDA_LATE = 1,   /* nothing runs before somebody waits for it */
    SIMCUDA_EAGER = 2   /* everything that can run runs within the call */
};
void simcuda_policy(int policy);

/* Number of devices (1 or 2, default 1), and whether they have memory pools. */
void simcuda_devices(int count);
void simcuda_pools(int supported);
/* Whether device memory follows the former without a gap, like mapped pieces of one
 * address range; default 0. */
void simcuda_adjacent(int on);

/* Runs up to n queued operations in drawn order; returns how many ran. */
int simcuda_step(int n);
/* A held stream makes no progress until it is released; waiters block. What they wait
 * for is done by whoever lets it go on, as by a device, and then they are woken. */
void simcuda_hold(CUstream stream);
void simcuda_release(CUstream stream);

/* Calls by what they do, for simcuda_fail_nth. */
enum {
    SIMCUDA_ENQUEUE = 1, /* copies, fills, record, wait, stream-ordered allocation */
    SIMCUDA_WAIT = 2,    /* synchronise and query */
    SIMCUDA_CREATE = 4,  /* streams, events, memory, registration, pools */
    SIMCUDA_FREE = 8,    /* whatever gives back, stream-ordered too */
    SIMCUDA_ASK = 16,    /* attributes, contexts, capture state */
    SIMCUDA_ANY = 31
};
/* The n-th call from now (1: the next) of these kinds fails with code and does
 * nothing. n = 0 cancels. */
void simcuda_fail_nth(int kinds, int n, CUresult code);
/* Every call of these kinds from now on, likewise; kinds = 0 ends it. */
void simcuda_fail_all(int kinds, CUresult code);
/* Every call of one driver function from now on, likewise; null ends it. */
void simcuda_fail_call(const char *name, CUresult code);
/* Whether the failure of simcuda_fail_nth is still to come. */
int simcuda_armed(void);
/* The n-th operation to run from now fails: it has no effect, and the context is
 * lost with that code, as after a fault in a kernel. */
void simcuda_fail_operation(int n, CUresult code);

/* The driver has shut down, as at the end of a process, after its own destructors:
 * every call says so, until the reset. */
void simcuda_shut_down(void);

/* Puts a stream into capture, as cuStreamBeginCapture does. Work that is enqueued
 * on it, and calls that spoil a capture, are reported. */
void simcuda_capture(CUstream stream, CUstreamCaptureMode mode);
/* Ends it; returns the state it was in. */
CUstreamCaptureStatus simcuda_end_capture(CUstream stream);

/* Work of the model: writes the 32-bit words value, value+1, ... to dst. */
CUresult simcuda_launch(CUstream stream, CUdeviceptr dst, size_t words, uint32_t value);
/* Device bytes as they are now, whatever is queued. False: not device memory. */
int simcuda_peek(CUdeviceptr src, void *dst, size_t bytes);
int simcuda_poke(CUdeviceptr dst, const void *src, size_t bytes);

/* Declares that the host reads (or writes) bytes. Queued or unobserved work that
 * conflicts is reported. */
void simcuda_host_access(const void *p, size_t bytes, int write);

/* Number of faults found since the reset; their descriptions, one a line, go to
 * text (cut to size, terminated). */
int simcuda_report(char *text, size_t size);
/* Number of live streams, events, allocations, registrations and pools; likewise. */
int simcuda_leaks(char *text, size_t size);

/* Calls of one driver function since the reset (null: of all), the host time that
 * all of them took, and operations that have run and that are queued. */
uint64_t simcuda_calls(const char *name);
uint64_t simcuda_nanoseconds(void);
/* When the last operation finished, in nanoseconds of CLOCK_MONOTONIC. */
uint64_t simcuda_finished(void);
/* When the last thread that had slept in a wait went on, likewise. */
uint64_t simcuda_woken(void);
uint64_t simcuda_ran(void);
uint64_t simcuda_queued(void);
/* Copies from or to memory that is not pinned, and calls that drained a device
 * without being asked to. Both stall a real host. */
uint64_t simcuda_pageable(void);
uint64_t simcuda_implicit_waits(void);

#ifdef __cplusplus
}
#endif
#endif

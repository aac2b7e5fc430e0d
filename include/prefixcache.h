/*
 * prefixcache.h - the C interface of libprefixcache.
 *
 * What it is for: two caches that live inside a model server.
 *
 *   omni     Rows of stage outputs (hidden states, per-token multimodal tensors),
 *            addressed by the scheduler's KV slots. The scheduler finds a prefix
 *            hit and skips those tokens; this cache returns their output rows.
 *   context  Pages, leases, records and snapshots of a paged KV cache, with
 *            content-addressed prefix reuse.
 *
 * This file is the only documentation of record for the C ABI.
 *
 * Thread rule: every function may be called from any thread unless its block
 * says otherwise. Calls on one handle that must not overlap are named there.
 *
 * Memory rule: arrays and structs that are passed in are borrowed for the call
 * and never kept. The caller allocates every output. No function returns a
 * pointer that the caller has to free; pc_buffer_acquire is the one pair. Addresses
 * are aligned for their type, and outputs of one call lie apart from each other.
 * Null and misaligned addresses and absurd lengths are refused. What cannot be checked
 * is believed: that memory is there, as long as the caller says, and that no other
 * thread changes it during the call.
 *
 * Error rule: a function returns PC_OK, a small positive outcome, or a negative
 * error. After anything but PC_OK, pc_last_error() on the same thread says which
 * argument was wrong, the value it had and what was expected. All arguments are
 * checked before anything changes: a call that returns an error changed nothing,
 * unless its block says otherwise.
 *
 * Memory that cannot be had is PC_ERROR_OUT_OF_MEMORY, with the bytes in the text,
 * and nothing changed; smaller sizes may then work. Advice that the system refuses
 * (huge pages, core dumps, fork) is one line at PC_LOG_WARNING for each kind. The Go
 * runtime inside ends the process when small allocations of its own fail, or when it
 * gets no thread: leave some room under limits of memory and of threads.
 *
 * Fork rule: in a child of fork every call returns PC_ERROR_FORKED. Start
 * workers with spawn, or load the library after the fork.
 *
 * Signal rule: install handlers with SA_ONSTACK, as any host of a Go library must: a
 * thread inside the library runs on a small stack of Go. Handlers without it get the
 * flag when the library is loaded and whenever an object is created, with a warning in
 * the log; one installed later is on its own. They run on 32 KiB. SIGSEGV, SIGBUS and
 * SIGFPE that did not arise in Go go to the handler that was there at load. Go sends
 * SIGURG between its threads: expect it more often than it was raised.
 *
 * Compatibility: numbers never change and are never reused. Structs start with
 * struct_size and only grow at the end; zero in a field means its default.
 * Reserved fields must be zero.
 */
#ifndef PREFIXCACHE_H
#define PREFIXCACHE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) || defined(__clang__)
#define PC_API __attribute__((visibility("default")))
#else
#define PC_API
#endif

/* Version of this header. The library's own is pc_version(). */
#define PC_VERSION_MAJOR 0
#define PC_VERSION_MINOR 1
#define PC_VERSION_PATCH 0

/* Number of the function table layout, for pc_get_api(). */
#define PC_ABI_VERSION 2u

/* ------------------------------------------------------------------ status */

typedef int32_t pc_status;

enum {
    PC_OK = 0,

    /* Outcomes that a runtime handles. */
    PC_REQUEST_FAILED = 1, /* context: no capacity (pc_manager_acquire: now, or ever), or a request is
                              already active */
    PC_POISONED = 2,       /* context: device state is unknown; destroy and create anew */
    PC_KEY_MISMATCH = 3,   /* omni: the key is open with another width or type tag */
    PC_NOT_FOUND = 4,      /* a query found nothing */

    /* Broken contracts: nothing changed. */
    PC_ERROR_INVALID_ARGUMENT = -1, /* null, negative, out of range, overlapping, overflow */
    PC_ERROR_BAD_HANDLE = -2,       /* stale, foreign or invented handle */
    PC_ERROR_WRONG_STATE = -3,      /* the call is not legal now */
    PC_ERROR_BUFFER_TOO_SMALL = -4, /* an output array is too short */
    PC_ERROR_UNSUPPORTED = -5,      /* unknown struct_size, flag or feature */

    /* Omni contract errors. */
    PC_ERROR_UNMATCH = -16,         /* scheduler and cache disagree, or a write failed (sticky) */
    PC_ERROR_STAGING_TIMEOUT = -17, /* no staging slot came free within the timeout */

    /* Faults. */
    PC_ERROR_INTERNAL = -32,      /* a panic was caught; the handle is unusable from now on */
    PC_ERROR_OUT_OF_MEMORY = -33, /* memory or address space could not be had */
    PC_ERROR_DEVICE = -34,        /* a CUDA driver call failed; the text has its name */
    PC_ERROR_FORKED = -35,        /* called in a child of fork */
    PC_ERROR_BUSY = -36,          /* the handle is in use by another call */
    PC_ERROR_CLOSED = -37         /* the object was shut down */
};

/* A cache, request or lease: index and generation. 0 is never a valid handle.
 * A handle that was destroyed is refused, not followed. */
typedef uint64_t pc_handle;

/* ------------------------------------------------------------------ library */

/*
 * Version of the library as "major.minor.patch". Static string, never null.
 * Works in a child of fork.
 */
PC_API const char *pc_version(void);

/*
 * Newest function table that pc_get_api() can give.
 */
PC_API uint32_t pc_abi_version(void);

/*
 * Name of a status value, for example "PC_ERROR_UNMATCH"; "PC_UNKNOWN" for a
 * number this library does not have. Static string, never null.
 */
PC_API const char *pc_status_name(pc_status status);

/*
 * Text of the last call on this thread that did not return PC_OK; "" after one
 * that did. Valid until the next pc_ call on this thread. Never null.
 */
PC_API const char *pc_last_error(void);

/*
 * Name of the row kernel in use: "generic", "sse2" or "avx2". The
 * environment variable PREFIXCACHE_KERNEL, read at load, forces one; a value
 * that this CPU cannot run is ignored with one warning in the log.
 */
PC_API const char *pc_kernel_name(void);

/*
 * Let at least `threads` host threads run inside the library at once. The
 * default is the number of CPUs; with fewer than the number of calling threads
 * the slowest call rises to many milliseconds. Values below the present setting
 * change nothing.
 *   threads  1 .. 4096
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_reserve_threads(uint32_t threads);

/* Levels of the log; each includes those before it. */
enum {
    PC_LOG_ERROR = 1,   /* a fault of the library or of the device */
    PC_LOG_WARNING = 2, /* work goes on, slower or without reuse */
    PC_LOG_INFO = 3,    /* good to know, nothing is wrong */
    PC_LOG_DEBUG = 4    /* reserved: no line has it yet */
};

/*
 * A log line. `text` is valid during the call. Called on whichever thread is in
 * the library, possibly several at once; must not call the library, must return.
 */
typedef void (*pc_log_fn)(void *user, int32_t level, const char *text);

/*
 * Install the log callback for the whole process; null removes it. Without one,
 * nothing is printed. What goes on (a wait, a flush, a skipped snapshot) is told by
 * one line at once, and then by at most one in 10 s for each cache and cause, which
 * says how many were left out. After the call returns, the former callback may still be
 * running on another thread.
 *   level  most detailed level wanted, PC_LOG_ERROR .. PC_LOG_DEBUG
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_set_log(pc_log_fn fn, void *user, int32_t level);

/*
 * Take a result buffer from the library's recycled huge-page arena. Fresh
 * memory costs 1.7 us a page on first touch; recycled memory costs nothing, so
 * results of 1 MiB and more should come from here. Contents are undefined.
 *   bytes   1 .. 2^46
 *   data    out: 64-byte aligned address, valid until pc_buffer_release
 *   buffer  out: handle for pc_buffer_release
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_OUT_OF_MEMORY.
 */
PC_API pc_status pc_buffer_acquire(uint64_t bytes, void **data, pc_handle *buffer);

/*
 * Give a buffer back. No view of it may be used afterwards.
 * Returns PC_OK, PC_ERROR_BAD_HANDLE (also when released twice).
 */
PC_API pc_status pc_buffer_release(pc_handle buffer);

/* Bytes of the buffer arena. */
typedef struct pc_buffer_stats {
    uint32_t struct_size; /* in: sizeof(pc_buffer_stats) */
    uint32_t reserved0;
    uint64_t in_use_bytes;   /* handed out now */
    uint64_t retained_bytes; /* free, kept for reuse */
    uint64_t acquired;       /* buffers handed out so far */
    uint64_t recycled;       /* of these, without fresh memory */
} pc_buffer_stats;

/*
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED (struct_size).
 */
PC_API pc_status pc_buffer_get_stats(pc_buffer_stats *stats);

/* --------------------------------------------------------------- omni cache */

/*
 * One omni cache per engine. Order of calls in a step:
 *
 *   pc_omni_step_begin     finishes and arrivals of one scheduler output
 *   (model forward)
 *   pc_omni_save           this step's rows; gives the step id
 *   pc_omni_materialize    exactly one of the two, once per step id,
 *   or pc_omni_discard     from any thread, in any order between steps
 *
 * Engine calls (set_policy, open_key, step_begin, save) must not overlap each
 * other. materialize and discard may overlap them and each other.
 *
 * Vocabulary: slot = block_id * block_size + position in the block. Row = the
 * bytes of one token for one key. A key is one named tensor. Requests are
 * numbers that the caller chooses; a number may come back after it finished.
 */

/* The reserved name of the hidden state. */
#define PC_OMNI_HIDDEN_KEY "__hidden_states__"

enum {
    PC_OMNI_EAGER = 1u,          /* write rows on the calling thread; no background thread */
    PC_OMNI_ZERO_ON_RELEASE = 2u /* clear rows that cannot be read any more */
};

/*
 * PC_OMNI_ZERO_ON_RELEASE: what no reader can get any more is not in memory either.
 *
 *   row in the cache    cleared by the save that gives its slot to another owner
 *                       without writing it at once (a key that the save does not
 *                       carry, or one with PC_OMNI_JOIN_ON_FINISH); otherwise that
 *                       save, or the background thread right after it, writes over it
 *   deferred row, row   cleared when it was written and the last step that reads it
 *   held for a read     was consumed
 *   staging             cleared when its step was consumed and written
 *   pc_buffer_*         cleared at pc_buffer_release, in the whole process from the
 *                       first such cache on
 *   all of the above    cleared by pc_omni_destroy
 *
 * Rows of a failed write stay until pc_omni_destroy. Device memory of the library is
 * not cleared. It costs a write of every released byte, some of them inside a save.
 */

/* When the rows of a key reach the cache. */
enum {
    PC_OMNI_JOIN_NEXT_STEP = 0, /* with the step that computed them */
    PC_OMNI_JOIN_ON_FINISH = 1  /* when the request finishes, aborts, or memory presses */
};

typedef struct pc_omni_options {
    uint32_t struct_size;            /* in: sizeof(pc_omni_options) */
    uint32_t flags;                  /* PC_OMNI_EAGER | PC_OMNI_ZERO_ON_RELEASE */
    int64_t num_blocks;              /* blocks mirrored, 1 .. 2^31 - 1 */
    int64_t block_size;              /* slots per block, 1 .. 2^31 - 1; num_blocks * block_size <= 2^40 */
    int64_t staging_bytes;           /* cap on bytes not yet in the cache; 0: 512 MiB */
    int64_t staging_depth;           /* unconsumed steps at most, 1 .. 4096; 0: 4 */
    int64_t staging_capacity_tokens; /* rows of one step at most when staged; 0: 1024 */
    int64_t claim_timeout_ns;        /* bound of every wait but one for work on a device, which ends
                                        with that work; 0: 30 s; < 0: do not wait */
    int64_t copy_chunk_bytes;        /* piece of a deferred copy; 0: 16 MiB */
    uint64_t reserved[4];
    int64_t warm_bytes;   /* memory of all keys together that is made present ahead of its first
                             use, in the background, from slot 0 of each key on: pieces of 2 MiB,
                             none beside an engine call, a tenth of one core at most. 0: none */
    int64_t copy_threads; /* threads that share a copy of 4 MiB or more inside a save or a
                             materialize, the caller's included, 1 .. 64: one core gets only a
                             fraction of the memory's bandwidth. The others are started by the
                             first such copy, sleep between copies and end with pc_omni_destroy.
                             1: no others; 0: half the CPUs, at least 2 (if there are) and at most 4 */
} pc_omni_options;

/*
 * Create a cache. Address space is reserved key by key when rows first arrive;
 * memory is used when a row is first written.
 *   options  in
 *   cache    out
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED,
 * PC_ERROR_OUT_OF_MEMORY.
 */
PC_API pc_status pc_omni_create(const pc_omni_options *options, pc_handle *cache);

/*
 * Stop: waits (bounded by the claim timeout) for running work, drops what is
 * pending, wakes every waiter with PC_ERROR_UNMATCH "shut down" (one that waits for
 * work on a device, when that work ends). Repeatable.
 * Returns PC_OK, PC_ERROR_BAD_HANDLE.
 */
PC_API pc_status pc_omni_shutdown(pc_handle cache);

/*
 * Shut down and free. Sets *cache to 0. Null and a zero handle are legal.
 * A call still running on another thread returns first. Any thread, whatever CUDA
 * context it has.
 * Returns PC_OK, PC_ERROR_BAD_HANDLE; PC_ERROR_DEVICE when it is destroyed, but some
 * of its memory could not be given back.
 */
PC_API pc_status pc_omni_destroy(pc_handle *cache);

/*
 * Model load, before the first step. The default policy wants hidden states and
 * defers nothing.
 *   needs_hidden  0 or 1: whether hidden rows are cached and merged
 * Returns PC_OK, PC_ERROR_BAD_HANDLE, PC_ERROR_INVALID_ARGUMENT,
 * PC_ERROR_WRONG_STATE (a step was saved already).
 */
PC_API pc_status pc_omni_set_policy(pc_handle cache, uint32_t needs_hidden);

/*
 * Number of a key. The key becomes visible to hits when the first save that
 * carries it succeeds; until then it may be opened again with another width.
 *   name, name_size  UTF-8, 1 .. 4096 bytes, not terminated
 *   row_bytes        bytes of one row, 1 .. 2^31
 *   type_tag         the caller's number for the element type, compared only
 *   schedule         PC_OMNI_JOIN_NEXT_STEP or PC_OMNI_JOIN_ON_FINISH
 *   key              out: small number, the same for the same name
 * Returns PC_OK, PC_KEY_MISMATCH (open and visible with another row_bytes,
 * type_tag or schedule: do not cache this tensor), PC_ERROR_BAD_HANDLE,
 * PC_ERROR_INVALID_ARGUMENT, PC_ERROR_OUT_OF_MEMORY, PC_ERROR_CLOSED.
 */
PC_API pc_status pc_omni_open_key(pc_handle cache, const char *name, size_t name_size, uint64_t row_bytes,
                                  uint32_t type_tag, uint32_t schedule, uint32_t *key);

/* A request that appears for the first time, or again after it finished. */
typedef struct pc_omni_new_request {
    uint64_t request;      /* caller's number */
    int64_t hit_tokens;    /* tokens the scheduler found computed; 0: no hit */
    const int64_t *blocks; /* its block ids in order; may be null when hit_tokens is 0 */
    int64_t num_blocks;    /* entries of blocks; at least hit_tokens / block_size */
} pc_omni_new_request;

/*
 * Take in one scheduler output: finishes first, then arrivals. A request that is
 * live already opens no hit. All or nothing.
 *   finished, num_finished  requests that finished or were aborted; unknown ones are ignored
 *   arrivals, num_arrivals  scheduled new requests
 *   hit_accepted            out, num_arrivals entries: 1 where a hit span was opened;
 *                           may be null
 * Returns PC_OK, PC_ERROR_BAD_HANDLE, PC_ERROR_INVALID_ARGUMENT,
 * PC_ERROR_UNMATCH ("carries no block_ids", "prefix hit not block aligned", a
 * block list that is too short or out of range, "write failed"), PC_ERROR_CLOSED.
 */
PC_API pc_status pc_omni_step_begin(pc_handle cache, const uint64_t *finished, size_t num_finished,
                                    const pc_omni_new_request *arrivals, size_t num_arrivals, uint8_t *hit_accepted);

/*
 * The rows of one key in one step.
 *
 * Row i of the step is at rows + i * row_stride. When dst is given, the new rows
 * are copied there as well, in this layout:
 *
 *   for each request of the batch, in order:
 *     hit_tokens rows (its hit, when it has one in this step; else none)
 *     count rows      (its new rows)
 *
 * and pc_omni_materialize fills in the hit rows. When dst is null the rows stay
 * in the library until the step is consumed.
 *
 * With PC_OMNI_ON_DEVICE, rows is an address in the memory of a CUDA device; dst
 * must be null (results are host memory, which pc_omni_materialize fills). See
 * pc_omni_save for streams. A step may have keys of both kinds.
 */
enum {
    PC_OMNI_ON_DEVICE = 1u /* pc_omni_rows.flags: rows is a device address */
};

typedef struct pc_omni_rows {
    uint32_t key;       /* from pc_omni_open_key */
    uint32_t flags;     /* PC_OMNI_ON_DEVICE or 0 */
    const void *rows;   /* num_tokens rows */
    int64_t row_stride; /* bytes between rows, row_bytes .. 2^32; on a device .. 2^31 - 1 */
    void *dst;          /* see above, or null */
    uint64_t dst_bytes; /* bytes at dst: exactly (hits + tokens) * row_bytes */
} pc_omni_rows;

typedef struct pc_omni_save_args {
    uint32_t struct_size;     /* in: sizeof(pc_omni_save_args) */
    uint32_t flags;           /* 0 */
    uint64_t stream;          /* cudaStream_t of the producer when rows are on a device: 0 is CUDA's legacy
                                 default stream, not "none". Without such rows it is not looked at */
    const uint64_t *requests; /* the batch, in the order of its rows */
    const int64_t *counts;    /* new rows of each request, >= 0 */
    uint64_t num_requests;
    const int64_t *slots;     /* slot of each new row, in order */
    int64_t num_slots;        /* must equal the sum of counts */
    const pc_omni_rows *rows; /* keys of this step, each once */
    uint64_t num_rows;
    uint64_t step; /* out: step id, 1, 2, 3, ... */
    uint64_t reserved[4];
    uint64_t event; /* cudaEvent_t behind which rows on a device are ready, or 0 */
} pc_omni_save_args;

/*
 * Save a step. All or nothing: an error leaves no trace and uses no step id
 * (except that a failed write of earlier rows is sticky, see PC_ERROR_UNMATCH).
 * Slots of keys that this step does not carry become absent for their new owner.
 * Waits, bounded by the claim timeout, for the former step's writes, for memory
 * under staging_bytes and for a staging slot; never for this step's producer.
 *
 * Rows on a device: the call enqueues one device copy per key on `stream`, where
 * the rows were produced, and one copy of the whole step to pinned memory on a
 * stream of the cache, behind an event. Neither the calling thread nor `stream`
 * waits for that copy (PC_OMNI_EAGER: the thread does). So work enqueued on
 * `stream` afterwards may overwrite or free the rows; work of another stream has to
 * be ordered behind `stream` first. The number of driver calls does not depend on
 * the number of requests.
 *
 * Rows of another stream than `stream`: record an event there, behind the rows, and
 * pass it as `event`. `stream` waits for it before the copies, and so does what is
 * enqueued on it afterwards; the calling thread does not. The event may belong to any
 * stream, context and device, and may be recorded again or destroyed when the call
 * returned. As in CUDA, one that was never recorded counts as done. A step of no tokens
 * has no rows: neither `stream` nor `event` is looked at, and nothing is enqueued.
 *
 * The first such call that is not refused opens the device: in the CUDA context that is
 * current on its thread, or that of `stream` when there is none. Later ones must have
 * the same context or none. All of this is checked before anything is enqueued:
 * PC_ERROR_INVALID_ARGUMENT for a stream of another context, for rows that are
 * not memory of this device and for an event without rows on a device;
 * PC_ERROR_WRONG_STATE for a stream that is being captured into a graph (save outside
 * the capture: replay, then save) and for an event that was recorded in one (the
 * driver ends a capture that is asked for its event while it goes on). A stream or
 * an event that was destroyed is PC_ERROR_INVALID_ARGUMENT where the driver notices;
 * as in CUDA, it need not.
 * PC_ERROR_DEVICE when a driver call fails: this save left no trace and may be
 * tried again. A copy that fails after the save returned is a failed write, which
 * is sticky; its text has the CUDA error name.
 *
 * Returns PC_OK, PC_ERROR_BAD_HANDLE, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_WRONG_STATE,
 * PC_ERROR_BUFFER_TOO_SMALL (dst_bytes), PC_ERROR_UNSUPPORTED,
 * PC_ERROR_UNMATCH ("slot mapping covers", "staging capacity is", "write failed",
 * "did not reach done", "shut down"), PC_ERROR_STAGING_TIMEOUT ("unconsumed
 * step contexts"), PC_ERROR_OUT_OF_MEMORY, PC_ERROR_DEVICE.
 */
PC_API pc_status pc_omni_save(pc_handle cache, pc_omni_save_args *args);

/* pc_omni_read.key: fill nothing, only report errors of the hits of these requests. */
#define PC_OMNI_NO_KEY 0xFFFFFFFFu

/* One destination of pc_omni_materialize. */
typedef struct pc_omni_read {
    uint32_t key;       /* from pc_omni_open_key, or PC_OMNI_NO_KEY with a null dst */
    uint32_t reserved0; /* 0 */
    int64_t first;      /* first request, as an index into the batch of the save */
    int64_t count;      /* requests first .. first + count - 1 */
    void *dst;          /* their hit rows and new rows, in the layout of pc_omni_rows */
    uint64_t dst_bytes; /* exactly the bytes of that layout */
} pc_omni_read;

/*
 * Consume a step and fill destinations: the hit rows of every request named, and
 * its new rows unless save already put them at a dst. For rows that came from a
 * device it waits for that step's copy, and for no later one. With num_reads 0 the step
 * is consumed and failures are reported. Destinations must not overlap. The step id
 * is used up even when an error is returned (except PC_ERROR_BAD_HANDLE and an
 * unknown step).
 * Returns PC_OK, PC_ERROR_BAD_HANDLE, PC_ERROR_INVALID_ARGUMENT,
 * PC_ERROR_BUFFER_TOO_SMALL (dst_bytes), PC_ERROR_UNSUPPORTED (reserved0),
 * PC_ERROR_UNMATCH ("step context N missing", "absent slots", "is not readable",
 * "reassigned", "write failed"), PC_ERROR_DEVICE.
 */
PC_API pc_status pc_omni_materialize(pc_handle cache, uint64_t step, const pc_omni_read *reads, size_t num_reads);

/*
 * Consume a step that nobody will read. Its rows reach the cache all the same.
 * Works after a sticky failure.
 * Returns PC_OK, PC_ERROR_BAD_HANDLE, PC_ERROR_UNMATCH ("step context N missing").
 */
PC_API pc_status pc_omni_discard(pc_handle cache, uint64_t step);

/* Copies of an omni cache, by where rows go. */
enum {
    PC_OMNI_COPY_CLONE = 0,  /* rows on a device to memory of the cache there */
    PC_OMNI_COPY_D2H = 1,    /* from there to pinned memory */
    PC_OMNI_COPY_GATHER = 2, /* prefix rows to results */
    PC_OMNI_COPY_MERGE = 3,  /* new rows to results, in pc_omni_materialize */
    PC_OMNI_COPY_SAVE = 4,   /* new rows of the host to the cache and, by the same loads, to dst */
    PC_OMNI_COPY_COMMIT = 5  /* staged and deferred rows to where slots are */
};

/* What a call on an omni cache waited for. */
enum {
    PC_OMNI_WAIT_STEP = 0,    /* save: the former step's writes */
    PC_OMNI_WAIT_STAGING = 1, /* save: a staging slot */
    PC_OMNI_WAIT_BUDGET = 2,  /* save: memory under staging_bytes */
    PC_OMNI_WAIT_READ = 3,    /* materialize: writes of rows that it reads */
    PC_OMNI_WAIT_LANDING = 4, /* materialize: its step's copy from the device */
    PC_OMNI_WAIT_LOCK = 5     /* any call: the cache's lock */
};

/* Counters since creation, and gauges (now). Bytes unless said otherwise. */
typedef struct pc_omni_stats {
    uint32_t struct_size; /* in: sizeof(pc_omni_stats) */
    uint32_t reserved0;
    uint64_t steps_saved;                /* saves that succeeded */
    uint64_t steps_materialized;         /* steps consumed by pc_omni_materialize */
    uint64_t steps_discarded;            /* steps consumed by pc_omni_discard */
    uint64_t rows_saved;                 /* rows, over all keys */
    uint64_t saved_bytes;                /* of these rows */
    uint64_t hits;                       /* hit spans opened */
    uint64_t hit_tokens;                 /* tokens of these */
    uint64_t gathered_bytes;             /* prefix rows given out */
    uint64_t preserved_bytes;            /* rows copied aside because their slot was claimed */
    uint64_t absent_rows;                /* prefix rows that read zeros */
    uint64_t displaced_rows;             /* rows that lost their slot before they were written */
    uint64_t deferred_writes;            /* deferred writes finished */
    uint64_t flushes;                    /* writes forced by staging_bytes */
    uint64_t staging_waits;              /* saves that waited for a staging slot */
    uint64_t failed_writes;              /* sticky: more than 0 means that the cache refuses work */
    uint64_t live_requests;              /* gauge */
    uint64_t unconsumed_steps;           /* gauge */
    uint64_t pending_writes;             /* gauge: writes not finished, deferred included */
    uint64_t pending_reads;              /* gauge: planned reads not finished */
    uint64_t staged_bytes;               /* gauge: charged to staging_bytes */
    uint64_t staged_bytes_peak;          /* most of it at once */
    uint64_t reserved_bytes;             /* gauge: address space */
    uint64_t keys;                       /* gauge: visible keys */
    uint64_t tokens_saved;               /* tokens of the steps, once each whatever the keys */
    uint64_t reads_used;                 /* planned reads (one hit, one key) that were given out */
    uint64_t reads_dropped;              /* planned reads that were not: step discarded, or never asked for */
    uint64_t live_requests_peak;         /* most at once */
    uint64_t unconsumed_steps_peak;      /* most at once */
    uint64_t staging_depth;              /* of the options: steps */
    uint64_t staging_bytes;              /* of the options */
    uint64_t pinned_bytes;               /* gauge: of reserved_bytes, page-locked */
    uint64_t queue_age_nanoseconds;      /* gauge: the next write's wait for the background thread */
    uint64_t queue_age_nanoseconds_peak; /* longest of these waits */
    uint64_t copied_bytes[8];            /* by PC_OMNI_COPY_* */
    uint64_t timed_bytes[8];             /* of these, bytes of copies that were timed: large ones only */
    uint64_t copy_nanoseconds[8];        /* what those took */
    uint64_t waits[8];                   /* by PC_OMNI_WAIT_* */
    uint64_t wait_nanoseconds[8];        /* time of those waits */
} pc_omni_stats;

/*
 * Returns PC_OK, PC_ERROR_BAD_HANDLE, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED.
 */
PC_API pc_status pc_omni_get_stats(pc_handle cache, pc_omni_stats *stats);

/* State of one (slot, key). */
enum {
    PC_OMNI_ABSENT = 0,     /* never written */
    PC_OMNI_IN_TRANSIT = 1, /* claimed, not written yet */
    PC_OMNI_COMMITTED = 2,  /* the row is in the cache */
    PC_OMNI_SKIPPED = 3     /* the present owner of the slot has no row for this key */
};

typedef struct pc_omni_slot_state {
    uint32_t state;   /* PC_OMNI_ABSENT .. */
    uint32_t version; /* claims of this (slot, key), modulo 2^26 */
    uint64_t owner;   /* write number while in transit, else 0 */
} pc_omni_slot_state;

/*
 * Inspect slots. Changes nothing.
 *   slots, num_slots  slots asked for
 *   states            out, num_slots entries
 *   rows              out, num_slots * row_bytes: the rows as the cache holds them
 *                     (zeros unless committed); may be null
 *   rows_bytes        bytes at rows
 * Returns PC_OK, PC_ERROR_BAD_HANDLE, PC_ERROR_INVALID_ARGUMENT (unknown key, slot
 * out of range), PC_ERROR_BUFFER_TOO_SMALL.
 */
PC_API pc_status pc_omni_inspect(pc_handle cache, uint32_t key, const int64_t *slots, size_t num_slots,
                                 pc_omni_slot_state *states, void *rows, uint64_t rows_bytes);

/*
 * Check every structural invariant of the cache. Slow; for tests and doctors.
 * Returns PC_OK, PC_ERROR_BAD_HANDLE, PC_ERROR_INTERNAL (the text says what is broken).
 */
PC_API pc_status pc_omni_check(pc_handle cache);

/*
 * Fail point for tests: let the nth write from now fail (1: the next), 0 clears it.
 * Returns PC_OK, PC_ERROR_BAD_HANDLE.
 */
PC_API pc_status pc_omni_fail_write(pc_handle cache, uint64_t nth);

/* ------------------------------------------------- context cache: identity */

/*
 * Two levels, one set of rules:
 *
 *   pc_manager_*  host only. Which pages hold which prefix, and who uses them.
 *                 For a runtime with a coordinator of its own. No device work.
 *   pc_context_*  the coordinator: a manager, page tables, snapshots and the
 *                 request state machine, ordered on one CUDA stream.
 *
 * Vocabulary: block = the tokens of one page; only full blocks are shared.
 * Record = one published prefix with all its pages. Lease = what one sequence
 * uses: shared pages first, private pages after them. Committed = leading tokens
 * whose KV really is in the cache; the last token of a running sequence is the
 * lookahead, sampled but not computed. Base and draft = target and draft model.
 *
 * Page ids are K page ids; the V page of id p is p + num_pages. Two prefixes that
 * differ anywhere in tokens or identity never share a page: content is compared,
 * a hash only finds the candidate.
 *
 * One manager is one trust domain: whoever may look up can learn what is cached.
 * pc_extras.isolation separates tenants.
 *
 * A lease belongs to its manager and a request to its coordinator: both are given
 * together, and a lease or request of another one is PC_ERROR_BAD_HANDLE.
 *
 * Thread rule of all three sections: any thread; the library serialises the calls
 * on one object. Order is the caller's business.
 */

/* 128 bits that the caller computed. All zero is not a usable media digest. */
typedef struct pc_hash128 {
    uint64_t high;
    uint64_t low;
} pc_hash128;

/* Whose pages. */
enum {
    PC_BASE = 0, /* of the target model */
    PC_DRAFT = 1 /* of the draft model */
};

/* Whether an acquire looks for cached state. */
enum {
    PC_LOOKUP_USE_CACHE = 0, /* look up, and publish */
    PC_LOOKUP_BYPASS = 1     /* compute everything */
};

/* Which ends of a sequence a coordinator publishes. */
enum {
    PC_COMMIT_INCLUDING_GENERATED = 0, /* prompt, and prompt with what was generated */
    PC_COMMIT_PREFILL_ONLY = 1         /* the prompt */
};

/* How a request runs. */
enum {
    PC_EXECUTE_VANILLA = 0, /* one token a step; hybrid and pure recurrent, too */
    PC_EXECUTE_EAGLE = 1    /* draft and verify */
};

/* What a deployment is to the cache. */
enum {
    PC_DEPLOY_VANILLA = 0,        /* attention only */
    PC_DEPLOY_HYBRID = 1,         /* attention and recurrent layers */
    PC_DEPLOY_PURE_RECURRENT = 2, /* no attention: snapshots, no pages */
    PC_DEPLOY_EAGLE = 3           /* a base and a draft model, attention only */
};

/* The four pools. */
enum {
    PC_RESOURCE_BASE_PAGE = 0,  /* K page of the base model, and its V page */
    PC_RESOURCE_DRAFT_PAGE = 1, /* the same of the draft model */
    PC_RESOURCE_RECURRENT = 2,  /* slot for a snapshot of recurrent state */
    PC_RESOURCE_PARTIAL_KV = 3  /* slot for the page in which a snapshot ends */
};

/* By which rule a sequence is planned. */
enum {
    PC_PLAN_VANILLA = 0, /* whole pages */
    PC_PLAN_HYBRID = 1,  /* up to a snapshot */
    PC_PLAN_SPEC = 2     /* base and draft pages in step (EAGLE) */
};

/* What came of it. */
enum {
    PC_PLAN_STANDARD = 0,           /* a prefix is reused */
    PC_PLAN_NO_REUSABLE_PREFIX = 1, /* nothing is */
    PC_PLAN_FULL_INPUT_REWIND = 2   /* all was cached: a page less is reused, so that one token is computed */
};

/* What an EAGLE sequence computes again of what is cached. */
enum {
    PC_REPLAY_NONE = 0,
    PC_REPLAY_FULL_PAGE = 1 /* the last page that matched, for the hidden states that feed the draft */
};

/* Outcome of a publication. */
enum {
    PC_PUBLISHED = 0,      /* a new record, or an old one that got draft pages; or nothing, see record and stale */
    PC_EXISTING_RECORD = 1 /* this prefix had a record already, which is most recent now */
};

/* Phase of a request. */
enum {
    PC_PHASE_ADMITTED = 0,  /* begun; nothing enqueued yet */
    PC_PHASE_EXECUTING = 1, /* from prepare_prefill on */
    PC_PHASE_FINISHING = 2  /* only finish and abandon are legal */
};

/* Why a sequence reuses nothing, or less than it might. */
enum {
    PC_REASON_NONE = 0,              /* everything that can be reused is */
    PC_REASON_BYPASS = 1,            /* the lookup policy says so */
    PC_REASON_PROMPT_TOO_SHORT = 2,  /* the prompt has no full block */
    PC_REASON_EXTRAS_UNKNOWN = 3,    /* nothing is cached with this adapter, isolation, ..., or nothing at all */
    PC_REASON_FIRST_BLOCK = 4,       /* the extras are known, the first block is not */
    PC_REASON_DIVERGED = 5,          /* what follows is not cached: another continuation, or evicted */
    PC_REASON_FULL_INPUT = 6,        /* the whole prompt is cached; one page is computed again */
    PC_REASON_MEDIA_BOUNDARY = 7,    /* cut back so that no run of media positions is split */
    PC_REASON_NO_DRAFT = 8,          /* EAGLE: base pages match, but no draft pages are cached */
    PC_REASON_DRAFT_SHORTER = 9,     /* EAGLE: draft pages match less than base pages */
    PC_REASON_REPLAY = 10,           /* EAGLE: the last matched page is computed again */
    PC_REASON_NO_CHECKPOINT = 11,    /* hybrid: no snapshot on this prefix */
    PC_REASON_CHECKPOINT_SHORT = 12, /* hybrid: pages match further than the snapshot that is used */
    PC_REASON_CHECKPOINT_LONG = 13   /* hybrid: the only snapshot is as long as the prompt */
};

/* Which optional parts of pc_extras are present. Absent and present-with-zero
 * are different identities. */
enum { PC_EXTRA_ADAPTER = 1u, PC_EXTRA_POSITION = 2u, PC_EXTRA_EMBEDDING = 4u, PC_EXTRA_ISOLATION = 8u };

/* Identity of a sequence beyond its tokens; it applies to every block. Elements
 * of arrays have no struct_size: their layout is fixed. */
typedef struct pc_extras {
    uint32_t present;            /* PC_EXTRA_ADAPTER | ... */
    uint32_t reserved0;          /* 0 */
    pc_hash128 adapter;          /* identity of the adapter (LoRA) */
    uint64_t adapter_generation; /* raise it when the adapter is loaded anew */
    pc_hash128 position;         /* digest of custom position ids */
    pc_hash128 embedding;        /* digest of custom embeddings */
    pc_hash128 isolation;        /* tenant, salt */
} pc_extras;

/* A media item inside blocks. Order matters. */
typedef struct pc_media_span {
    pc_hash128 content;   /* digest of shape, type and bytes */
    pc_hash128 placement; /* digest of how it is placed */
    int32_t offset;       /* position inside the block, >= 0 */
    int32_t order;        /* number of the item, >= 0 */
    uint32_t modality;    /* 0 .. 255 */
    uint32_t reserved0;   /* 0 */
} pc_media_span;

/* Hybrid, with block keys: a snapshot of `length` tokens named by the caller. */
typedef struct pc_checkpoint {
    pc_hash128 digest; /* of exactly these tokens */
    int64_t length;    /* tokens, >= 1 */
} pc_checkpoint;

/*
 * One sequence: tokens with their identity, or block keys that the caller
 * computed (each key covers its block and everything before it).
 */
typedef struct pc_sequence {
    uint32_t struct_size;       /* in: sizeof(pc_sequence) */
    uint32_t reserved0;         /* 0 */
    const int32_t *tokens;      /* num_tokens ids; null when keys are given */
    int64_t num_tokens;         /* 1 .. 2^31 - 1; with keys: length of the sequence */
    const pc_hash128 *media;    /* null, or num_tokens digests; where one is not zero it stands for the token */
    const pc_extras *extras;    /* null, or one */
    const pc_media_span *spans; /* null, or num_spans */
    uint64_t num_spans;
    const pc_hash128 *keys;           /* manager with PC_BLOCK_KEYS: one per full block; else null */
    uint64_t num_keys;                /* with PC_BLOCK_KEYS: 0 .. num_tokens / tokens_per_page; else 0 */
    const pc_checkpoint *checkpoints; /* with keys, hybrid: the snapshots that would do, or null */
    uint64_t num_checkpoints;
} pc_sequence;

/*
 * Digests for events, remote tiers and routers; the cache itself needs none. Not
 * the identity of the cache, only a stable name for it: SHA-256 cut to 128 bits,
 * equal on every host.
 *   sequence         in: tokens with identity; keys must be null
 *   tokens_per_page  >= 1
 *   digests          out: one per full block, chained
 *   num_digests      entries of digests, exactly num_tokens / tokens_per_page
 *   prefix           out: digest of the whole prefix, partial tail included; equals
 *                    the last of digests when there is no tail; may be null
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED.
 */
PC_API pc_status pc_digest_sequence(const pc_sequence *sequence, int32_t tokens_per_page, pc_hash128 *digests,
                                    uint64_t num_digests, pc_hash128 *prefix);

/*
 * Digest of bytes, for media, adapter names and tenants. Never all zero.
 *   data, size  may be null when size is 0
 *   digest      out
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_digest_bytes(const void *data, uint64_t size, pc_hash128 *digest);

/* -------------------------------------------------- context cache: manager */

/*
 * A lease's walk: pc_manager_acquire, (compute), pc_manager_publish, then for
 * each step pc_manager_grow and pc_manager_append, pc_manager_publish once more,
 * pc_manager_release. Hybrid models publish snapshots instead: reserve, (capture),
 * publish_hybrid, retire.
 *
 * Every function of this section can return PC_ERROR_BAD_HANDLE, and
 * PC_ERROR_INTERNAL (see there). The manager of a coordinator takes queries,
 * invalidate, flush, evict and set_quota; anything else on it is PC_ERROR_WRONG_STATE.
 */

enum {
    PC_ORIGINAL_RECENCY = 1u, /* a vanilla hit does not make its record most recent */
    PC_BLOCK_KEYS = 2u,       /* manager: sequences are named by block keys of the caller, which are
                                 trusted; without it by tokens, which are compared */
    PC_WEAK_HASH = 8u,        /* tests: one table hash for all blocks, so that every lookup collides */
    PC_HOST_MEMORY = 4u,      /* table, context: addresses are plain host memory, also where there is a
                                 GPU; without it CUDA is used when a driver is found */
    PC_SHORTEN_VICTIMS = 16u, /* an eviction first shortens the record whose turn it is to what the demand
                                 needs, instead of evicting it whole: a prefix of it stays cached, in
                                 its place in the order. A better hit rate, with small pages above all */
    PC_ZERO_ON_RELEASE = 32u  /* clear tokens, media digests and block keys once nothing can find them:
                                 when their page is free again, their lease ended, and at destroy. The KV
                                 pages are the runtime's memory, and what is in a page that
                                 pc_manager_acquire or pc_manager_grow hands out may be a former
                                 tenant's; snapshots on a device are not cleared either */
};

typedef struct pc_manager_options {
    uint32_t struct_size;    /* in: sizeof(pc_manager_options) */
    uint32_t flags;          /* PC_ORIGINAL_RECENCY | PC_BLOCK_KEYS | PC_SHORTEN_VICTIMS | PC_WEAK_HASH |
                                PC_ZERO_ON_RELEASE */
    int32_t tokens_per_page; /* 0: 128 */
    int32_t max_records;     /* 0: 1024; -1: retain none */
    int32_t base_pages;      /* capacity of this pool, >= 0; so the next three */
    int32_t draft_pages;     /* spec: pages of the draft model */
    int32_t recurrent_slots; /* hybrid: snapshots of recurrent state */
    int32_t partial_slots;   /* hybrid: pages in which a snapshot ends */
    uint64_t reserved[4];
    uint32_t tenant_quota; /* per mille of each pool, and of max_records, that one tenant may hold, see
                              pc_tenant; 1000: counted, not limited; 0: neither */
    uint32_t reserved1;    /* 0 */
} pc_manager_options;

/*
 *   options  in
 *   manager  out
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED,
 * PC_ERROR_OUT_OF_MEMORY.
 */
PC_API pc_status pc_manager_create(const pc_manager_options *options, pc_handle *manager);

/*
 * Free a manager and every lease of it. Sets *manager to 0. Null and a zero handle
 * are legal.
 * Returns PC_OK, PC_ERROR_WRONG_STATE (it belongs to a coordinator).
 */
PC_API pc_status pc_manager_destroy(pc_handle *manager);

/* What a lookup found and what the sequence still needs. */
typedef struct pc_plan {
    uint32_t struct_size;   /* in: sizeof(pc_plan) */
    uint32_t mode;          /* PC_PLAN_VANILLA .. */
    uint32_t kind;          /* PC_PLAN_STANDARD .. */
    uint32_t replay;        /* PC_REPLAY_NONE, PC_REPLAY_FULL_PAGE */
    uint32_t reason;        /* PC_REASON_NONE .. */
    int32_t matched;        /* tokens found, before a page is dropped */
    int32_t reuse;          /* tokens reused: execution starts here; less than the length */
    int32_t bound_base;     /* shared pages at the front of the lease */
    int32_t bound_draft;    /* spec: the same of the draft model */
    int32_t demand_base;    /* private pages after them */
    int32_t demand_draft;   /* spec: the same of the draft model */
    int32_t recurrent_slot; /* snapshot to restore, or -1 */
    int32_t partial_slot;   /* partial page to restore, or -1 */
    int32_t partial_tokens; /* tokens of it, into page reuse / tokens_per_page of the lease */
    int32_t dependency;     /* spec: leading blocks that a publication must agree with; 0: none */
    uint32_t reserved0;
    uint64_t record; /* the record that was hit; 0: none */
    uint64_t reserved[2];
} pc_plan;

/*
 * Look up, pin what is shared, allocate the rest, evicting records if needed.
 * All or nothing.
 *   mode         PC_PLAN_VANILLA .. ; hybrid on a manager without base pages is pure recurrent
 *   lookup       PC_LOOKUP_USE_CACHE, PC_LOOKUP_BYPASS
 *   sequence     in; copied
 *   plan         out, filled also with PC_REQUEST_FAILED
 *   base_pages   out: the lease's base pages in order; may be null
 *   num_base     entries of base_pages, at least num_tokens / tokens_per_page rounded up
 *   draft_pages  out, the same for spec; may be null
 *   num_draft    entries of draft_pages
 *   lease        out
 * Returns PC_OK, PC_REQUEST_FAILED (no capacity; nothing changed),
 * PC_ERROR_INVALID_ARGUMENT, PC_ERROR_BUFFER_TOO_SMALL, PC_ERROR_WRONG_STATE.
 *
 * PC_REQUEST_FAILED is for now, and worth another try when a lease was released, unless
 * bound_base + demand_base of the plan is more than base_pages of the options, or
 * bound_draft + demand_draft more than draft_pages: then it is for good, and the text
 * begins with "beyond capacity". With tenant_quota the same holds for what the tenant
 * may have, quota_pages of pc_tenant, until its quota is raised.
 */
PC_API pc_status pc_manager_acquire(pc_handle manager, uint32_t mode, uint32_t lookup, const pc_sequence *sequence,
                                    pc_plan *plan, int32_t *base_pages, uint64_t num_base, int32_t *draft_pages,
                                    uint64_t num_draft, pc_handle *lease);

/*
 * Add tokens to the history of a lease, after those it was acquired with. They
 * need no page yet. Not with PC_BLOCK_KEYS.
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_WRONG_STATE.
 */
PC_API pc_status pc_manager_append(pc_handle manager, pc_handle lease, const int32_t *tokens, uint64_t num_tokens);

/*
 * Append private pages. Both pools succeed or fail together.
 *   base, draft              pages to append, >= 0; draft is 0 unless the lease is spec
 *   base_pages, draft_pages  out: their ids, `base` and `draft` entries; may be null
 * Returns PC_OK, PC_REQUEST_FAILED (no capacity; nothing changed; for good when the
 * pages of the lease and these together are more than the pool has),
 * PC_ERROR_INVALID_ARGUMENT, PC_ERROR_WRONG_STATE.
 */
PC_API pc_status pc_manager_grow(pc_handle manager, pc_handle lease, int32_t base, int32_t draft, int32_t *base_pages,
                                 int32_t *draft_pages);

/* Result of a publication. */
typedef struct pc_publication {
    uint32_t struct_size; /* in: sizeof(pc_publication) */
    uint32_t status;      /* PC_PUBLISHED, PC_EXISTING_RECORD */
    uint64_t record;      /* 0: not retained (record limit 0, or stale) */
    int32_t blocks;       /* full blocks covered */
    uint32_t stale;       /* 1: flushed or invalidated since the lease began; nothing was cached */
} pc_publication;

/*
 * Publish the full blocks of the history of a vanilla or spec lease. Costs what is
 * new since the last time. The lease keeps its own pages, also where a record
 * already has others.
 *   resident     leading tokens whose KV is in the cache (spec: in both)
 *   publication  out; may be null
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT (no full block, more blocks than pages,
 * resident beyond the history), PC_ERROR_WRONG_STATE (hybrid lease, block keys).
 */
PC_API pc_status pc_manager_publish(pc_handle manager, pc_handle lease, int64_t resident, pc_publication *publication);

/*
 * The end of one step in one call: append, then publish, then grow for the next
 * step. The parts are those of the three functions; each is left out when its
 * number is 0.
 *   tokens, num_tokens       as pc_manager_append
 *   resident                 as pc_manager_publish; 0: do not publish
 *   base, draft              as pc_manager_grow
 *   base_pages, draft_pages  as pc_manager_grow
 *   publication              out; may be null
 * Returns PC_OK, PC_REQUEST_FAILED (no capacity to grow; tokens and publication are
 * done), or the error of the first part that failed: later parts were not begun,
 * earlier ones are done.
 */
PC_API pc_status pc_manager_advance(pc_handle manager, pc_handle lease, const int32_t *tokens, uint64_t num_tokens,
                                    int64_t resident, int32_t base, int32_t draft, int32_t *base_pages,
                                    int32_t *draft_pages, pc_publication *publication);

/*
 * pc_manager_publish with PC_BLOCK_KEYS.
 *   first           block that keys[0] belongs to; at most the number of keys known so far
 *   keys, num_keys  keys of the blocks from there on; those of blocks that matched or
 *                   were published must agree, others that were given may still change
 */
PC_API pc_status pc_manager_publish_keys(pc_handle manager, pc_handle lease, uint64_t first, const pc_hash128 *keys,
                                         uint64_t num_keys, int64_t resident, pc_publication *publication);

/*
 * Reserve snapshot slots for a hybrid lease, evicting records if needed; for one that
 * was flushed or invalidated, whose snapshot would be dropped, free slots only.
 *   need_partial    1 when the snapshot does not end on a page boundary; else 0
 *   recurrent_slot  out
 *   partial_slot    out, -1 unless need_partial
 * Returns PC_OK, PC_REQUEST_FAILED (no slot; nothing changed; for good when
 * recurrent_slots of the options is 0, or partial_slots where one is needed),
 * PC_ERROR_INVALID_ARGUMENT, PC_ERROR_WRONG_STATE.
 */
PC_API pc_status pc_manager_reserve(pc_handle manager, pc_handle lease, uint32_t need_partial, int32_t *recurrent_slot,
                                    int32_t *partial_slot);

/*
 * Publish a snapshot of the first `length` tokens. It must have been written.
 *   length                        1 .. the tokens of the history
 *   recurrent_slot, partial_slot  from pc_manager_reserve; partial -1 on a page boundary
 *   publication                   out; may be null
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_WRONG_STATE (not a hybrid lease,
 * block keys, slots that the lease has not reserved, or that were published as another
 * snapshot: reserve others for it).
 */
PC_API pc_status pc_manager_publish_hybrid(pc_handle manager, pc_handle lease, int64_t length, int32_t recurrent_slot,
                                           int32_t partial_slot, pc_publication *publication);

/*
 * pc_manager_publish_hybrid with PC_BLOCK_KEYS.
 *   first, keys, num_keys  as pc_manager_publish_keys
 *   checkpoint             in: length and digest
 */
PC_API pc_status pc_manager_publish_hybrid_keys(pc_handle manager, pc_handle lease, uint64_t first,
                                                const pc_hash128 *keys, uint64_t num_keys,
                                                const pc_checkpoint *checkpoint, int32_t recurrent_slot,
                                                int32_t partial_slot, pc_publication *publication);

/*
 * Give up the lease's hold on reserved slots; published ones stay with their
 * record, others are freed.
 * Returns PC_OK, PC_ERROR_WRONG_STATE (not a hybrid lease, not reserved by it).
 */
PC_API pc_status pc_manager_retire(pc_handle manager, pc_handle lease, int32_t recurrent_slot, int32_t partial_slot);

/*
 * Give up the lease's hold on the snapshots that its hit bound, once restored.
 * Returns PC_OK (also when there are none), PC_ERROR_WRONG_STATE (not hybrid).
 */
PC_API pc_status pc_manager_release_restored(pc_handle manager, pc_handle lease);

/*
 * Pages of a lease in order. Changes nothing.
 *   model         PC_BASE, PC_DRAFT
 *   first         page to begin with
 *   pages, space  out: at most `space` pages from there on; may be null when space is 0
 *   num_pages     out: how many the lease has
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_manager_lease_pages(pc_handle manager, pc_handle lease, uint32_t model, uint64_t first,
                                        int32_t *pages, uint64_t space, uint64_t *num_pages);

/*
 * End a lease. Sets *lease to 0. Null and a zero lease are legal.
 * Returns PC_OK.
 */
PC_API pc_status pc_manager_release(pc_handle manager, pc_handle *lease);

/*
 * What pc_manager_acquire would find now. Changes neither references nor recency.
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_manager_lookup(pc_handle manager, uint32_t mode, const pc_sequence *sequence, pc_plan *plan);

/*
 * Remove every record made with an adapter. Pages in use stay with their leases
 * and are freed when those end; what such a lease publishes later is dropped.
 *   adapter     identity
 *   generation  only this generation; null: all of them
 *   removed     out: records removed; may be null
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_manager_invalidate(pc_handle manager, const pc_hash128 *adapter, const uint64_t *generation,
                                       uint64_t *removed);

/*
 * Remove every record, under the rule of pc_manager_invalidate.
 *   removed  out: records removed; may be null
 * Returns PC_OK.
 */
PC_API pc_status pc_manager_flush(pc_handle manager, uint64_t *removed);

/*
 * Remove one record. Pages in use stay with their leases.
 * Returns PC_OK, PC_NOT_FOUND.
 */
PC_API pc_status pc_manager_evict(pc_handle manager, uint64_t record);

/* One record. */
typedef struct pc_record {
    uint64_t id;            /* from 1, never reused */
    int32_t blocks;         /* full blocks */
    int32_t exact_length;   /* hybrid: tokens of the checkpoint; else 0 */
    int32_t base_pages;     /* length of the base path */
    int32_t draft_pages;    /* length of the draft path, 0: none */
    int32_t recurrent_slot; /* or -1 */
    int32_t partial_slot;   /* or -1 */
} pc_record;

/*
 * Records from least to most recent. Changes nothing.
 *   records, space  out: the first `space` records; may be null when space is 0
 *   num_records     out: how many there are
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_manager_records(pc_handle manager, pc_record *records, uint64_t space, uint64_t *num_records);

/*
 * Page path of a record, as pc_manager_lease_pages. Changes nothing.
 * Returns PC_OK, PC_NOT_FOUND, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_manager_record_pages(pc_handle manager, uint64_t record, uint32_t model, uint64_t first,
                                         int32_t *pages, uint64_t space, uint64_t *num_pages);

/*
 * References of pages or snapshot slots first, first + 1, ... Changes nothing.
 * Slow: counted afresh.
 *   resource        PC_RESOURCE_BASE_PAGE ..
 *   active          out: leases that use each; may be null
 *   cached          out: records that list each; may be null
 *   count           how many; first + count is at most the capacity
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_manager_references(pc_handle manager, uint32_t resource, uint64_t first, int32_t *active,
                                       int32_t *cached, uint64_t count);

/* Gauges (now), and counters since creation. Arrays are indexed by PC_RESOURCE_*. */
typedef struct pc_manager_stats {
    uint32_t struct_size; /* in: sizeof(pc_manager_stats) */
    uint32_t reserved0;
    uint64_t records;               /* gauge */
    uint64_t leases;                /* gauge */
    uint64_t base_blocks;           /* gauge: distinct cached blocks */
    uint64_t draft_blocks;          /* gauge: block boundaries over all draft paths */
    uint64_t capacity[4];           /* pages or slots, of the options */
    uint64_t free[4];               /* gauge: neither cached nor used */
    uint64_t active[4];             /* gauge: used by leases */
    uint64_t acquires;              /* leases given, and acquires without capacity */
    uint64_t infeasible;            /* acquires without capacity */
    uint64_t evicted_records;       /* for whatever reason */
    uint64_t reclaimed[4];          /* slots that went free at an eviction */
    uint64_t stale_publications;    /* dropped: flushed or invalidated since the lease began */
    uint64_t hash_collisions;       /* candidates whose content was another: harmless */
    uint64_t reasons[16];           /* acquired leases by PC_REASON_* */
    uint64_t query_tokens;          /* prompt tokens of acquired leases that looked for cached state */
    uint64_t hit_tokens;            /* of these, tokens that need no computing */
    uint64_t shortened_records;     /* PC_SHORTEN_VICTIMS: records that were cut, not evicted */
    uint64_t leases_peak;           /* most leases at once */
    uint64_t active_peak[4];        /* most slots that leases used at once */
    uint64_t lock_waits;            /* calls that found the lock taken; of the coordinator, too */
    uint64_t lock_wait_nanoseconds; /* time of those waits */
} pc_manager_stats;

/*
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED.
 */
PC_API pc_status pc_manager_get_stats(pc_handle manager, pc_manager_stats *stats);

/*
 * Check every structural invariant. Slow; for tests and doctors.
 * Returns PC_OK, PC_ERROR_INTERNAL (the text says what is broken).
 */
PC_API pc_status pc_manager_check(pc_handle manager);

/*
 * Readable dump: pools, records, tree, leases. Changes nothing.
 *   text, space  out: at most space - 1 bytes and a zero; may be null when space is 0
 *   size         out: bytes of the whole text without the zero
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_manager_dump(pc_handle manager, char *text, uint64_t space, uint64_t *size);

/*
 * A tenant: all sequences with one pc_extras.isolation, or all without. No two share a
 * page. With tenant_quota in the options, tenants are counted, and each holds at most
 * its quota of base pages (in use by leases, or cached), of draft pages, of records, and
 * of snapshots and the partial pages that some end in. A demand that would pass the quota
 * first evicts records of the same tenant, least recent first; when what its leases use
 * leaves no room even then, it is PC_REQUEST_FAILED, the text begins with "quota", and
 * nothing changed. A snapshot slot that is free may be reserved beyond the quota, which
 * counts again when it is published. So no tenant beyond its quota ever evicts a record of
 * another. Without the option nothing is counted, and the cost and order of evictions are
 * as ever.
 *
 * Counters begin when a tenant is first seen. One that holds nothing and has no quota
 * of its own is forgotten when 1024 others came to rest after it.
 */
typedef struct pc_tenant {
    pc_hash128 isolation;       /* which tenant */
    uint32_t present;           /* 1; 0: the sequences without PC_EXTRA_ISOLATION */
    uint32_t quota;             /* per mille, in force */
    uint64_t quota_pages;       /* the same in base pages */
    uint64_t pages;             /* gauge: base pages in use or cached */
    uint64_t active_pages;      /* gauge: of these, used by leases */
    uint64_t records;           /* gauge */
    uint64_t snapshots;         /* gauge: of these, with a recurrent slot */
    uint64_t leases;            /* acquired */
    uint64_t query_tokens;      /* of their prompts */
    uint64_t hit_tokens;        /* of these, reused */
    uint64_t evicted;           /* records of it, for whatever reason */
    uint64_t evicted_by_others; /* of these, to make room for another tenant */
    uint64_t evicted_others;    /* records of other tenants, to make room for it */
    uint64_t refused;           /* demands beyond the quota */
} pc_tenant;

/*
 * The tenants that are known, in no order. Changes nothing.
 *   tenants, space  out: the first `space` of them; may be null when space is 0
 *   num_tenants     out: how many there are; 0 without tenant_quota
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_manager_tenants(pc_handle manager, pc_tenant *tenants, uint64_t space, uint64_t *num_tenants);

/*
 * Give one tenant a quota of its own. What it holds beyond that is evicted now, as far
 * as no lease uses it, the rest as its leases end. Also on the manager of a coordinator.
 *   isolation  the tenant; null: the sequences without PC_EXTRA_ISOLATION
 *   quota      per mille, 1 .. 1000; 0: the one of the options again
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_WRONG_STATE (no tenant_quota in the
 * options).
 */
PC_API pc_status pc_manager_set_quota(pc_handle manager, const pc_hash128 *isolation, uint32_t quota);

/* ----------------------------------------------- context cache: page table */

/*
 * The page table of one model: for each batch slot K page ids, then V page ids,
 * [max_batch][2][row_width] int32, -1 where unused. The host side decides; the
 * device copy has the same layout and one address for life. Only rows that
 * changed are uploaded. A coordinator sets the rows of its tables itself.
 *
 * Every function of this section can return PC_ERROR_BAD_HANDLE.
 */
typedef struct pc_table_options {
    uint32_t struct_size;    /* in: sizeof(pc_table_options) */
    uint32_t flags;          /* PC_HOST_MEMORY or 0 */
    int32_t max_batch;       /* rows, >= 1 */
    int32_t row_width;       /* pages per sequence, >= 1 */
    int32_t num_pages;       /* of the K pool, 1 .. 2^30 - 1 */
    int32_t reserved1;       /* 0 */
    uint64_t device_address; /* the caller's device copy; 0: the library allocates one */
    uint64_t reserved[2];
} pc_table_options;

/*
 * All entries -1, all rows to be uploaded. Where CUDA is used, the context of the
 * model must be current on this thread.
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED,
 * PC_ERROR_OUT_OF_MEMORY, PC_ERROR_DEVICE.
 */
PC_API pc_status pc_table_create(const pc_table_options *options, pc_handle *table);

/*
 * Wait for a pending upload and free. Sets *table to 0. Null and a zero handle
 * are legal. Any thread, whatever CUDA context it has.
 * Returns PC_OK, PC_ERROR_BUSY (a coordinator uses it); PC_ERROR_DEVICE when it is
 * destroyed, but some of its memory could not be given back.
 */
PC_API pc_status pc_table_destroy(pc_handle *table);

/*
 * Slot b gets pages b * row_width .. b * row_width + row_width - 1: the table of a
 * runtime that does not share pages.
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT (num_pages is less than max_batch *
 * row_width), PC_ERROR_BUSY (a coordinator has live requests).
 */
PC_API pc_status pc_table_set_identity(pc_handle table);

/*
 * Set whole rows. All or nothing.
 *   slots, num_rows  rows to set, none twice
 *   pages, offsets   pages of row i: pages[offsets[i]] .. pages[offsets[i + 1] - 1];
 *                    offsets has num_rows + 1 entries, the first is 0
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_BUSY.
 */
PC_API pc_status pc_table_set_rows(pc_handle table, const int32_t *slots, uint64_t num_rows, const int32_t *pages,
                                   const int64_t *offsets);

/*
 * Move rows. All or nothing; every other row becomes empty.
 *   old_to_new, count  new slot of each old one, or -1; every slot of the new batch once
 *   new_batch          0 .. max_batch
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_BUSY.
 */
PC_API pc_status pc_table_compact_rows(pc_handle table, const int32_t *old_to_new, uint64_t count, int32_t new_batch);

/*
 * Copy the changed rows to the device, in order on the stream.
 *   stream    cudaStream_t, 0 being CUDA's legacy default stream; ignored without a GPU
 *   uploaded  out: 1 when something was enqueued, 0 when nothing had changed; may be null
 * Returns PC_OK, PC_ERROR_BUSY, PC_ERROR_WRONG_STATE (the stream is being captured),
 * PC_ERROR_INVALID_ARGUMENT (another context, or a stream that was destroyed),
 * PC_ERROR_DEVICE, PC_ERROR_INTERNAL (an invariant is broken).
 */
PC_API pc_status pc_table_upload(pc_handle table, uint64_t stream, uint32_t *uploaded);

/*
 * Read a row of the host side. Changes nothing.
 *   row  out: 2 * row_width entries, K ids then V ids
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_table_get_row(pc_handle table, int32_t slot, int32_t *row);

/* Shape and state of a table. */
typedef struct pc_table_info {
    uint32_t struct_size;    /* in: sizeof(pc_table_info) */
    int32_t max_batch;       /* rows */
    int32_t row_width;       /* pages per sequence */
    int32_t num_pages;       /* of the K pool */
    uint32_t is_identity;    /* 1: as pc_table_set_identity left it */
    uint32_t dirty_rows;     /* rows that the next upload will copy */
    uint64_t device_address; /* of the device copy, for kernels */
} pc_table_info;

/*
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED.
 */
PC_API pc_status pc_table_get_info(pc_handle table, pc_table_info *info);

/*
 * Check that every id is -1 or a page, and that no row has a hole.
 * Returns PC_OK, PC_ERROR_INTERNAL.
 */
PC_API pc_status pc_table_check(pc_handle table);

/* ---------------------------------------------- context cache: coordinator */

/*
 * A request's walk. A request is a batch of sequences that run together.
 *
 *   pc_context_begin               look up, pin, allocate; where each prefill starts
 *   pc_context_prepare_prefill     page tables, restored snapshots, lengths
 *     (prefill of every suffix)
 *   pc_context_capture_prefill     hybrid: snapshots at the end of the prompts
 *     (sample one token each; synchronise; EAGLE: enqueue the draft's prefill)
 *   pc_context_finalize_prefill    publish the prompts
 *   repeat
 *     pc_context_prepare_decode    pages for the tokens of the next step
 *       (decode step; synchronise)
 *     pc_context_complete_decode   accept tokens; publish sequences that are done
 *     pc_context_begin_compaction  when sequences left the batch:
 *       (move slot-addressed state of the runtime's own)
 *     pc_context_compact           close the gaps
 *   pc_context_finish              or pc_context_abandon, from any point
 *
 * Who does what. The library enqueues on the stream what it can: table rows,
 * snapshots, the batch mapping. What belongs to the runtime comes back as work:
 * after a step function returned PC_OK with work.count > 0, carry the items out
 * in order on the request's stream, then call pc_context_report with the outcome.
 * Report may hand out more work. The step is complete when report, or the step
 * function itself, returns with work.count 0:
 *
 *   status = pc_context_prepare_prefill(context, request, &work);
 *   while (status == PC_OK && work.count > 0)
 *       status = pc_context_report(context, request, run(&work), &work);
 *
 * Until then every other step on the coordinator is PC_ERROR_BUSY, except
 * pc_context_abandon of this request.
 *
 * Errors of a step: PC_ERROR_INVALID_ARGUMENT, PC_ERROR_WRONG_STATE (not legal in
 * this phase, or the stream is being captured) and PC_ERROR_BUSY changed nothing.
 * After PC_ERROR_DEVICE, or the outcome PC_WORK_FAILED, the request is still there but
 * only finish and abandon are legal (a broken-off begin_compaction leaves nothing begun;
 * a broken-off finish can be repeated). After PC_POISONED the request is gone, its pages
 * stay out of use until pc_context_shutdown, and the coordinator admits no other.
 *
 * Every function of this section can return PC_ERROR_BAD_HANDLE and
 * PC_ERROR_INTERNAL.
 */

/* Element types. */
enum {
    PC_TYPE_FP16 = 0, /* 2 bytes */
    PC_TYPE_BF16 = 1, /* 2 bytes */
    PC_TYPE_FP32 = 2, /* 4 bytes */
    PC_TYPE_FP8 = 3,  /* 1 byte */
    PC_TYPE_INT8 = 4  /* 1 byte */
};

/* One attention layer. A page is [tokens_per_page][kv_heads][head_dim] elements. */
typedef struct pc_attention_layer {
    uint64_t k_address; /* of K page 0; the pages lie one after the other */
    uint64_t v_address; /* of V page 0: directly after the last K page; 0: take it as such */
    int32_t kv_heads;   /* >= 1 */
    int32_t head_dim;   /* >= 1 */
    uint32_t type;      /* PC_TYPE_FP16 .. */
    uint32_t reserved0; /* 0 */
} pc_attention_layer;

/* One recurrent layer. A slot is [heads][head_dim][state_size] elements of state
 * and [conv_dim][conv_kernel] elements of convolution state; the slots lie one
 * after the other. All layers of a model have the same shape. */
typedef struct pc_recurrent_layer {
    uint64_t state_address; /* of the state of slot 0 */
    uint64_t conv_address;  /* of the convolution state of slot 0 */
    int32_t heads;          /* >= 1 */
    int32_t head_dim;       /* >= 1 */
    int32_t state_size;     /* elements per head and channel, >= 1 */
    uint32_t state_type;    /* PC_TYPE_FP16 .. */
    int32_t conv_dim;       /* channels, >= 1 */
    int32_t conv_kernel;    /* elements per channel, >= 1 */
    uint32_t conv_type;     /* PC_TYPE_FP16 .. */
    uint32_t reserved0;     /* 0 */
} pc_recurrent_layer;

/* The physical cache of one model. */
typedef struct pc_cache_resources {
    pc_handle table;                     /* its page table, used by one coordinator at a time; 0: no attention */
    int32_t num_pages;                   /* K pages of the pool; equals the table's */
    int32_t max_batch;                   /* live slots; equals the table's rows */
    int32_t capacity_tokens;             /* of one slot: the table's row width * tokens_per_page */
    int32_t reserved0;                   /* 0 */
    const pc_attention_layer *attention; /* needed for hybrid only; else may be null */
    uint64_t num_attention;
    const pc_recurrent_layer *recurrent; /* hybrid kinds */
    uint64_t num_recurrent;
} pc_cache_resources;

typedef struct pc_context_options {
    uint32_t struct_size;     /* in: sizeof(pc_context_options) */
    uint32_t flags;           /* PC_ORIGINAL_RECENCY | PC_HOST_MEMORY | PC_SHORTEN_VICTIMS | PC_WEAK_HASH |
                                 PC_ZERO_ON_RELEASE */
    uint32_t kind;            /* PC_DEPLOY_VANILLA .. */
    int32_t tokens_per_page;  /* 0: 128 */
    int32_t max_batch;        /* of the deployment, >= 1 */
    int32_t draft_max_batch;  /* EAGLE; else 0 */
    int32_t max_records;      /* 0: 1024; -1: retain none */
    int32_t max_requests;     /* live and quarantined requests at most; 0: 1 */
    int32_t verify_size;      /* EAGLE: tokens that the base model verifies in a round; else 0 */
    int32_t drafting_step;    /* EAGLE: draft rounds; else 0 */
    int32_t drafting_top_k;   /* EAGLE: candidates in each; else 0 */
    int32_t future_tokens;    /* EAGLE: tokens after a position that its draft KV depends on; 0: 1. For drafts to
                                 come: checked, at most a page, and without effect in this version */
    int64_t recurrent_budget; /* bytes for recurrent snapshots; hybrid kinds: at least one */
    int64_t partial_budget;   /* bytes for partial pages; hybrid: at least one */
    uint64_t stream;          /* cudaStream_t that orders all device work, 0 being CUDA's legacy default
                                 stream; any number without a GPU. With CU_STREAM_PER_THREAD the thread
                                 of the first step makes all, and waits, while a request is live */
    pc_cache_resources base;
    pc_cache_resources draft; /* EAGLE; else all zero */
    uint64_t reserved[4];
    uint32_t tenant_quota; /* see pc_manager_options */
    uint32_t reserved1;    /* 0 */
} pc_context_options;

/* What a decoder layer keeps between steps. */
enum {
    PC_LAYER_STATELESS = 0,      /* nothing */
    PC_LAYER_ATTENTION = 1,      /* K and V of every token */
    PC_LAYER_SLIDING_WINDOW = 2, /* K and V of the last tokens; its pages are kept like those of attention */
    PC_LAYER_RECURRENT = 3       /* one state of fixed size */
};

/* Speculative decoding of a deployment. */
enum {
    PC_SPECULATIVE_NONE = 0,
    PC_SPECULATIVE_EAGLE = 1,
    PC_SPECULATIVE_OTHER = 2 /* any other: not served */
};

/* One network, as its engine states it. Addresses of layers are not looked at. */
typedef struct pc_model {
    int32_t max_batch;       /* sequences at once */
    int32_t capacity_tokens; /* of one sequence */
    int64_t num_pages;       /* of the KV pool */
    const uint32_t *layers;  /* PC_LAYER_STATELESS .. of each decoder layer */
    uint64_t num_layers;
    const pc_attention_layer *attention; /* one for each attention layer */
    uint64_t num_attention;
    const int32_t *kv_donors;            /* null, or for each attention layer the one whose KV it reads, -1: its own */
    uint64_t num_kv_donors;              /* num_attention, or 0 */
    const pc_recurrent_layer *recurrent; /* one for each recurrent layer */
    uint64_t num_recurrent;
    int32_t hidden_size;      /* elements */
    int32_t base_hidden_size; /* draft: width of the hidden states that feed it */
    uint32_t spec_base;       /* 1: built to be verified by speculation */
    uint32_t eagle;           /* draft: 1: an EAGLE draft */
} pc_model;

typedef struct pc_deployment {
    uint32_t struct_size;               /* in: sizeof(pc_deployment) */
    uint32_t diffusion_backbone;        /* 0 or 1 */
    uint32_t vision_bidirectional;      /* 0 or 1 */
    uint32_t speculative;               /* PC_SPECULATIVE_NONE .. */
    int32_t tokens_per_page;            /* 0: 128 */
    int32_t verify_size;                /* with speculation; else the rest is zero or null */
    int32_t drafting_step;              /* draft rounds */
    int32_t drafting_top_k;             /* candidates in each */
    const int32_t *conditioning_layers; /* not null with speculation: decoder layers that feed the draft */
    uint64_t num_conditioning_layers;
    const pc_model *base;
    const pc_model *draft; /* or null */
    uint64_t reserved[2];
} pc_deployment;

/*
 * The gate: whether this cache serves a deployment, and as what. Conservative:
 * what is not known to be right is refused.
 *   deployment  in
 *   kind        out: PC_DEPLOY_VANILLA ..
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED (the text says why).
 */
PC_API pc_status pc_context_validate_deployment(const pc_deployment *deployment, uint32_t *kind);

/*
 * Create a coordinator. Enqueues nothing. Snapshot slots are budget / bytes of
 * one slot, rounded down, and are allocated here. The tables must have been made
 * with the same PC_HOST_MEMORY, and must outlive it.
 *   options  in
 *   context  out
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED, PC_ERROR_BUSY
 * (another coordinator uses a table), PC_ERROR_OUT_OF_MEMORY, PC_ERROR_DEVICE.
 */
PC_API pc_status pc_context_create(const pc_context_options *options, pc_handle *context);

/*
 * Free a coordinator without requests. Sets *context to 0. Null and a zero handle
 * are legal. Any thread, whatever CUDA context it has.
 * Returns PC_OK, PC_ERROR_BUSY (a request is live or quarantined: its memory may
 * still be written to); PC_ERROR_DEVICE when it is destroyed, but some of its memory
 * could not be given back.
 */
PC_API pc_status pc_context_destroy(pc_handle *context);

/*
 * The manager inside: for queries, pc_manager_invalidate and pc_manager_flush.
 * Lives as long as the coordinator; must not be destroyed.
 *   manager  out
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_context_manager(pc_handle context, pc_handle *manager);

/* A batch of sequences to admit. The arrays of all sequences lie one after the
 * other; offsets have num_sequences + 1 entries, begin with 0 and never fall. */
typedef struct pc_admission {
    uint32_t struct_size;         /* in: sizeof(pc_admission) */
    uint32_t num_sequences;       /* 1 .. max_batch */
    uint32_t execution;           /* PC_EXECUTE_VANILLA, PC_EXECUTE_EAGLE */
    uint32_t lookup;              /* PC_LOOKUP_USE_CACHE, PC_LOOKUP_BYPASS (neither looks up nor publishes) */
    uint32_t commit;              /* PC_COMMIT_INCLUDING_GENERATED, PC_COMMIT_PREFILL_ONLY */
    uint32_t reserved0;           /* 0 */
    uint64_t stream;              /* must be the stream of the coordinator */
    const int32_t *tokens;        /* whole prompts; none is empty */
    const int64_t *token_offsets; /* in tokens */
    const pc_hash128 *media;      /* null: text only; see pc_sequence */
    const int64_t *media_offsets; /* a sequence has no digest, or one per token; null with media */
    const pc_extras *extras;      /* null, or num_sequences */
    const pc_media_span *spans;   /* null, or the spans of all sequences */
    const int64_t *span_offsets;  /* null with spans */
    const int32_t *slots;         /* resident batch slot of each; null: 0, 1, 2, ... */
    uint64_t reserved[4];
} pc_admission;

/* How one admitted sequence begins. */
typedef struct pc_sequence_start {
    int32_t prefill_start; /* first token to compute: the tokens before it are reused */
    int32_t matched;       /* tokens found, before a page is dropped */
    uint32_t kind;         /* PC_PLAN_STANDARD .. */
    uint32_t reason;       /* PC_REASON_NONE .. */
    uint32_t forced_cold;  /* 1: capacity was short beside the cached pages; began without reuse */
    int32_t skipped_media; /* media positions before prefill_start: skip as many encoder outputs */
} pc_sequence_start;

/*
 * Admit a batch. All or nothing, metrics included. Sequences of one batch do not
 * see each other's state. Enqueues nothing.
 *   admission  in
 *   starts     out, num_sequences entries
 *   request    out
 * Returns PC_OK, PC_REQUEST_FAILED (no capacity, or max_requests are live),
 * PC_POISONED, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED, PC_ERROR_WRONG_STATE
 * (another request's compaction is begun: after pc_context_compact). A poisoned
 * coordinator, or one whose requests are all live, says so whatever the batch is.
 * No capacity is for now, and worth another try when a request has ended, unless one
 * sequence needs more pages than num_pages of a pool, or than its tenant may hold.
 */
PC_API pc_status pc_context_begin(pc_handle context, const pc_admission *admission, pc_sequence_start *starts,
                                  pc_handle *request);

/* What the runtime has to do. */
enum {
    PC_WORK_SYNCHRONIZE = 1,   /* wait until everything enqueued on the stream is done */
    PC_WORK_RESET_LENGTHS = 2, /* set the device length of slot slots[i] to values[i], i < count (slots[i] is i
                                  unless the admission said otherwise); make count the active batch, when
                                  no other request is live: the slots of others stay active */
    PC_WORK_COMPACT_SLOTS = 3, /* move lengths, recurrent and convolution state: old slot i < count goes to
                                  values[i], or nowhere when that is -1. Survivors keep their order and only
                                  move down. device_values: the same numbers in device memory */
    PC_WORK_SET_BATCH = 4      /* make count the active batch */
};

typedef struct pc_work_item {
    uint32_t op;    /* PC_WORK_SYNCHRONIZE .. ; null and 0 where an op has no use for a field */
    uint32_t model; /* PC_BASE, PC_DRAFT: whose state */
    int32_t count;  /* see op */
    int32_t reserved0;
    const int32_t *values;  /* count numbers in pinned host memory of the library, unchanged until the
                               stream was synchronised and the next step began; null for other ops */
    const int32_t *slots;   /* PC_WORK_RESET_LENGTHS: the slot of each number, likewise; else null */
    uint64_t device_values; /* PC_WORK_COMPACT_SLOTS: the address given to begin_compaction; else 0 */
} pc_work_item;

#define PC_MAX_WORK 8

typedef struct pc_work {
    uint32_t struct_size; /* in: sizeof(pc_work) */
    uint32_t count;       /* out: items to carry out; 0: the step is complete */
    pc_work_item items[PC_MAX_WORK];
} pc_work;

enum {
    PC_WORK_DONE = 0,       /* every item was carried out */
    PC_WORK_FAILED = 1,     /* an item could not be enqueued, or a synchronisation could not be tried */
    PC_WORK_SYNC_FAILED = 2 /* the synchronisation failed: the device state is unknown */
};

/*
 * Outcome of the work that the last step function or report handed out.
 *   outcome  PC_WORK_DONE .. ; after PC_WORK_FAILED the step is broken off
 *   work     out: more items, or count 0
 * Returns what the step function can return; PC_ERROR_WRONG_STATE when no report is
 * due.
 */
PC_API pc_status pc_context_report(pc_handle context, pc_handle request, uint32_t outcome, pc_work *work);

/*
 * Bind every row, restore snapshots, reset lengths to the reuse boundaries.
 * Legal once, after begin.
 *   work  out: RESET_LENGTHS for each model
 * Returns PC_OK, PC_ERROR_WRONG_STATE, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_DEVICE.
 */
PC_API pc_status pc_context_prepare_prefill(pc_handle context, pc_handle request, pc_work *work);

/*
 * Hybrid kinds: reserve snapshots and enqueue their capture, after the prefill
 * and before its synchronisation. A sequence for which no slot is free goes on
 * without. Other kinds: does nothing.
 *   work  out: none
 * Returns as pc_context_prepare_prefill.
 */
PC_API pc_status pc_context_capture_prefill(pc_handle context, pc_handle request, pc_work *work);

/* What one step did to each sequence, in the order of the batch. Token arrays of
 * all sequences lie one after the other. */
typedef struct pc_advance {
    uint32_t struct_size;         /* in: sizeof(pc_advance) */
    uint32_t num_sequences;       /* the active batch */
    const int32_t *tokens;        /* accepted tokens */
    const int64_t *token_offsets; /* num_sequences + 1 entries */
    const int32_t *committed;     /* tokens of each sequence whose KV is in the base cache */
    const int32_t *common;        /* EAGLE: in both caches; else null */
    const int32_t *publish; /* complete_decode: places in the batch that are done and may be published; else null */
    uint64_t num_publish;
    uint64_t reserved[2];
} pc_advance;

/*
 * After the prefill was synchronised: take the first sampled token of each
 * sequence and publish the prompts. committed is the length of the prompt. EAGLE:
 * common equals committed, and the prompts are published by the next step.
 *   advance  in
 *   work     out: none
 * Returns as pc_context_prepare_prefill.
 */
PC_API pc_status pc_context_finalize_prefill(pc_handle context, pc_handle request, const pc_advance *advance,
                                             pc_work *work);

/*
 * Make room for the next step and upload the rows that grew.
 *   base_headroom, draft_headroom  tokens that the step may write beyond the committed ones;
 *                                  0: 1 and none, for EAGLE verify_size and drafting_step *
 *                                  drafting_top_k
 *   work                           out: none
 * Returns PC_OK, PC_REQUEST_FAILED (no pages, or a row is full: only finish and
 * abandon are legal now), PC_ERROR_WRONG_STATE, PC_ERROR_INVALID_ARGUMENT,
 * PC_ERROR_DEVICE.
 */
PC_API pc_status pc_context_prepare_decode(pc_handle context, pc_handle request, int32_t base_headroom,
                                           int32_t draft_headroom, pc_work *work);

/*
 * After the step was synchronised: take the accepted tokens (vanilla: one each;
 * EAGLE: one or more each), publish the slots that are done.
 *   advance  in
 *   work     out: SYNCHRONIZE when snapshots were captured (hybrid)
 * Returns PC_OK, PC_POISONED, PC_ERROR_WRONG_STATE, PC_ERROR_INVALID_ARGUMENT,
 * PC_ERROR_DEVICE.
 */
PC_API pc_status pc_context_complete_decode(pc_handle context, pc_handle request, const pc_advance *advance,
                                            pc_work *work);

/*
 * Validate the mapping and upload it. Survivors keep their order. Only for the one
 * live request, in slots 0, 1, 2, ... : state moves in place.
 *   old_to_new, count  new slot of each active one, or -1; new slots appear in order 0, 1, 2, ...
 *   new_batch          survivors
 *   device_mapping     address of `count` int32 that receive the mapping; must stay
 *                      unchanged until pc_context_compact; 0: not wanted
 *   work               out: SYNCHRONIZE when a draft prefill is still running (EAGLE)
 * Returns as pc_context_complete_decode.
 */
PC_API pc_status pc_context_begin_compaction(pc_handle context, pc_handle request, const int32_t *old_to_new,
                                             uint64_t count, int32_t new_batch, uint64_t device_mapping, pc_work *work);

/*
 * Move table rows, let go of the sequences that left. KV pages are not copied.
 *   work  out: COMPACT_SLOTS for each model, SYNCHRONIZE; then SET_BATCH for each model
 * Returns as pc_context_complete_decode.
 */
PC_API pc_status pc_context_compact(pc_handle context, pc_handle request, pc_work *work);

/*
 * Carry out PC_WORK_COMPACT_SLOTS with ordered copies on the coordinator's stream,
 * for runtimes without a kernel of their own: moves the recurrent and convolution
 * state of the layers given at creation (PC_BASE), and an array of int32 lengths.
 *   model              PC_BASE, PC_DRAFT
 *   old_to_new, count  values and count of the work item
 *   lengths            address of max_batch int32; 0: none
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_WRONG_STATE (the stream is being
 * captured), PC_ERROR_DEVICE: some slots may have moved, so do not repeat it, but
 * report PC_WORK_FAILED.
 */
PC_API pc_status pc_context_move_slots(pc_handle context, uint32_t model, const int32_t *old_to_new, uint64_t count,
                                       uint64_t lengths);

/*
 * End a request normally, in any phase. The handle is stale once the step is
 * complete. A zero handle is legal. The table rows of its slots stay as they are until
 * another request has these slots: no kernel may write through them, since the pages
 * may be somebody else's by then. The same holds for pc_context_abandon.
 *   work  out: SYNCHRONIZE when work may be in flight
 * Returns PC_OK, PC_POISONED, PC_ERROR_BUSY (a report is due).
 */
PC_API pc_status pc_context_finish(pc_handle context, pc_handle request, pc_work *work);

/*
 * End a request abnormally: publishes nothing more. Legal at any time, but while the
 * report of another request is due. The handle is stale afterwards. A zero handle is
 * legal.
 *   drained  1: the caller synchronised the stream successfully, or
 *            pc_context_get_request says that nothing is pending; 0: it could not.
 *            With 0 and work pending the request is quarantined.
 * Returns PC_OK (released), PC_POISONED (quarantined), PC_ERROR_INVALID_ARGUMENT,
 * PC_ERROR_BUSY.
 */
PC_API pc_status pc_context_abandon(pc_handle context, pc_handle request, uint32_t drained);

/*
 * Before the caches are freed: release what was quarantined. Repeatable; a
 * healthy coordinator goes on working afterwards, a poisoned one stays poisoned.
 *   drained  1: the caller synchronised the stream successfully after the request
 *            was quarantined; 0: it did not
 * Returns PC_OK, PC_POISONED (quarantined and not drained: synchronise and call
 * again with 1), PC_REQUEST_FAILED (a request is live), PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_context_shutdown(pc_handle context, uint32_t drained);

/*
 * Wait until everything enqueued on the coordinator's stream is done: the way to
 * carry out PC_WORK_SYNCHRONIZE for hosts without a CUDA runtime. Without a GPU
 * returns at once.
 * Any thread, whatever CUDA context it has.
 * Returns PC_OK, PC_ERROR_DEVICE (report PC_WORK_SYNC_FAILED); PC_ERROR_WRONG_STATE (the
 * stream is being captured) and PC_ERROR_INVALID_ARGUMENT (CU_STREAM_PER_THREAD of
 * another thread, or the stream was destroyed): not tried, report PC_WORK_FAILED.
 */
PC_API pc_status pc_context_synchronize(pc_handle context);

/* State of a request. */
typedef struct pc_request_info {
    uint32_t struct_size;     /* in: sizeof(pc_request_info) */
    uint32_t phase;           /* PC_PHASE_ADMITTED .. */
    uint32_t pending;         /* 1: device work may be in flight; drain before letting go */
    uint32_t awaiting_draft;  /* 1: EAGLE: prompts frozen, not published yet */
    uint32_t report_due;      /* 1: pc_context_report is due */
    uint32_t execution;       /* PC_EXECUTE_VANILLA .. */
    uint32_t num_sequences;   /* the active batch */
    int32_t compaction_batch; /* new batch between begin_compaction and compact; else -1 */
} pc_request_info;

/*
 * Changes nothing.
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED.
 */
PC_API pc_status pc_context_get_request(pc_handle context, pc_handle request, pc_request_info *info);

/* State of one sequence. */
typedef struct pc_sequence_info {
    uint32_t struct_size;     /* in: sizeof(pc_sequence_info) */
    int32_t slot;             /* resident batch slot */
    int32_t tokens;           /* history: prompt and accepted tokens */
    int32_t prefill_start;    /* tokens reused at the beginning */
    int32_t committed;        /* tokens whose KV is in the base cache */
    int32_t common;           /* EAGLE: tokens whose KV is in both caches */
    int32_t published_blocks; /* full blocks of it that were published */
    int32_t published_length; /* hybrid: longest snapshot that was published */
    int32_t frozen_length;    /* EAGLE: prompt that awaits publication; -1: none */
    uint32_t staged;          /* 1: hybrid: a captured snapshot awaits publication */
    int32_t base_pages;       /* pages of its lease */
    int32_t draft_pages;      /* EAGLE: the same of the draft model */
    uint32_t reserved0;
} pc_sequence_info;

/*
 * Changes nothing.
 *   index  0 .. num_sequences - 1
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED.
 */
PC_API pc_status pc_context_get_sequence(pc_handle context, pc_handle request, uint32_t index, pc_sequence_info *info);

/*
 * Pages of a sequence, as pc_manager_lease_pages. Changes nothing.
 */
PC_API pc_status pc_context_sequence_pages(pc_handle context, pc_handle request, uint32_t index, uint32_t model,
                                           uint64_t first, int32_t *pages, uint64_t space, uint64_t *num_pages);

/*
 * Token history of a sequence. Changes nothing.
 *   first          token to begin with
 *   tokens, space  out: at most `space` tokens from there on; may be null when space is 0
 *   num_tokens     out: length of the history
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT.
 */
PC_API pc_status pc_context_sequence_tokens(pc_handle context, pc_handle request, uint32_t index, uint64_t first,
                                            int32_t *tokens, uint64_t space, uint64_t *num_tokens);

/* Counters since creation, and gauges (now). A batch that is refused counts
 * nothing but its planning time. */
typedef struct pc_context_metrics {
    uint32_t struct_size;                     /* in: sizeof(pc_context_metrics) */
    uint32_t poisoned;                        /* gauge: 1 for good after a failed synchronisation */
    uint64_t admitted_sequences;              /* sequences of all admitted batches */
    uint64_t hit_sequences;                   /* matched > 0 */
    uint64_t media_aware_sequences;           /* with media digests */
    uint64_t lookup_bypass_sequences;         /* bypass policy, or forced cold */
    uint64_t forced_cold_sequences;           /* began without reuse: capacity was short beside the cached pages */
    uint64_t standard_plans;                  /* PC_PLAN_STANDARD; the three add up to admitted_sequences */
    uint64_t no_reusable_prefix_plans;        /* PC_PLAN_NO_REUSABLE_PREFIX */
    uint64_t full_input_rewind_plans;         /* PC_PLAN_FULL_INPUT_REWIND */
    uint64_t matched_tokens;                  /* tokens found, before a page is dropped: >= reused_tokens */
    uint64_t reused_tokens;                   /* tokens that were not computed */
    uint64_t skipped_media_positions;         /* media positions inside reused prefixes */
    uint64_t publication_attempts;            /* equals published_endpoints */
    uint64_t committed_publications;          /* new records and draft upgrades */
    uint64_t existing_publications;           /* PC_EXISTING_RECORD */
    uint64_t published_endpoints;             /* committed + existing */
    uint64_t hybrid_restores;                 /* sequences that began from a snapshot */
    uint64_t hybrid_snapshot_pressure_skips;  /* a capture was skipped: no slot */
    uint64_t hybrid_capture_synchronizations; /* decode ends that needed a synchronisation */
    uint64_t spec_full_page_replays;          /* PC_REPLAY_FULL_PAGE */
    uint64_t spec_pair_publications;          /* publications of base and draft pages */
    uint64_t planning_nanoseconds;            /* time of pc_context_begin, refused batches included */
    uint64_t quarantined_requests;            /* so far */
    uint64_t active_requests;                 /* gauge: live and quarantined */
    uint64_t active_requests_peak;            /* most at once */
    uint64_t uploaded_bytes;                  /* page table rows */
    uint64_t captured_bytes;                  /* live state to snapshots */
    uint64_t restored_bytes;                  /* snapshots to live state */
    uint64_t moved_bytes;                     /* pc_context_move_slots */
    uint64_t upload_waits;                    /* uploads that followed another one: for its copy to be done */
    uint64_t upload_wait_nanoseconds;         /* time of those waits */
    uint64_t synchronizations;                /* pc_context_synchronize */
    uint64_t synchronization_nanoseconds;     /* time of those calls */
    uint64_t pinned_bytes;                    /* gauge: page-locked host memory, tables included */
    uint64_t snapshot_bytes;                  /* gauge: memory of the device */
} pc_context_metrics;

/*
 * Pools and evictions: pc_manager_get_stats of pc_context_manager.
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_UNSUPPORTED.
 */
PC_API pc_status pc_context_get_metrics(pc_handle context, pc_context_metrics *metrics);

/* ------------------------------------------------------------------ metrics */

/* A label that the host adds to samples. Both UTF-8, terminated. */
typedef struct pc_label {
    const char *name;  /* [a-zA-Z_][a-zA-Z0-9_]*, not one of the library's own */
    const char *value; /* anything; it is escaped */
} pc_label;

/* A cache whose metrics are wanted. */
typedef struct pc_metrics_source {
    pc_handle cache;        /* an omni cache, a coordinator (its manager included), or a manager */
    const pc_label *labels; /* may be null when num_labels is 0 */
    uint64_t num_labels;
} pc_metrics_source;

/*
 * The statistics of caches and of the library as one page in the Prometheus text
 * format, version 0.0.4. docs/metrics.md explains each metric. Slow enough for a
 * scrape and no more; changes nothing.
 *   sources, num_sources  caches; two of one kind must differ in a label. May be none
 *   text, space           out: at most space - 1 bytes and a zero; may be null when space is 0
 *   size                  out: bytes of the whole page without the zero; may be more
 *                         by the next call
 * Returns PC_OK, PC_ERROR_INVALID_ARGUMENT, PC_ERROR_BAD_HANDLE.
 */
PC_API pc_status pc_metrics_text(const pc_metrics_source *sources, uint64_t num_sources, char *text, uint64_t space,
                                 uint64_t *size);

/* ----------------------------------------------------------- function table */

/*
 * Every function above, for hosts that dlopen the library: one dlsym of
 * pc_get_api gives all. The table of version N is a prefix of version N + 1.
 */
typedef struct pc_api {
    uint32_t struct_size; /* bytes of the table this library has */
    uint32_t abi_version; /* as pc_abi_version */
    const char *(*version)(void);
    const char *(*status_name)(pc_status status);
    const char *(*last_error)(void);
    const char *(*kernel_name)(void);
    pc_status (*reserve_threads)(uint32_t threads);
    pc_status (*set_log)(pc_log_fn fn, void *user, int32_t level);
    pc_status (*buffer_acquire)(uint64_t bytes, void **data, pc_handle *buffer);
    pc_status (*buffer_release)(pc_handle buffer);
    pc_status (*buffer_get_stats)(pc_buffer_stats *stats);
    pc_status (*omni_create)(const pc_omni_options *options, pc_handle *cache);
    pc_status (*omni_shutdown)(pc_handle cache);
    pc_status (*omni_destroy)(pc_handle *cache);
    pc_status (*omni_set_policy)(pc_handle cache, uint32_t needs_hidden);
    pc_status (*omni_open_key)(pc_handle cache, const char *name, size_t name_size, uint64_t row_bytes,
                               uint32_t type_tag, uint32_t schedule, uint32_t *key);
    pc_status (*omni_step_begin)(pc_handle cache, const uint64_t *finished, size_t num_finished,
                                 const pc_omni_new_request *arrivals, size_t num_arrivals, uint8_t *hit_accepted);
    pc_status (*omni_save)(pc_handle cache, pc_omni_save_args *args);
    pc_status (*omni_materialize)(pc_handle cache, uint64_t step, const pc_omni_read *reads, size_t num_reads);
    pc_status (*omni_discard)(pc_handle cache, uint64_t step);
    pc_status (*omni_get_stats)(pc_handle cache, pc_omni_stats *stats);
    pc_status (*omni_inspect)(pc_handle cache, uint32_t key, const int64_t *slots, size_t num_slots,
                              pc_omni_slot_state *states, void *rows, uint64_t rows_bytes);
    pc_status (*omni_check)(pc_handle cache);
    pc_status (*omni_fail_write)(pc_handle cache, uint64_t nth);
    pc_status (*digest_sequence)(const pc_sequence *sequence, int32_t tokens_per_page, pc_hash128 *digests,
                                 uint64_t num_digests, pc_hash128 *prefix);
    pc_status (*digest_bytes)(const void *data, uint64_t size, pc_hash128 *digest);
    pc_status (*manager_create)(const pc_manager_options *options, pc_handle *manager);
    pc_status (*manager_destroy)(pc_handle *manager);
    pc_status (*manager_acquire)(pc_handle manager, uint32_t mode, uint32_t lookup, const pc_sequence *sequence,
                                 pc_plan *plan, int32_t *base_pages, uint64_t num_base, int32_t *draft_pages,
                                 uint64_t num_draft, pc_handle *lease);
    pc_status (*manager_append)(pc_handle manager, pc_handle lease, const int32_t *tokens, uint64_t num_tokens);
    pc_status (*manager_grow)(pc_handle manager, pc_handle lease, int32_t base, int32_t draft, int32_t *base_pages,
                              int32_t *draft_pages);
    pc_status (*manager_publish)(pc_handle manager, pc_handle lease, int64_t resident, pc_publication *publication);
    pc_status (*manager_advance)(pc_handle manager, pc_handle lease, const int32_t *tokens, uint64_t num_tokens,
                                 int64_t resident, int32_t base, int32_t draft, int32_t *base_pages,
                                 int32_t *draft_pages, pc_publication *publication);
    pc_status (*manager_publish_keys)(pc_handle manager, pc_handle lease, uint64_t first, const pc_hash128 *keys,
                                      uint64_t num_keys, int64_t resident, pc_publication *publication);
    pc_status (*manager_reserve)(pc_handle manager, pc_handle lease, uint32_t need_partial, int32_t *recurrent_slot,
                                 int32_t *partial_slot);
    pc_status (*manager_publish_hybrid)(pc_handle manager, pc_handle lease, int64_t length, int32_t recurrent_slot,
                                        int32_t partial_slot, pc_publication *publication);
    pc_status (*manager_publish_hybrid_keys)(pc_handle manager, pc_handle lease, uint64_t first, const pc_hash128 *keys,
                                             uint64_t num_keys, const pc_checkpoint *checkpoint, int32_t recurrent_slot,
                                             int32_t partial_slot, pc_publication *publication);
    pc_status (*manager_retire)(pc_handle manager, pc_handle lease, int32_t recurrent_slot, int32_t partial_slot);
    pc_status (*manager_release_restored)(pc_handle manager, pc_handle lease);
    pc_status (*manager_lease_pages)(pc_handle manager, pc_handle lease, uint32_t model, uint64_t first, int32_t *pages,
                                     uint64_t space, uint64_t *num_pages);
    pc_status (*manager_release)(pc_handle manager, pc_handle *lease);
    pc_status (*manager_lookup)(pc_handle manager, uint32_t mode, const pc_sequence *sequence, pc_plan *plan);
    pc_status (*manager_invalidate)(pc_handle manager, const pc_hash128 *adapter, const uint64_t *generation,
                                    uint64_t *removed);
    pc_status (*manager_flush)(pc_handle manager, uint64_t *removed);
    pc_status (*manager_evict)(pc_handle manager, uint64_t record);
    pc_status (*manager_records)(pc_handle manager, pc_record *records, uint64_t space, uint64_t *num_records);
    pc_status (*manager_record_pages)(pc_handle manager, uint64_t record, uint32_t model, uint64_t first,
                                      int32_t *pages, uint64_t space, uint64_t *num_pages);
    pc_status (*manager_references)(pc_handle manager, uint32_t resource, uint64_t first, int32_t *active,
                                    int32_t *cached, uint64_t count);
    pc_status (*manager_get_stats)(pc_handle manager, pc_manager_stats *stats);
    pc_status (*manager_check)(pc_handle manager);
    pc_status (*manager_dump)(pc_handle manager, char *text, uint64_t space, uint64_t *size);
    pc_status (*table_create)(const pc_table_options *options, pc_handle *table);
    pc_status (*table_destroy)(pc_handle *table);
    pc_status (*table_set_identity)(pc_handle table);
    pc_status (*table_set_rows)(pc_handle table, const int32_t *slots, uint64_t num_rows, const int32_t *pages,
                                const int64_t *offsets);
    pc_status (*table_compact_rows)(pc_handle table, const int32_t *old_to_new, uint64_t count, int32_t new_batch);
    pc_status (*table_upload)(pc_handle table, uint64_t stream, uint32_t *uploaded);
    pc_status (*table_get_row)(pc_handle table, int32_t slot, int32_t *row);
    pc_status (*table_get_info)(pc_handle table, pc_table_info *info);
    pc_status (*table_check)(pc_handle table);
    pc_status (*context_validate_deployment)(const pc_deployment *deployment, uint32_t *kind);
    pc_status (*context_create)(const pc_context_options *options, pc_handle *context);
    pc_status (*context_destroy)(pc_handle *context);
    pc_status (*context_manager)(pc_handle context, pc_handle *manager);
    pc_status (*context_begin)(pc_handle context, const pc_admission *admission, pc_sequence_start *starts,
                               pc_handle *request);
    pc_status (*context_report)(pc_handle context, pc_handle request, uint32_t outcome, pc_work *work);
    pc_status (*context_prepare_prefill)(pc_handle context, pc_handle request, pc_work *work);
    pc_status (*context_capture_prefill)(pc_handle context, pc_handle request, pc_work *work);
    pc_status (*context_finalize_prefill)(pc_handle context, pc_handle request, const pc_advance *advance,
                                          pc_work *work);
    pc_status (*context_prepare_decode)(pc_handle context, pc_handle request, int32_t base_headroom,
                                        int32_t draft_headroom, pc_work *work);
    pc_status (*context_complete_decode)(pc_handle context, pc_handle request, const pc_advance *advance,
                                         pc_work *work);
    pc_status (*context_begin_compaction)(pc_handle context, pc_handle request, const int32_t *old_to_new,
                                          uint64_t count, int32_t new_batch, uint64_t device_mapping, pc_work *work);
    pc_status (*context_compact)(pc_handle context, pc_handle request, pc_work *work);
    pc_status (*context_move_slots)(pc_handle context, uint32_t model, const int32_t *old_to_new, uint64_t count,
                                    uint64_t lengths);
    pc_status (*context_finish)(pc_handle context, pc_handle request, pc_work *work);
    pc_status (*context_abandon)(pc_handle context, pc_handle request, uint32_t drained);
    pc_status (*context_shutdown)(pc_handle context, uint32_t drained);
    pc_status (*context_synchronize)(pc_handle context);
    pc_status (*context_get_request)(pc_handle context, pc_handle request, pc_request_info *info);
    pc_status (*context_get_sequence)(pc_handle context, pc_handle request, uint32_t index, pc_sequence_info *info);
    pc_status (*context_sequence_pages)(pc_handle context, pc_handle request, uint32_t index, uint32_t model,
                                        uint64_t first, int32_t *pages, uint64_t space, uint64_t *num_pages);
    pc_status (*context_sequence_tokens)(pc_handle context, pc_handle request, uint32_t index, uint64_t first,
                                         int32_t *tokens, uint64_t space, uint64_t *num_tokens);
    pc_status (*context_get_metrics)(pc_handle context, pc_context_metrics *metrics);
    /* from version 2 on */
    pc_status (*metrics_text)(const pc_metrics_source *sources, uint64_t num_sources, char *text, uint64_t space,
                              uint64_t *size);
    pc_status (*manager_tenants)(pc_handle manager, pc_tenant *tenants, uint64_t space, uint64_t *num_tenants);
    pc_status (*manager_set_quota)(pc_handle manager, const pc_hash128 *isolation, uint32_t quota);
} pc_api;

/*
 * The function table for hosts built against table version `version`.
 * Returns null when the library is older than that (pc_last_error says so).
 * Static; valid for the life of the process. The library cannot be unloaded:
 * open it with RTLD_NOW | RTLD_NODELETE.
 */
PC_API const pc_api *pc_get_api(uint32_t version);

#ifdef __cplusplus
}
#endif

#endif /* PREFIXCACHE_H */

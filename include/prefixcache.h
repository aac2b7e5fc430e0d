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
 * pointer that the caller has to free; pc_buffer_acquire is the one pair.
 *
 * Error rule: a function returns PC_OK, a small positive outcome, or a negative
 * error. After anything but PC_OK, pc_last_error() on the same thread says which
 * argument was wrong, the value it had and what was expected. All arguments are
 * checked before anything changes: a call that returns an error changed nothing,
 * unless its block says otherwise.
 *
 * Fork rule: in a child of fork every call returns PC_ERROR_FORKED. Start
 * workers with spawn, or load the library after the fork.
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
#define PC_ABI_VERSION 1u

/* ------------------------------------------------------------------ status */

typedef int32_t pc_status;

enum {
    PC_OK = 0,

    /* Outcomes that a runtime handles. */
    PC_REQUEST_FAILED = 1, /* context: no capacity now, or a request is already active */
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
 * Name of the row kernel in use: "generic", "sse2", "avx2" or "avx512". The
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

enum { PC_LOG_ERROR = 1, PC_LOG_WARNING = 2, PC_LOG_INFO = 3, PC_LOG_DEBUG = 4 };

/*
 * A log line. `text` is valid during the call. Called on whichever thread is in
 * the library, possibly several at once; must not call the library, must return.
 */
typedef void (*pc_log_fn)(void *user, int32_t level, const char *text);

/*
 * Install the log callback for the whole process; null removes it. Without one,
 * nothing is printed. After the call returns, the former callback may still be
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
    PC_OMNI_EAGER = 1u /* write rows on the calling thread; no background thread */
};

/* When the rows of a key reach the cache. */
enum {
    PC_OMNI_JOIN_NEXT_STEP = 0, /* with the step that computed them */
    PC_OMNI_JOIN_ON_FINISH = 1  /* when the request finishes, aborts, or memory presses */
};

typedef struct pc_omni_options {
    uint32_t struct_size; /* in: sizeof(pc_omni_options) */
    uint32_t flags;       /* PC_OMNI_EAGER or 0 */
    int64_t num_blocks;   /* blocks mirrored, >= 1 */
    int64_t block_size;   /* slots per block, >= 1; num_blocks * block_size <= 2^40 */
    int64_t staging_bytes;           /* cap on bytes not yet in the cache; 0: 512 MiB */
    int64_t staging_depth;           /* unconsumed steps at most, 1 .. 4096; 0: 4 */
    int64_t staging_capacity_tokens; /* rows of one step at most when staged; 0: 1024 */
    int64_t claim_timeout_ns;        /* bound of every wait; 0: 30 s; < 0: do not wait */
    int64_t copy_chunk_bytes;        /* piece of a deferred copy; 0: 16 MiB */
    uint64_t reserved[4];
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
 * pending, wakes every waiter with PC_ERROR_UNMATCH "shut down". Repeatable.
 * Returns PC_OK, PC_ERROR_BAD_HANDLE.
 */
PC_API pc_status pc_omni_shutdown(pc_handle cache);

/*
 * Shut down and free. Sets *cache to 0. Null and a zero handle are legal.
 * A call still running on another thread returns first.
 * Returns PC_OK, PC_ERROR_BAD_HANDLE.
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
 */
typedef struct pc_omni_rows {
    uint32_t key;        /* from pc_omni_open_key */
    uint32_t reserved0;  /* 0 */
    const void *rows;    /* num_tokens rows */
    int64_t row_stride;  /* bytes between rows, >= row_bytes */
    void *dst;           /* see above, or null */
    uint64_t dst_bytes;  /* bytes at dst: exactly (hits + tokens) * row_bytes */
} pc_omni_rows;

typedef struct pc_omni_save_args {
    uint32_t struct_size;  /* in: sizeof(pc_omni_save_args) */
    uint32_t flags;        /* 0 */
    uint64_t stream;       /* cudaStream_t of the producer when rows are on a device; else 0 */
    const uint64_t *requests; /* the batch, in the order of its rows */
    const int64_t *counts;    /* new rows of each request, >= 0 */
    uint64_t num_requests;
    const int64_t *slots;  /* slot of each new row, in order */
    int64_t num_slots;     /* must equal the sum of counts */
    const pc_omni_rows *rows; /* keys of this step, each once */
    uint64_t num_rows;
    uint64_t step;         /* out: step id, 1, 2, 3, ... */
    uint64_t reserved[4];
} pc_omni_save_args;

/*
 * Save a step. All or nothing: an error leaves no trace and uses no step id
 * (except that a failed write of earlier rows is sticky, see PC_ERROR_UNMATCH).
 * Slots of keys that this step does not carry become absent for their new owner.
 * Waits, bounded by the claim timeout, for the former step's writes, for memory
 * under staging_bytes and for a staging slot; never for this step's producer.
 * Returns PC_OK, PC_ERROR_BAD_HANDLE, PC_ERROR_INVALID_ARGUMENT,
 * PC_ERROR_UNSUPPORTED, PC_ERROR_UNMATCH ("slot mapping covers", "staging
 * capacity is", "write failed", "did not reach done", "shut down"),
 * PC_ERROR_STAGING_TIMEOUT ("unconsumed step contexts"), PC_ERROR_OUT_OF_MEMORY,
 * PC_ERROR_DEVICE.
 */
PC_API pc_status pc_omni_save(pc_handle cache, pc_omni_save_args *args);

/* One destination of pc_omni_materialize. */
typedef struct pc_omni_read {
    uint32_t key;
    uint32_t reserved0; /* 0 */
    int64_t first;      /* first request, as an index into the batch of the save */
    int64_t count;      /* requests first .. first + count - 1 */
    void *dst;          /* their hit rows and new rows, in the layout of pc_omni_rows */
    uint64_t dst_bytes; /* exactly the bytes of that layout */
} pc_omni_read;

/*
 * Consume a step and fill destinations: the hit rows of every request named, and
 * its new rows unless save already put them at a dst. With num_reads 0 the step
 * is consumed and failures are reported. The step id is used up even when an
 * error is returned (except PC_ERROR_BAD_HANDLE and an unknown step).
 * Returns PC_OK, PC_ERROR_BAD_HANDLE, PC_ERROR_INVALID_ARGUMENT,
 * PC_ERROR_UNMATCH ("step context N missing", "absent slots", "is not
 * readable", "reassigned", "write failed"), PC_ERROR_DEVICE.
 */
PC_API pc_status pc_omni_materialize(pc_handle cache, uint64_t step, const pc_omni_read *reads, size_t num_reads);

/*
 * Consume a step that nobody will read. Its rows reach the cache all the same.
 * Works after a sticky failure.
 * Returns PC_OK, PC_ERROR_BAD_HANDLE, PC_ERROR_UNMATCH ("step context N missing").
 */
PC_API pc_status pc_omni_discard(pc_handle cache, uint64_t step);

/* Counters since creation, and gauges (now). Bytes unless said otherwise. */
typedef struct pc_omni_stats {
    uint32_t struct_size; /* in: sizeof(pc_omni_stats) */
    uint32_t reserved0;
    uint64_t steps_saved;
    uint64_t steps_materialized;
    uint64_t steps_discarded;
    uint64_t rows_saved;          /* rows, over all keys */
    uint64_t saved_bytes;
    uint64_t hits;                /* hit spans opened */
    uint64_t hit_tokens;          /* tokens of these */
    uint64_t gathered_bytes;      /* prefix rows given out */
    uint64_t preserved_bytes;     /* rows copied aside because their slot was claimed */
    uint64_t absent_rows;         /* prefix rows that read zeros */
    uint64_t displaced_rows;      /* rows that lost their slot before they were written */
    uint64_t deferred_writes;     /* deferred writes finished */
    uint64_t flushes;             /* writes forced by staging_bytes */
    uint64_t staging_waits;       /* saves that waited for a staging slot */
    uint64_t failed_writes;
    uint64_t live_requests;       /* gauge */
    uint64_t unconsumed_steps;    /* gauge */
    uint64_t pending_writes;      /* gauge: writes not finished, deferred included */
    uint64_t pending_reads;       /* gauge: planned reads not finished */
    uint64_t staged_bytes;        /* gauge: charged to staging_bytes */
    uint64_t staged_bytes_peak;
    uint64_t reserved_bytes;      /* gauge: address space */
    uint64_t keys;                /* gauge: visible keys */
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
    uint32_t version; /* claims of this (slot, key), modulo 2^32 */
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

/* ----------------------------------------------------------- function table */

/*
 * Every function above, for hosts that dlopen the library: one dlsym of
 * pc_get_api gives all. The table of version N is a prefix of version N + 1.
 */
typedef struct pc_api {
    uint32_t struct_size; /* bytes of the table this library has */
    uint32_t abi_version;
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

/*
 * The public C functions that every host calls first: fork guard, error text,
 * log callback, version functions, and the function table.
 *
 * The error text hangs on a pthread key, not on a __thread variable: a library
 * with a large PT_TLS segment no longer loads once a host has used up the static
 * TLS reserve (importing torch does).
 */
#include "shim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"

#define STRINGIFY_(x) #x
#define STRINGIFY(x) STRINGIFY_(x)

/* ---------------------------------------------------------------- fork guard */

/* Go's other threads do not exist in a child of fork: the first call that needs
 * one would hang. Every call is refused there instead. */
atomic_int pcshim_forked;

static void in_child(void) { atomic_store(&pcshim_forked, 1); }

/* ---------------------------------------------------------------- error text */

typedef struct error_text {
    size_t capacity;
    char text[];
} error_text;

static pthread_key_t error_key;
static int error_key_made;

__attribute__((constructor)) static void load(void) {
    error_key_made = pthread_key_create(&error_key, free) == 0;
    pthread_atfork(NULL, NULL, in_child);
}

char *pcshim_error_room(size_t size) {
    if (!error_key_made) return NULL;
    error_text *e = pthread_getspecific(error_key);
    if (e == NULL || e->capacity < size + 1) {
        size_t capacity = size + 1 < 512 ? 512 : size + 1;
        error_text *grown = malloc(sizeof *grown + capacity);
        if (grown == NULL) {
            if (e) e->text[0] = 0;
            return NULL;
        }
        grown->capacity = capacity;
        free(e);
        e = grown;
        pthread_setspecific(error_key, e);
    }
    e->text[size] = 0;
    return e->text;
}

static void set_error(const char *text, size_t size) {
    char *room = pcshim_error_room(size);
    if (room) memcpy(room, text, size);
}

PC_API const char *pc_last_error(void) {
    error_text *e = error_key_made ? pthread_getspecific(error_key) : NULL;
    return e ? e->text : "";
}

void pcshim_clear_error(void) {
    error_text *e = error_key_made ? pthread_getspecific(error_key) : NULL;
    if (e) e->text[0] = 0;
}

pc_status pcshim_refuse(void) {
    static const char text[] =
        "the library was loaded before fork() and cannot run in the child: start the process with spawn "
        "(multiprocessing.set_start_method(\"spawn\")), or load the library after the fork";
    set_error(text, sizeof text - 1);
    return PC_ERROR_FORKED;
}

pc_status pcshim_enter(void) {
    if (pcshim_in_child()) return pcshim_refuse();
    pcshim_clear_error();
    return PC_OK;
}

/* ----------------------------------------------------------------------- log */

/* Callback and user pointer change together, so readers take both under a lock;
 * the level alone is read without one, because lines are rare and checks are not. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static pc_log_fn log_fn;
static void *log_user;
static atomic_int log_level;

int pcshim_log_wants(int32_t level) { return level <= atomic_load_explicit(&log_level, memory_order_relaxed); }

void pcshim_log(int32_t level, const char *text) {
    if (!pcshim_log_wants(level)) return;
    pthread_mutex_lock(&log_lock);
    pc_log_fn fn = log_fn;
    void *user = log_user;
    pthread_mutex_unlock(&log_lock);
    if (fn) fn(user, level, text);
}

PC_API pc_status pc_set_log(pc_log_fn fn, void *user, int32_t level) {
    pc_status entered = pcshim_enter();
    if (entered) return entered;
    if (fn && (level < PC_LOG_ERROR || level > PC_LOG_DEBUG)) {
        static const char text[] = "level: out of range, expected PC_LOG_ERROR (1) to PC_LOG_DEBUG (4)";
        set_error(text, sizeof text - 1);
        return PC_ERROR_INVALID_ARGUMENT;
    }
    pthread_mutex_lock(&log_lock);
    log_fn = fn;
    log_user = user;
    atomic_store(&log_level, fn ? level : 0);
    pthread_mutex_unlock(&log_lock);
    if (fn) pcgo_log_installed();
    return PC_OK;
}

/* ------------------------------------------------------------------- version */

PC_API const char *pc_version(void) {
    return STRINGIFY(PC_VERSION_MAJOR) "." STRINGIFY(PC_VERSION_MINOR) "." STRINGIFY(PC_VERSION_PATCH);
}

PC_API uint32_t pc_abi_version(void) { return PC_ABI_VERSION; }

PC_API const char *pc_status_name(pc_status status) {
    switch (status) {
#define NAME(s) \
    case s:     \
        return #s
        NAME(PC_OK);
        NAME(PC_REQUEST_FAILED);
        NAME(PC_POISONED);
        NAME(PC_KEY_MISMATCH);
        NAME(PC_NOT_FOUND);
        NAME(PC_ERROR_INVALID_ARGUMENT);
        NAME(PC_ERROR_BAD_HANDLE);
        NAME(PC_ERROR_WRONG_STATE);
        NAME(PC_ERROR_BUFFER_TOO_SMALL);
        NAME(PC_ERROR_UNSUPPORTED);
        NAME(PC_ERROR_UNMATCH);
        NAME(PC_ERROR_STAGING_TIMEOUT);
        NAME(PC_ERROR_INTERNAL);
        NAME(PC_ERROR_OUT_OF_MEMORY);
        NAME(PC_ERROR_DEVICE);
        NAME(PC_ERROR_FORKED);
        NAME(PC_ERROR_BUSY);
        NAME(PC_ERROR_CLOSED);
#undef NAME
        default:
            return "PC_UNKNOWN";
    }
}

PC_API const char *pc_kernel_name(void) { return pcgo_kernel_name(); }

/* ------------------------------------------------------------------ forwards */

PCSHIM_FORWARD(reserve_threads, (uint32_t threads), (threads))
PCSHIM_FORWARD(buffer_acquire, (uint64_t bytes, void **data, pc_handle *buffer), (bytes, data, buffer))
PCSHIM_FORWARD(buffer_release, (pc_handle buffer), (buffer))
PCSHIM_FORWARD(buffer_get_stats, (pc_buffer_stats * stats), (stats))

PCSHIM_CREATE(omni_create, (const pc_omni_options *options, pc_handle *cache), ((pc_omni_options *)options, cache))
PCSHIM_FORWARD(omni_shutdown, (pc_handle cache), (cache))
PCSHIM_FORWARD(omni_destroy, (pc_handle * cache), (cache))
PCSHIM_FORWARD(omni_set_policy, (pc_handle cache, uint32_t needs_hidden), (cache, needs_hidden))
PCSHIM_FORWARD(omni_open_key,
               (pc_handle cache, const char *name, size_t name_size, uint64_t row_bytes, uint32_t type_tag,
                uint32_t schedule, uint32_t *key),
               (cache, (char *)name, name_size, row_bytes, type_tag, schedule, key))
PCSHIM_FORWARD(omni_step_begin,
               (pc_handle cache, const uint64_t *finished, size_t num_finished, const pc_omni_new_request *arrivals,
                size_t num_arrivals, uint8_t *hit_accepted),
               (cache, (uint64_t *)finished, num_finished, (pc_omni_new_request *)arrivals, num_arrivals, hit_accepted))
PCSHIM_FORWARD(omni_save, (pc_handle cache, pc_omni_save_args *args), (cache, args))
PCSHIM_FORWARD(omni_materialize, (pc_handle cache, uint64_t step, const pc_omni_read *reads, size_t num_reads),
               (cache, step, (pc_omni_read *)reads, num_reads))
PCSHIM_FORWARD(omni_discard, (pc_handle cache, uint64_t step), (cache, step))
PCSHIM_FORWARD(omni_get_stats, (pc_handle cache, pc_omni_stats *stats), (cache, stats))
PCSHIM_FORWARD(omni_inspect,
               (pc_handle cache, uint32_t key, const int64_t *slots, size_t num_slots, pc_omni_slot_state *states,
                void *rows, uint64_t rows_bytes),
               (cache, key, (int64_t *)slots, num_slots, states, rows, rows_bytes))
PCSHIM_FORWARD(omni_check, (pc_handle cache), (cache))
PCSHIM_FORWARD(omni_fail_write, (pc_handle cache, uint64_t nth), (cache, nth))

PCSHIM_FORWARD(metrics_text,
               (const pc_metrics_source *sources, uint64_t num_sources, char *text, uint64_t space, uint64_t *size),
               ((pc_metrics_source *)sources, num_sources, text, space, size))

/* ------------------------------------------------------------- function table */

PC_API const pc_api *pc_get_api(uint32_t version) {
    static const pc_api table = {
        .struct_size = sizeof(pc_api),
        .abi_version = PC_ABI_VERSION,
        .version = pc_version,
        .status_name = pc_status_name,
        .last_error = pc_last_error,
        .kernel_name = pc_kernel_name,
        .reserve_threads = pc_reserve_threads,
        .set_log = pc_set_log,
        .buffer_acquire = pc_buffer_acquire,
        .buffer_release = pc_buffer_release,
        .buffer_get_stats = pc_buffer_get_stats,
        .omni_create = pc_omni_create,
        .omni_shutdown = pc_omni_shutdown,
        .omni_destroy = pc_omni_destroy,
        .omni_set_policy = pc_omni_set_policy,
        .omni_open_key = pc_omni_open_key,
        .omni_step_begin = pc_omni_step_begin,
        .omni_save = pc_omni_save,
        .omni_materialize = pc_omni_materialize,
        .omni_discard = pc_omni_discard,
        .omni_get_stats = pc_omni_get_stats,
        .omni_inspect = pc_omni_inspect,
        .omni_check = pc_omni_check,
        .omni_fail_write = pc_omni_fail_write,
        .digest_sequence = pc_digest_sequence,
        .digest_bytes = pc_digest_bytes,
        .manager_create = pc_manager_create,
        .manager_destroy = pc_manager_destroy,
        .manager_acquire = pc_manager_acquire,
        .manager_append = pc_manager_append,
        .manager_grow = pc_manager_grow,
        .manager_publish = pc_manager_publish,
        .manager_advance = pc_manager_advance,
        .manager_publish_keys = pc_manager_publish_keys,
        .manager_reserve = pc_manager_reserve,
        .manager_publish_hybrid = pc_manager_publish_hybrid,
        .manager_publish_hybrid_keys = pc_manager_publish_hybrid_keys,
        .manager_retire = pc_manager_retire,
        .manager_release_restored = pc_manager_release_restored,
        .manager_lease_pages = pc_manager_lease_pages,
        .manager_release = pc_manager_release,
        .manager_lookup = pc_manager_lookup,
        .manager_invalidate = pc_manager_invalidate,
        .manager_flush = pc_manager_flush,
        .manager_evict = pc_manager_evict,
        .manager_records = pc_manager_records,
        .manager_record_pages = pc_manager_record_pages,
        .manager_references = pc_manager_references,
        .manager_get_stats = pc_manager_get_stats,
        .manager_check = pc_manager_check,
        .manager_dump = pc_manager_dump,
        .table_create = pc_table_create,
        .table_destroy = pc_table_destroy,
        .table_set_identity = pc_table_set_identity,
        .table_set_rows = pc_table_set_rows,
        .table_compact_rows = pc_table_compact_rows,
        .table_upload = pc_table_upload,
        .table_get_row = pc_table_get_row,
        .table_get_info = pc_table_get_info,
        .table_check = pc_table_check,
        .context_validate_deployment = pc_context_validate_deployment,
        .context_create = pc_context_create,
        .context_destroy = pc_context_destroy,
        .context_manager = pc_context_manager,
        .context_begin = pc_context_begin,
        .context_report = pc_context_report,
        .context_prepare_prefill = pc_context_prepare_prefill,
        .context_capture_prefill = pc_context_capture_prefill,
        .context_finalize_prefill = pc_context_finalize_prefill,
        .context_prepare_decode = pc_context_prepare_decode,
        .context_complete_decode = pc_context_complete_decode,
        .context_begin_compaction = pc_context_begin_compaction,
        .context_compact = pc_context_compact,
        .context_move_slots = pc_context_move_slots,
        .context_finish = pc_context_finish,
        .context_abandon = pc_context_abandon,
        .context_shutdown = pc_context_shutdown,
        .context_synchronize = pc_context_synchronize,
        .context_get_request = pc_context_get_request,
        .context_get_sequence = pc_context_get_sequence,
        .context_sequence_pages = pc_context_sequence_pages,
        .context_sequence_tokens = pc_context_sequence_tokens,
        .context_get_metrics = pc_context_get_metrics,
        .metrics_text = pc_metrics_text,
        .manager_tenants = pc_manager_tenants,
        .manager_set_quota = pc_manager_set_quota,
    };
    if (version == 0 || version > PC_ABI_VERSION) {
        char text[160];
        int n = snprintf(text, sizeof text,
                         "version: %u, expected 1 to %u: this library has these function tables; a host that wants a "
                         "newer one needs a newer libprefixcache",
                         version, PC_ABI_VERSION);
        set_error(text, (size_t)n);
        return NULL;
    }
    return &table;
}

/* What the C shim and the Go exports share. Not installed. */
#ifndef PREFIXCACHE_CAPI_SHIM_H
#define PREFIXCACHE_CAPI_SHIM_H

#include <stdatomic.h>

#include "prefixcache.h"

/*
 * Room for the error text of the calling thread, of `size` bytes and an end that is there
 * already; NULL: none. Go fills it itself. A memcpy from Go's memory is a data race to a host
 * under ThreadSanitizer, which sees its library functions and nothing of what orders Go's threads.
 */
char *pcshim_error_room(size_t size);

/* Hand one line to the host's log callback, if it wants that level. */
void pcshim_log(int32_t level, const char *text);

/* 1 when the host wants lines of this level. */
int pcshim_log_wants(int32_t level);

/* 1 in a child of fork, where no call works. */
extern atomic_int pcshim_forked;
static inline int pcshim_in_child(void) { return atomic_load_explicit(&pcshim_forked, memory_order_relaxed); }

/* What a call returns there: PC_ERROR_FORKED, with its text. */
pc_status pcshim_refuse(void);

/* Makes the error text of the calling thread "". */
void pcshim_clear_error(void);

/* Entry of a public function: PC_OK, or PC_ERROR_FORKED in a child of fork. Clears the error text. */
pc_status pcshim_enter(void);

/*
 * A public function: checks the fork flag, calls the hidden Go export of the same
 * name, which sets the error text with every other status, and clears the text after
 * PC_OK: afterwards, because before it all arguments would have to be kept meanwhile.
 * Nothing else belongs here.
 */
#define PCSHIM_FORWARD(name, params, args)             \
    PC_API pc_status pc_##name params {                \
        if (pcshim_in_child()) return pcshim_refuse(); \
        pc_status status = pcgo_##name args;           \
        if (status == PC_OK) pcshim_clear_error();     \
        return status;                                 \
    }

/* Makes handlers of the host safe for threads inside the library: see signals.c. */
void pcshim_guard_signals(void);

/* PCSHIM_FORWARD for functions that make an object, which is seldom. */
#define PCSHIM_CREATE(name, params, args)   \
    PC_API pc_status pc_##name params {     \
        pc_status entered = pcshim_enter(); \
        if (entered) return entered;        \
        pcshim_guard_signals();             \
        return pcgo_##name args;            \
    }

#endif /* PREFIXCACHE_CAPI_SHIM_H */

/* What the C shim and the Go exports share. Not installed. */
#ifndef PREFIXCACHE_CAPI_SHIM_H
#define PREFIXCACHE_CAPI_SHIM_H

#include "prefixcache.h"

/* Set the error text of the calling thread; `text` need not be terminated. */
void pcshim_set_error(const char *text, size_t size);

/* Hand one line to the host's log callback, if it wants that level. */
void pcshim_log(int32_t level, const char *text);

/* 1 when the host wants lines of this level. */
int pcshim_log_wants(int32_t level);

/* Entry of a public function: PC_OK, or PC_ERROR_FORKED in a child of fork. Clears the error text. */
pc_status pcshim_enter(void);

/*
 * A public function: checks the fork flag, clears the error text, calls the
 * hidden Go export of the same name. Nothing else belongs here.
 */
#define PCSHIM_FORWARD(name, params, args)           \
    PC_API pc_status pc_##name params {              \
        pc_status entered = pcshim_enter();          \
        return entered ? entered : pcgo_##name args; \
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

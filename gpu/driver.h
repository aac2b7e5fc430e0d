/* driver.h - the driver calls that gorgonia.org/cu lacks, and the admission check.
 *
 * cu v0.9.6 has no pinned allocation or registration, no capture state, no context
 * of a stream, no stream-ordered allocation and no error names; its 2-D copy
 * dereferences a null array, its pointer attributes are broken, and its queries
 * allocate on every "not ready". Each function here is one crossing from Go. */
#ifndef PREFIXCACHE_GPU_DRIVER_H
#define PREFIXCACHE_GPU_DRIVER_H

#include <cuda.h>

/* Why gpu_admit refused. The CUresult of the call that failed is in the low 32
 * bits of the verdict, one of these in the next 8, the address' index in the 8 above,
 * one of GPU_CALL_ above those. */
enum {
    GPU_ADMITTED = 0,
    GPU_DRIVER_FAILED,     /* the check itself failed: CUresult says how */
    GPU_FOREIGN_THREAD,    /* another context is current on this thread */
    GPU_FOREIGN_STREAM,    /* the stream belongs to another context */
    GPU_CAPTURING,         /* the stream is being captured into a graph */
    GPU_NOT_DEVICE_MEMORY, /* address 0 or 1 is not device memory */
    GPU_FOREIGN_DEVICE,    /* address 0 or 1 is memory of another device */
    GPU_NO_STREAM          /* the stream was destroyed or never made, as far as the driver notices */
};

/* The driver call that said so. */
enum {
    GPU_CALL_GET_CURRENT = 0,
    GPU_CALL_SET_CURRENT,
    GPU_CALL_PUSH_CURRENT,
    GPU_CALL_STREAM_CONTEXT,
    GPU_CALL_IS_CAPTURING,
    GPU_CALL_POINTER
};

/* Checks one enqueue: this thread's context is ctx (an unset one is set), stream
 * belongs to it and is not being captured, and a and b, unless zero, are memory
 * of device ordinal. */
unsigned long long gpu_admit(uintptr_t ctx, int ordinal, uintptr_t stream, uintptr_t a, uintptr_t b);

/* For gpu_admit: addresses alone. */
#define GPU_UNNAMED_STREAM ((uintptr_t)-1)

/* The thread's part of gpu_admit alone. */
unsigned long long gpu_admit_thread(uintptr_t ctx);

/* The part of gpu_admit that holds for good: the thread's context, and that of stream. */
unsigned long long gpu_admit_contexts(uintptr_t ctx, uintptr_t stream);

int gpu_init(void);
const char *gpu_driver_path(void);
const char *gpu_driver_reason(void);
const char *gpu_error_name(int code);
const char *gpu_error_reason(int code);

int gpu_stream_context(uintptr_t stream, uintptr_t *ctx);
int gpu_stream_capturing(uintptr_t stream, int *status);
/* Polls and waits, and below whatever allocates, pins or gives back. The driver counts
 * them as unsafe while any thread captures in global mode, fails them, and spoils that
 * capture; these switch the calling thread to relaxed mode for the moment, which is
 * what it is for: they put nothing into a graph. */
/* A stream that is captured is not asked: refused is gpu_admit's verdict then. On the
 * implicit streams the current context decides which stream is meant, so ctx is
 * current for the moment. */
int gpu_stream_query(uintptr_t ctx, int ordinal, uintptr_t stream, unsigned long long *refused);
int gpu_stream_wait(uintptr_t ctx, int ordinal, uintptr_t stream, unsigned long long *refused);
/* An event knows its context, but a thread without any may not ask. */
int gpu_event_query(uintptr_t ctx, uintptr_t event);
int gpu_event_wait(uintptr_t ctx, uintptr_t event);
/* Relaxed mode for good, for a thread of ours. */
int gpu_relax_capture(void);
/* Makes the context current and the mode relaxed until gpu_leave, which gets mode back. */
int gpu_enter(uintptr_t ctx, int *mode);
void gpu_leave(int mode);

int gpu_host_alloc(void **p, size_t bytes);
int gpu_host_register(void *p, size_t bytes);
int gpu_host_unregister(void *p);
int gpu_host_free(void *p);

int gpu_alloc(size_t bytes, uintptr_t *address);
int gpu_free(uintptr_t address);

int gpu_pool_create(int ordinal, uintptr_t *pool);
int gpu_pool_destroy(uintptr_t pool);
int gpu_pool_alloc(uintptr_t pool, uintptr_t stream, size_t bytes, uintptr_t *address);
int gpu_free_async(uintptr_t stream, uintptr_t address);

/* dst_host and src_host null: the device address is used. */
int gpu_copy_rows(uintptr_t stream, void *dst_host, uintptr_t dst, size_t dst_pitch, const void *src_host,
                  uintptr_t src, size_t src_pitch, size_t width, size_t height);

typedef struct gpu_pointer {
    unsigned int type; /* CUmemorytype, 0 when unknown */
    int managed;
    int ordinal;
    uintptr_t base;
    size_t bytes;
} gpu_pointer;
int gpu_pointer_info(uintptr_t address, gpu_pointer *out);

#endif

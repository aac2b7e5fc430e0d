#include "driver.h"

/* From libcuda.a (cuda/stub/loader.h); not in cuda.h because it is no driver call. */
extern CUresult cutramp_init(void);
extern const char *cutramp_path(void);
extern const char *cutramp_reason(void);

#define STREAM(s) ((CUstream)(s))

static unsigned long long verdict(int why, CUresult code, int index) {
    return (unsigned long long)(unsigned int)code | (unsigned long long)why << 32 | (unsigned long long)index << 40;
}

static unsigned long long failed(int call, CUresult code, int index) {
    return verdict(GPU_DRIVER_FAILED, code, index) | (unsigned long long)call << 48;
}

/* The driver knows no stream of that number, or something is wrong with the driver. */
static unsigned long long failed_stream(int call, CUresult code) {
    int why = code == CUDA_ERROR_INVALID_HANDLE ? GPU_NO_STREAM : GPU_DRIVER_FAILED;
    return verdict(why, code, 0) | (unsigned long long)call << 48;
}

/* The implicit streams have no context of their own: they mean the current one. */
static int implicit(uintptr_t stream) { return stream <= (uintptr_t)CU_STREAM_PER_THREAD; }

static unsigned long long admit_address(int ordinal, uintptr_t address, int index) {
    /* The plural call answers 0 for an address the driver does not know, where the
     * singular one fails. */
    unsigned int type = 0;
    int where = -1;
    CUpointer_attribute attributes[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *data[2] = {&type, &where};
    CUresult r = cuPointerGetAttributes(2, attributes, data, (CUdeviceptr)address);
    if (r != CUDA_SUCCESS) return failed(GPU_CALL_POINTER, r, index);
    if (type != CU_MEMORYTYPE_DEVICE) return verdict(GPU_NOT_DEVICE_MEMORY, CUDA_SUCCESS, index);
    if (where != ordinal) return verdict(GPU_FOREIGN_DEVICE, CUDA_SUCCESS, index);
    return 0;
}

unsigned long long gpu_admit_thread(uintptr_t ctx) {
    CUcontext own = (CUcontext)ctx, current = NULL;
    CUresult r = cuCtxGetCurrent(&current);
    if (r != CUDA_SUCCESS) return failed(GPU_CALL_GET_CURRENT, r, 0);
    if (current == NULL) {
        /* A thread that never used CUDA: the runtime API would do the same. */
        r = cuCtxSetCurrent(own);
        if (r != CUDA_SUCCESS) return failed(GPU_CALL_SET_CURRENT, r, 0);
        current = own;
    }
    return current == own ? 0 : verdict(GPU_FOREIGN_THREAD, CUDA_SUCCESS, 0);
}

unsigned long long gpu_admit_contexts(uintptr_t ctx, uintptr_t stream) {
    unsigned long long v = gpu_admit_thread(ctx);
    if (v || implicit(stream) || stream == GPU_UNNAMED_STREAM) return v;
    CUcontext of = NULL;
    CUresult r = cuStreamGetCtx(STREAM(stream), &of);
    if (r != CUDA_SUCCESS) return failed_stream(GPU_CALL_STREAM_CONTEXT, r);
    return of == (CUcontext)ctx ? 0 : verdict(GPU_FOREIGN_STREAM, CUDA_SUCCESS, 0);
}

static unsigned long long admit_capture(uintptr_t stream) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = cuStreamIsCapturing(STREAM(stream), &capture);
    /* Asking about the legacy stream fails while another stream is captured in
     * global mode: any work on it would break that capture. */
    if (r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return verdict(GPU_CAPTURING, r, 0);
    if (r != CUDA_SUCCESS) return failed_stream(GPU_CALL_IS_CAPTURING, r);
    return capture == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : verdict(GPU_CAPTURING, CUDA_SUCCESS, 0);
}

unsigned long long gpu_admit(uintptr_t ctx, int ordinal, uintptr_t stream, uintptr_t a, uintptr_t b) {
    unsigned long long v = gpu_admit_contexts(ctx, stream);
    if (!v && stream != GPU_UNNAMED_STREAM) v = admit_capture(stream);
    if (v) return v;
    if (a) v = admit_address(ordinal, a, 0);
    if (!v && b) v = admit_address(ordinal, b, 1);
    return v;
}

int gpu_init(void) { return cutramp_init(); }
const char *gpu_driver_path(void) { return cutramp_path(); }
const char *gpu_driver_reason(void) { return cutramp_reason(); }

/* Both texts live as long as the process. The names that matter without a driver
 * are here, since then nobody else can give them. */
const char *gpu_error_name(int code) {
    const char *text = NULL;
    if (cuGetErrorName((CUresult)code, &text) == CUDA_SUCCESS && text) return text;
    switch (code) {
        case CUDA_ERROR_SHARED_OBJECT_INIT_FAILED:
            return "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED";
        case CUDA_ERROR_NOT_FOUND:
            return "CUDA_ERROR_NOT_FOUND";
        default:
            return "CUDA_ERROR_UNKNOWN";
    }
}

const char *gpu_error_reason(int code) {
    const char *text = NULL;
    if (cuGetErrorString((CUresult)code, &text) == CUDA_SUCCESS && text) return text;
    return "";
}

int gpu_stream_context(uintptr_t stream, uintptr_t *ctx) {
    CUcontext of = NULL;
    CUresult r = implicit(stream) ? cuCtxGetCurrent(&of) : cuStreamGetCtx(STREAM(stream), &of);
    *ctx = (uintptr_t)of;
    return r;
}

int gpu_stream_capturing(uintptr_t stream, int *status) {
    CUstreamCaptureStatus s = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = cuStreamIsCapturing(STREAM(stream), &s);
    *status = s != CU_STREAM_CAPTURE_STATUS_NONE || r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ? CUDA_SUCCESS : r;
}

/* A driver too old for capture modes is too old to capture: failure is ignored. */
#define RELAXED(call)                                                      \
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;             \
    CUresult swapped = cuThreadExchangeStreamCaptureMode(&mode);           \
    CUresult r = call;                                                     \
    if (swapped == CUDA_SUCCESS) cuThreadExchangeStreamCaptureMode(&mode); \
    return r;

/* Makes ctx current where it is not; whether it has to be popped again. 0, or a verdict. */
static unsigned long long push_other(uintptr_t ctx, int *pushed) {
    CUcontext current = NULL;
    CUresult r = cuCtxGetCurrent(&current);
    *pushed = 0;
    if (r != CUDA_SUCCESS) return failed(GPU_CALL_GET_CURRENT, r, 0);
    if (current == (CUcontext)ctx) return 0;
    r = cuCtxPushCurrent((CUcontext)ctx);
    if (r != CUDA_SUCCESS) return failed(GPU_CALL_PUSH_CURRENT, r, 0);
    *pushed = 1;
    return 0;
}

static void pop(int pushed) {
    CUcontext own = NULL;
    if (pushed) cuCtxPopCurrent(&own);
}

static int ask_stream(CUresult (*call)(CUstream), uintptr_t stream) { RELAXED(call(STREAM(stream))) }

static int ask_stream_in(uintptr_t ctx, int ordinal, CUresult (*call)(CUstream), uintptr_t stream,
                         unsigned long long *refused) {
    int pushed, r = CUDA_SUCCESS;
    *refused = push_other(ctx, &pushed);
    if (!*refused) *refused = gpu_admit(ctx, ordinal, stream, 0, 0);
    if (!*refused) r = ask_stream(call, stream);
    pop(pushed);
    return r;
}

int gpu_stream_query(uintptr_t ctx, int ordinal, uintptr_t stream, unsigned long long *refused) {
    return ask_stream_in(ctx, ordinal, cuStreamQuery, stream, refused);
}
int gpu_stream_wait(uintptr_t ctx, int ordinal, uintptr_t stream, unsigned long long *refused) {
    return ask_stream_in(ctx, ordinal, cuStreamSynchronize, stream, refused);
}

static int ask_event(CUresult (*call)(CUevent), uintptr_t event) { RELAXED(call((CUevent)event)) }

static int ask_event_in(uintptr_t ctx, CUresult (*call)(CUevent), uintptr_t event) {
    int pushed;
    push_other(ctx, &pushed); /* without it the event may do */
    int r = ask_event(call, event);
    pop(pushed);
    return r;
}

int gpu_event_query(uintptr_t ctx, uintptr_t event) { return ask_event_in(ctx, cuEventQuery, event); }
int gpu_event_wait(uintptr_t ctx, uintptr_t event) { return ask_event_in(ctx, cuEventSynchronize, event); }

int gpu_relax_capture(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return cuThreadExchangeStreamCaptureMode(&mode);
}

int gpu_enter(uintptr_t ctx, int *mode) {
    CUresult r = cuCtxPushCurrent((CUcontext)ctx);
    if (r != CUDA_SUCCESS) return r;
    CUstreamCaptureMode m = CU_STREAM_CAPTURE_MODE_RELAXED;
    *mode = cuThreadExchangeStreamCaptureMode(&m) == CUDA_SUCCESS ? (int)m : CU_STREAM_CAPTURE_MODE_RELAXED;
    return CUDA_SUCCESS;
}

void gpu_leave(int mode) {
    CUstreamCaptureMode m = (CUstreamCaptureMode)mode;
    CUcontext own = NULL;
    cuThreadExchangeStreamCaptureMode(&m);
    cuCtxPopCurrent(&own);
}

/* Portable: the memory counts as pinned in every context of the process. */
int gpu_host_alloc(void **p, size_t bytes) { RELAXED(cuMemHostAlloc(p, bytes, CU_MEMHOSTALLOC_PORTABLE)) }
int gpu_host_free(void *p) { RELAXED(cuMemFreeHost(p)) }
int gpu_host_register(void *p, size_t bytes) { RELAXED(cuMemHostRegister(p, bytes, CU_MEMHOSTREGISTER_PORTABLE)) }
int gpu_host_unregister(void *p) { RELAXED(cuMemHostUnregister(p)) }

static CUresult allocate(size_t bytes, uintptr_t *address) {
    CUdeviceptr p = 0;
    CUresult r = cuMemAlloc(&p, bytes);
    *address = (uintptr_t)p;
    return r;
}

int gpu_alloc(size_t bytes, uintptr_t *address) { RELAXED(allocate(bytes, address)) }
int gpu_free(uintptr_t address) { RELAXED(cuMemFree((CUdeviceptr)address)) }

/* A pool of our own: how much the default pool keeps is the application's to say. This
 * one keeps nothing: what is given back goes back to the device with the next
 * synchronisation, for the model to use. */
static CUresult pool_create(int ordinal, uintptr_t *pool) {
    CUmemPoolProps props = {0};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.id = ordinal;
    CUmemoryPool made = NULL;
    CUresult r = cuMemPoolCreate(&made, &props);
    *pool = (uintptr_t)made;
    return r;
}

int gpu_pool_create(int ordinal, uintptr_t *pool) { RELAXED(pool_create(ordinal, pool)) }

int gpu_pool_destroy(uintptr_t pool) { RELAXED(cuMemPoolDestroy((CUmemoryPool)pool)) }

static int pool_alloc(uintptr_t pool, uintptr_t stream, size_t bytes, uintptr_t *address) {
    CUdeviceptr p = 0;
    CUresult r = cuMemAllocFromPoolAsync(&p, bytes, (CUmemoryPool)pool, STREAM(stream));
    *address = (uintptr_t)p;
    return r;
}

int gpu_pool_alloc(uintptr_t pool, uintptr_t stream, size_t bytes, uintptr_t *address) {
    RELAXED(pool_alloc(pool, stream, bytes, address))
}

int gpu_free_async(uintptr_t stream, uintptr_t address) {
    RELAXED(cuMemFreeAsync((CUdeviceptr)address, STREAM(stream)))
}

int gpu_copy_rows(uintptr_t stream, void *dst_host, uintptr_t dst, size_t dst_pitch, const void *src_host,
                  uintptr_t src, size_t src_pitch, size_t width, size_t height) {
    CUDA_MEMCPY2D c = {0};
    c.dstMemoryType = dst_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    c.dstHost = dst_host;
    c.dstDevice = (CUdeviceptr)dst;
    c.dstPitch = dst_pitch;
    c.srcMemoryType = src_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    c.srcHost = src_host;
    c.srcDevice = (CUdeviceptr)src;
    c.srcPitch = src_pitch;
    c.WidthInBytes = width;
    c.Height = height;
    return cuMemcpy2DAsync(&c, STREAM(stream));
}

int gpu_pointer_info(uintptr_t address, gpu_pointer *out) {
    unsigned int managed = 0; /* a boolean; the driver writes one to four bytes */
    CUdeviceptr base = 0;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                        CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    out->type = 0;
    out->ordinal = -1;
    out->bytes = 0;
    void *data[] = {&out->type, &managed, &out->ordinal, &base, &out->bytes};
    CUresult r = cuPointerGetAttributes(5, attributes, data, (CUdeviceptr)address);
    out->managed = managed != 0;
    out->base = (uintptr_t)base;
    if (r == CUDA_SUCCESS && out->type == 0) {
        out->ordinal = -1;
        out->base = 0;
        out->bytes = 0;
    }
    return r;
}

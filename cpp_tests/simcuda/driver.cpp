// driver.cpp - entry points: initialisation, devices and contexts.
#include <cstdio>

#include "call.hpp"

namespace sim {

thread_local std::vector<Context*> current_stack;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

}  // namespace sim

using namespace sim;

EXPORT CUresult cuInit(unsigned int flags) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    m.initialised = true;
    while (m.contexts.size() < 2) {
        m.contexts.push_back(std::make_unique<Context>());
        m.contexts.back()->device = static_cast<int>(m.contexts.size()) - 1;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int* version) {
    *version = 12000;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
#define NAME(x) \
    { x, #x }
    static const std::map<CUresult, const char*> names = {
        NAME(CUDA_SUCCESS),
        NAME(CUDA_ERROR_INVALID_VALUE),
        NAME(CUDA_ERROR_OUT_OF_MEMORY),
        NAME(CUDA_ERROR_NOT_INITIALIZED),
        NAME(CUDA_ERROR_NO_DEVICE),
        NAME(CUDA_ERROR_INVALID_DEVICE),
        NAME(CUDA_ERROR_INVALID_CONTEXT),
        NAME(CUDA_ERROR_INVALID_HANDLE),
        NAME(CUDA_ERROR_NOT_FOUND),
        NAME(CUDA_ERROR_NOT_READY),
        NAME(CUDA_ERROR_ILLEGAL_ADDRESS),
        NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
        NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
        NAME(CUDA_ERROR_LAUNCH_FAILED),
        NAME(CUDA_ERROR_NOT_SUPPORTED),
        NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        NAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
        NAME(CUDA_ERROR_CAPTURED_EVENT),
        NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED),
        NAME(CUDA_ERROR_UNKNOWN),
    };
#undef NAME
    auto it = names.find(error);
    *text = it == names.end() ? nullptr : it->second;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = error == CUDA_SUCCESS ? "no error" : "simulated";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int* count) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    *count = m.devices;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (ordinal < 0 || ordinal >= m.devices) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    snprintf(name, static_cast<size_t>(len), "simulated GPU %d", dev);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attrib, CUdevice) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    *value = attrib == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED && m.pools_supported;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* ctx, CUdevice dev) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (!m.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (dev < 0 || dev >= m.devices) return CUDA_ERROR_INVALID_DEVICE;
    *ctx = reinterpret_cast<CUcontext>(m.contexts[static_cast<size_t>(dev)].get());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }

EXPORT CUresult cuCtxCreate_v2(CUcontext* ctx, unsigned int, CUdevice dev) {
    BEGIN_ANYWHERE(SIMCUDA_CREATE)
    if (!m.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    m.contexts.push_back(std::make_unique<Context>());
    m.contexts.back()->device = dev;
    current_stack.push_back(m.contexts.back().get());
    *ctx = reinterpret_cast<CUcontext>(m.contexts.back().get());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* ctx) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (!m.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    *ctx = reinterpret_cast<CUcontext>(current());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    if (!m.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!current_stack.empty()) current_stack.pop_back();
    if (ctx) current_stack.push_back(reinterpret_cast<Context*>(ctx));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    current_stack.push_back(reinterpret_cast<Context*>(ctx));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* ctx) {
    BEGIN_ANYWHERE(0)  // fails for want of a context, and for nothing else
    if (current_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx) *ctx = reinterpret_cast<CUcontext>(current());
    current_stack.pop_back();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    BEGIN(SIMCUDA_ASK)
    *device = current()->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    BEGIN(SIMCUDA_ASK)
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    BEGIN(SIMCUDA_WAIT)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    m.drain_context(call.lock, current());
    return current()->lost;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    BEGIN_ANYWHERE(SIMCUDA_ASK)
    std::swap(*mode, capture_mode);
    return CUDA_SUCCESS;
}

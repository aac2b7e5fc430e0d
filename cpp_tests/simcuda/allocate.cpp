// allocate.cpp - entry points: device memory, pools, pinned and registered memory.
#include <sys/mman.h>

#include "call.hpp"

using namespace sim;

namespace {

void drop_overlapping(Model& m, uint64_t base, size_t n) {
    for (auto it = m.blocks.begin(); it != m.blocks.end();)
        it = it->first < base + n && base < it->first + it->second->bytes && it->second->freed ? m.blocks.erase(it)
                                                                                               : std::next(it);
}

void add_host(Model& m, uint64_t base, size_t n, bool registered) {
    drop_overlapping(m, base, n);
    auto b = std::make_unique<Block>();
    b->base = base;
    b->bytes = n;
    b->where = Where::kPinned;
    b->registered = registered;
    m.blocks[base] = std::move(b);
}

}  // namespace

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t n) {
    BEGIN(SIMCUDA_CREATE)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Block* b = n ? m.add_device(n, current()->device) : nullptr;
    if (!b) return n ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    *dptr = b->base;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr) {
    BEGIN(SIMCUDA_FREE)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Block* b = m.find(dptr, false);
    if (!b || b->base != dptr || b->freed || b->where != Where::kDevice) {
        m.fault("%s: %#llx %s", __func__, dptr,
                b && b->freed ? "was freed before" : "is not the start of an allocation");
        return CUDA_ERROR_INVALID_VALUE;
    }
    m.implicit_waits++;
    m.drain_context(call.lock, current());
    b->freed = true;
    b->storage.reset();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
    BEGIN(SIMCUDA_CREATE)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!m.pools_supported) return CUDA_ERROR_NOT_SUPPORTED;
    m.pools.push_back(std::make_unique<Pool>());
    m.pools.back()->device = props->location.id;
    m.pool_handles.insert(m.pools.back().get());
    *pool = reinterpret_cast<CUmemoryPool>(m.pools.back().get());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    BEGIN(SIMCUDA_FREE)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    auto* p = reinterpret_cast<Pool*>(pool);
    if (!m.pool_handles.count(p) || p->destroyed) return CUDA_ERROR_INVALID_VALUE;
    p->destroyed = true;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t n, CUmemoryPool pool, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    auto* p = reinterpret_cast<Pool*>(pool);
    if (!m.pool_handles.count(p) || p->destroyed || !n) return CUDA_ERROR_INVALID_VALUE;
    Stream* s = call.target(stream);
    if (!s) return call.verdict;
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Block* b = m.add_device(n, p->device);
    if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
    *dptr = b->base;
    Op op = m.begin(s, __func__);
    op->dst = bytes(b->base, n);
    m.note(*op, op->dst, true);  // another stream has to be ordered after this
    return call.queue(op);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream) {
    BEGIN(SIMCUDA_FREE)
    Stream* s = call.target(stream);
    if (!s) return call.verdict;
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Block* b = m.find(dptr, false);
    if (!b || b->base != dptr || b->freed || b->where != Where::kDevice) {
        m.fault("%s: %#llx %s", __func__, dptr,
                b && b->freed ? "was freed before" : "is not the start of an allocation");
        return CUDA_ERROR_INVALID_VALUE;
    }
    Op op = m.begin(s, __func__);
    op->dst = bytes(dptr, b->bytes);
    m.note(*op, op->dst, true);  // uses that nothing orders before the free are reported
    b->freed = true;             // and uses that are enqueued after it, too
    op->is_free = true;
    return call.queue(op);
}

EXPORT CUresult cuMemHostAlloc(void** p, size_t n, unsigned int) {
    BEGIN(SIMCUDA_CREATE)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!n) return CUDA_ERROR_INVALID_VALUE;
    void* q = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (q == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    add_host(m, reinterpret_cast<uint64_t>(q), n, false);
    *p = q;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void* p) {
    BEGIN(SIMCUDA_FREE)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Block* b = m.find(reinterpret_cast<uint64_t>(p));
    if (!b || b->base != reinterpret_cast<uint64_t>(p) || b->where != Where::kPinned || b->registered) {
        m.fault("%s: %p is not live pinned memory", __func__, p);
        return CUDA_ERROR_INVALID_VALUE;
    }
    m.check_idle(*b, "free");
    b->freed = true;
    munmap(p, b->bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void* p, size_t n, unsigned int) {
    BEGIN(SIMCUDA_CREATE)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    auto base = reinterpret_cast<uint64_t>(p);
    if (!base || !n) return CUDA_ERROR_INVALID_VALUE;
    for (auto& [start, b] : m.blocks)
        if (!b->freed && start < base + n && base < start + b->bytes) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    add_host(m, base, n, true);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void* p) {
    BEGIN(SIMCUDA_FREE)
    if (call.spoils_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Block* b = m.find(reinterpret_cast<uint64_t>(p));
    if (!b || b->base != reinterpret_cast<uint64_t>(p) || !b->registered) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    m.check_idle(*b, "unregistration");
    b->freed = true;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                       CUdeviceptr ptr) {
    BEGIN(SIMCUDA_ASK)
    Block* b = m.find(ptr);
    for (unsigned i = 0; i < count; i++) switch (attributes[i]) {
            case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
                *static_cast<unsigned*>(data[i]) = !b                           ? 0
                                                   : b->where == Where::kDevice ? CU_MEMORYTYPE_DEVICE
                                                                                : CU_MEMORYTYPE_HOST;
                break;
            case CU_POINTER_ATTRIBUTE_IS_MANAGED:
                *static_cast<char*>(data[i]) = 0;
                break;
            case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
                *static_cast<int*>(data[i]) = b ? b->device : -2;
                break;
            case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
                *static_cast<CUdeviceptr*>(data[i]) = b ? b->base : 0;
                break;
            case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
                *static_cast<size_t*>(data[i]) = b ? b->bytes : 0;
                break;
            default:
                return CUDA_ERROR_INVALID_VALUE;
        }
    return CUDA_SUCCESS;
}

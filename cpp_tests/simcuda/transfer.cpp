// transfer.cpp - entry points: copies, fills, and the work of a model.
#include <cstring>

#include "call.hpp"

namespace sim {

// Whether a range lies in memory of the wanted kind, all of it.
bool inside(Call& call, const Range& r, bool device, Where* where) {
    Model& m = call.m;
    *where = m.where(r.base);
    if (device != (*where == Where::kDevice)) {
        // A pinned address is a valid device address to the real driver; to the
        // library it is the wrong kind, so it is reported.
        if (device && *where == Where::kPinned)
            m.fault("%s: %#lx is host memory used as device memory", call.name, r.base);
        call.verdict = CUDA_ERROR_INVALID_VALUE;
        return false;
    }
    if (*where == Where::kPageable) return true;
    Block* b = m.find(r.base, false);
    if (!b || b->freed || r.end() > b->base + b->bytes) {
        m.fault("%s: [%#lx, %#lx) is %s", call.name, r.base, r.end(),
                b && b->freed ? "freed memory" : "outside its allocation");
        call.verdict = CUDA_ERROR_INVALID_VALUE;
        return false;
    }
    return true;
}

}  // namespace sim

using namespace sim;

namespace {

CUresult copy(Call& call, CUstream stream, Range dst, bool dst_device, Range src, bool src_device) {
    Model& m = call.m;
    Stream* s = call.target(stream);
    if (!s) return call.verdict;
    if (!dst.height || !dst.width) return CUDA_SUCCESS;
    Where to, from;
    if (!inside(call, dst, dst_device, &to) || !inside(call, src, src_device, &from)) return call.verdict;
    Op op = m.begin(s, call.name);
    op->is_copy = true;
    op->dst = dst;
    op->src = src;
    op->dst_where = to;
    op->src_where = from;
    m.note(*op, src, false);
    m.note(*op, dst, true);
    if (from == Where::kPageable) {
        m.pageable++;
        op->snapshot.resize(src.width * src.height);
        for (size_t y = 0; y < src.height; y++)
            memcpy(op->snapshot.data() + y * src.width, m.bytes_at(src.base + y * src.pitch, src.width), src.width);
    } else if (from == Where::kPinned && !m.used_by_queued(src, true)) {
        op->check_src = true;
        op->src_hash = m.hash(src);
    }
    if (to == Where::kPinned && !m.used_by_queued(dst, false)) {
        m.paint(dst, 0xDB);
        op->check_dst = true;
        op->dst_hash = m.hash(dst);
    }
    CUresult r = call.queue(op);
    if (to == Where::kPageable) {
        m.pageable++;
        return call.wait_for(op);
    }
    return r;
}

CUresult fill(Call& call, CUstream stream, CUdeviceptr dst, size_t n, uint8_t value) {
    Stream* s = call.target(stream);
    if (!s) return call.verdict;
    if (!n) return CUDA_SUCCESS;
    Range r = bytes(dst, n);
    Where where;
    if (!inside(call, r, true, &where)) return call.verdict;
    Op op = call.m.begin(s, call.name);
    op->is_fill = true;
    op->dst = r;
    op->fill = value;
    call.m.note(*op, r, true);
    return call.queue(op);
}

uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }

}  // namespace

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t n, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    return copy(call, stream, bytes(dst, n), true, bytes(address(src), n), false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t n, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    return copy(call, stream, bytes(address(dst), n), false, bytes(src, n), true);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    return copy(call, stream, bytes(dst, n), true, bytes(src, n), true);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* c, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    bool to = c->dstMemoryType == CU_MEMORYTYPE_DEVICE, from = c->srcMemoryType == CU_MEMORYTYPE_DEVICE;
    if (c->dstPitch < c->WidthInBytes || c->srcPitch < c->WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
    if (c->dstPitch > INT32_MAX || c->srcPitch > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;  // as of MAX_PITCH
    Range dst{to ? c->dstDevice : address(c->dstHost), c->dstPitch, c->WidthInBytes, c->Height};
    Range src{from ? c->srcDevice : address(c->srcHost), c->srcPitch, c->WidthInBytes, c->Height};
    return copy(call, stream, dst, to, src, from);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream) {
    BEGIN(SIMCUDA_ENQUEUE)
    return fill(call, stream, dst, n, value);
}

EXPORT CUresult simcuda_launch(CUstream stream, CUdeviceptr dst, size_t words, uint32_t value) {
    BEGIN(SIMCUDA_ENQUEUE)
    Stream* s = call.target(stream);
    if (!s) return call.verdict;
    Range r = bytes(dst, words * 4);
    Where where;
    if (!inside(call, r, true, &where)) return call.verdict;
    Op op = m.begin(s, __func__);
    op->is_launch = true;
    op->dst = r;
    op->words = value;
    m.note(*op, r, true);
    return call.queue(op);
}

/*
 * A view of memory that somebody else owns: what the coordinator needs of a tensor,
 * and no more. It never allocates: a reshape beyond the capacity is refused.
 */
#ifndef PREFIXCACHE_TENSOR_HPP
#define PREFIXCACHE_TENSOR_HPP

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace prefixcache {

/// Element types; the numbers are PC_TYPE_* of the C ABI, int32 is ours.
enum class DataType : uint8_t { kHalf = 0, kBFloat16 = 1, kFloat = 2, kFp8 = 3, kInt8 = 4, kInt32 = 5 };

inline int64_t sizeOf(DataType type) noexcept {
    switch (type) {
        case DataType::kHalf:
        case DataType::kBFloat16:
            return 2;
        case DataType::kFloat:
        case DataType::kInt32:
            return 4;
        case DataType::kFp8:
        case DataType::kInt8:
            return 1;
    }
    return 0;
}

/// Memory with a type and a shape; owns nothing.
class Tensor {
  public:
    Tensor() = default;

    /// @param data  memory of at least `capacity` elements, host or device; not owned
    /// @throws std::runtime_error if the shape does not fit the capacity
    Tensor(void* data, DataType type, int64_t capacity, std::vector<int64_t> shape)
        : mData(data), mType(type), mCapacity(capacity) {
        reshape(std::move(shape));
    }

    /// A flat tensor over all of its memory.
    Tensor(void* data, DataType type, int64_t capacity) : Tensor(data, type, capacity, {capacity}) {}

    void* rawPointer() const noexcept { return mData; }
    DataType dataType() const noexcept { return mType; }
    std::vector<int64_t> const& shape() const noexcept { return mShape; }
    int64_t capacity() const noexcept { return mCapacity; }  ///< elements

    int64_t volume() const noexcept { return volumeOf(mShape); }

    template <typename T>
    T* data() const noexcept {
        return static_cast<T*>(mData);
    }

    /// Whether reshape would succeed.
    bool fits(std::vector<int64_t> const& shape) const noexcept {
        int64_t const wanted = volumeOf(shape);
        return wanted >= 0 && wanted <= mCapacity;
    }

    /// @throws std::runtime_error if the memory is too small; the shape is unchanged then
    void reshape(std::vector<int64_t> shape) {
        if (!fits(shape)) {
            std::string text;
            for (int64_t const dimension : shape) {
                text += (text.empty() ? "" : ", ") + std::to_string(dimension);
            }
            throw std::runtime_error("prefixcache: shape is [" + text + "], expected at most " +
                                     std::to_string(mCapacity) + " elements, the capacity, and no negative dimension");
        }
        mShape = std::move(shape);
    }

  private:
    static int64_t volumeOf(std::vector<int64_t> const& shape) noexcept {
        int64_t volume = 1;
        for (int64_t const dimension : shape) {
            if (dimension < 0 || (dimension > 0 && volume > INT64_MAX / dimension)) {
                return -1;
            }
            volume *= dimension;
        }
        return shape.empty() ? 0 : volume;
    }

    void* mData = nullptr;
    DataType mType = DataType::kInt32;
    int64_t mCapacity = 0;
    std::vector<int64_t> mShape;
};

}  // namespace prefixcache

#endif  // PREFIXCACHE_TENSOR_HPP

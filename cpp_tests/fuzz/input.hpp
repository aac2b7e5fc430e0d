// What one fuzz input turns into: numbers, and memory that a call may touch and not
// one byte more.
#ifndef PREFIXCACHE_FUZZ_INPUT_HPP
#define PREFIXCACHE_FUZZ_INPUT_HPP

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace fuzz {

/// Ends the process, so that the fuzzer keeps the input.
[[noreturn]] inline void fault(char const* what, char const* why = "") {
    std::fprintf(stderr, "fuzz: %s: %s\n", what, why);
    std::abort();
}

/// Bytes of the input, then zeros.
class Input {
  public:
    Input(uint8_t const* data, size_t size) : at_(data), end_(data + size) {}
    bool empty() const { return at_ == end_; }
    uint8_t byte() { return at_ == end_ ? uint8_t{0} : *at_++; }
    /// 0 .. n - 1.
    uint32_t below(uint32_t n) { return byte() % n; }
    bool oneIn(uint32_t n) { return below(n) == n - 1; }
    uint64_t word() {
        uint64_t v = 0;
        for (int i = 0; i < 8; ++i) {
            v = v << 8 | byte();
        }
        return v;
    }

  private:
    uint8_t const* at_;
    uint8_t const* end_;
};

/// Buffers that end where unreadable memory begins, so that reading or writing one
/// byte too many is a crash. What lies before a buffer is compared after the call.
class Memory {
  public:
    static constexpr size_t kSlot = 64 << 10, kSlots = 96, kPage = 4096, kFence = 64;

    Memory() {
        void* p = mmap(nullptr, kSlots * (kSlot + kPage), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            fault("mmap");
        }
        base_ = static_cast<uint8_t*>(p);
        for (size_t i = 0; i < kSlots; ++i) {
            if (mprotect(slot(i), kSlot, PROT_READ | PROT_WRITE) != 0) {
                fault("mprotect");
            }
        }
    }

    struct Buffer {
        uint8_t* data;
        size_t bytes;
        bool pointers;  // it holds addresses, or offsets into another array: nothing else may be read as one
    };

    /// `shift` moves it down from the guard page, to a wrong alignment.
    uint8_t* take(size_t bytes, bool pointers, size_t shift = 0) {
        if (used_ == kSlots || bytes + shift + kFence > kSlot) {
            fault("Memory::take", "the harness asked for too much");
        }
        uint8_t* p = slot(used_++) + kSlot - bytes - shift;
        std::memset(p - kFence, 0xA5, kFence);
        std::memset(p, 0, bytes);
        buffers_.push_back({p, bytes, pointers});
        return p;
    }
    /// From here on only `keep` oldest buffers count as taken.
    void reset(size_t keep) {
        used_ = keep;
        buffers_.resize(keep);
    }
    size_t used() const { return used_; }
    std::vector<Buffer> const& buffers() const { return buffers_; }
    void checkFences(char const* call) const {
        for (auto const& b : buffers_) {
            for (size_t i = 1; i <= kFence; ++i) {
                if (b.data[-static_cast<ptrdiff_t>(i)] != 0xA5) {
                    fault(call, "wrote before a buffer");
                }
            }
        }
    }

  private:
    uint8_t* slot(size_t i) const { return base_ + i * (kSlot + kPage); }
    uint8_t* base_ = nullptr;
    size_t used_ = 0;
    std::vector<Buffer> buffers_;
};

/// The arguments of one call. An honest call draws sensible ones; a hostile call has one
/// argument in it, anywhere, that is wrong. What no library can check is never drawn: an
/// address of nothing, or a length between what is there and what any array can have.
class Draw {
  public:
    Draw(Input& input, Memory& memory) : in(input), memory_(memory) {}

    /// Begin a call; true when it is a hostile one.
    bool begin() {
        uint8_t const b = in.byte();
        hostileAt_ = b < 128 ? -1 : b % 24;
        seen_ = 0;
        hit_ = false;
        return hostileAt_ >= 0;
    }
    /// No more hostility in this call.
    void calm() { hostileAt_ = -1; }
    /// Whether something hostile was really put in.
    bool wasHostile() const { return hit_; }
    /// One more place where something could be wrong: is it this one?
    bool hostile() {
        bool const now = seen_++ == hostileAt_;
        hit_ |= now;
        return now;
    }

    template <typename T>
    T number(T honest) {
        if (!hostile()) {
            return honest;
        }
        switch (in.below(8)) {
            case 0:
                return static_cast<T>(-1);
            case 1:
                return std::numeric_limits<T>::max();
            case 2:
                return std::numeric_limits<T>::min();
            case 3:
                return static_cast<T>(honest + 1);
            case 4:
                return static_cast<T>(honest - 1);
            case 5:
                return static_cast<T>(T{1} << (in.byte() % (8 * sizeof(T))));
            case 6:
                return T{0};
            default:
                return static_cast<T>(in.word());
        }
    }
    /// For sizes that the library would really allocate: small, or out of every range.
    template <typename T>
    T size(T honest) {
        if (!hostile()) {
            return honest;
        }
        switch (in.below(4)) {
            case 0:
                return static_cast<T>(-1 - static_cast<T>(in.byte()));
            case 1:
                return std::numeric_limits<T>::max();
            case 2:
                return std::numeric_limits<T>::min();
            default:
                return static_cast<T>(in.byte() % 4);
        }
    }
    /// Length of an array of n elements of T: the truth, less, or absurd.
    template <typename T, typename N = uint64_t>
    N count(uint64_t n) {
        if (!hostile()) {
            return static_cast<N>(n);
        }
        constexpr uint64_t most = (uint64_t{1} << 40) / sizeof(T);
        switch (in.below(6)) {
            case 0:
                return static_cast<N>(most + 1 + in.byte());
            case 1:
                return static_cast<N>(uint64_t{1} << 63);
            case 2:
                return static_cast<N>(-1);
            case 3:
                return static_cast<N>((uint64_t{1} << 61) + in.byte());
            default:
                return static_cast<N>(n / 2);
        }
    }
    uint32_t bit(uint32_t honest) { return hostile() ? 2 + in.byte() : honest; }
    template <typename T>
    void reserved(T& field) {
        if (hostile()) {
            field = static_cast<T>(1 + in.byte());
        }
    }

    template <typename T>
    static constexpr bool plain = std::is_arithmetic_v<T>;

    /// n elements; the address is wrong in a hostile call.
    template <typename T, typename F>
    T* array(uint64_t n, F fill, bool pointers = false) {
        bool const bad = hostile();
        uint32_t const kind = bad ? in.below(3) : 3;
        if (bad && kind == 0) {
            return nullptr;
        }
        size_t const bytes = static_cast<size_t>(n) * sizeof(T);
        if (kind == 1 && !pointers) {  // on top of another argument
            for (auto const& b : memory_.buffers()) {
                if (b.bytes >= bytes && bytes > 0 && !b.pointers && in.byte() % 2 == 0) {
                    return reinterpret_cast<T*>(b.data);
                }
            }
        }
        T* p = reinterpret_cast<T*>(memory_.take(bytes, pointers, kind == 2 ? 1 + in.below(alignof(T)) : 0));
        for (uint64_t i = 0; i < n; ++i) {
            T const v = fill(i);
            std::memcpy(p + i, &v, sizeof v);
        }
        return p;
    }
    /// An output of n elements.
    template <typename T>
    T* out(uint64_t n = 1) {
        return array<T>(n, [](uint64_t) {
            T v;
            std::memset(&v, 0x5A, sizeof v);
            return v;
        });
    }
    /// A struct that begins with struct_size. A smaller size comes with less memory, a
    /// larger one with more, which is zero or not.
    template <typename T>
    T* structure(T const& value, bool pointers) {
        if (hostile()) {
            return in.oneIn(2) ? nullptr : place(value, pointers, 1 + in.below(7));
        }
        if (!hostile()) {
            return place(value, pointers, 0);
        }
        uint32_t const sizes[] = {0,       4,     7,     8,  16, sizeof(T) - 8, sizeof(T) - 1, sizeof(T) + 8,
                                  1 << 10, 32768, 65537, ~0U};
        uint32_t const size = sizes[in.below(12)];
        size_t const room = size > 65536 ? sizeof(T) : size < 4 ? 4 : size;
        uint8_t* p = memory_.take(room, pointers);
        std::memcpy(p, &value, room < sizeof(T) ? room : sizeof(T));
        std::memcpy(p, &size, sizeof size);
        if (room > sizeof(T) && in.oneIn(2)) {
            p[room - 1] = 1;
        }
        return reinterpret_cast<T*>(p);
    }
    /// A struct without struct_size.
    template <typename T>
    T* one(T const& value, bool pointers) {
        return array<T>(
            1, [&](uint64_t) { return value; }, pointers);
    }

    /// A call that succeeded must not have written two results to one place.
    template <typename A, typename B>
    static void apart(char const* call, A const* a, uint64_t n, B const* b, uint64_t m) {
        auto const x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
        if (x != 0 && y != 0 && x < y + m * sizeof(B) && y < x + n * sizeof(A)) {
            fault(call, "took two outputs that overlap, and one is lost");
        }
    }

    Input& in;

  private:
    template <typename T>
    T* place(T const& value, bool pointers, size_t shift) {
        T copy = value;
        copy.struct_size = sizeof(T);
        uint8_t* p = memory_.take(sizeof(T), pointers, shift);
        std::memcpy(p, &copy, sizeof(T));
        return reinterpret_cast<T*>(p);
    }

    Memory& memory_;
    int hostileAt_ = -1;
    int seen_ = 0;
    bool hit_ = false;
};

}  // namespace fuzz

#endif  // PREFIXCACHE_FUZZ_INPUT_HPP

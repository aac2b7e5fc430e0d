// Request traces: one JSON object a line with input_length, output_length and
// hash_ids, each of which stands for 512 tokens and identifies its whole prefix
// (the format of the public Mooncake traces). Without a file, a generated one.
#ifndef PREFIXCACHE_TESTS_TRACE_HPP
#define PREFIXCACHE_TESTS_TRACE_HPP

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace trace {

constexpr int64_t kIdTokens = 512;
constexpr int32_t kVocabulary = 150000;

struct Request {
    int32_t input = 0;   // tokens of the prompt
    int32_t output = 0;  // tokens generated
    std::vector<int64_t> ids;
};

inline uint64_t splitmix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

/// Token i of the 512 that an id stands for.
inline int32_t tokenOf(int64_t id, int64_t i) {
    return static_cast<int32_t>(splitmix64(static_cast<uint64_t>(id * kIdTokens + i)) % kVocabulary);
}

inline void prompt(Request const& request, std::vector<int32_t>& tokens) {
    tokens.resize(static_cast<size_t>(request.input));
    for (size_t i = 0; i < tokens.size(); ++i) {
        auto const position = static_cast<int64_t>(i);
        tokens[i] = tokenOf(request.ids.at(static_cast<size_t>(position / kIdTokens)), position % kIdTokens);
    }
}

/// Output tokens are unique to their request.
inline int32_t outputToken(size_t request, int32_t i) {
    return static_cast<int32_t>(
        splitmix64((uint64_t{1} << 40) + (static_cast<uint64_t>(request) << 20) + static_cast<uint64_t>(i)) %
        kVocabulary);
}

namespace detail {

inline size_t after(std::string const& line, char const* key, size_t number) {
    size_t const at = line.find(std::string("\"") + key + "\"");
    if (at == std::string::npos) {
        throw std::runtime_error("trace: line " + std::to_string(number) + " has no " + key);
    }
    return line.find(':', at) + 1;
}

}  // namespace detail

inline std::vector<Request> read(std::string const& path, size_t limit) {
    std::ifstream file(path);
    if (!file) {
        throw std::runtime_error("trace: cannot read " + path + ", expected a file of JSON lines");
    }
    std::vector<Request> out;
    std::string line;
    for (size_t number = 1; out.size() < limit && std::getline(file, line); ++number) {
        if (line.empty()) {
            continue;
        }
        Request r;
        r.input = std::atoi(line.c_str() + detail::after(line, "input_length", number));
        r.output = std::atoi(line.c_str() + detail::after(line, "output_length", number));
        char const* p = line.c_str() + detail::after(line, "hash_ids", number);
        while (*p != '\0' && *p != ']') {
            if ((*p >= '0' && *p <= '9') || *p == '-') {
                char* end = nullptr;
                r.ids.push_back(std::strtoll(p, &end, 10));
                p = end;
            } else {
                ++p;
            }
        }
        if (r.input < 1 || static_cast<int64_t>(r.ids.size()) * kIdTokens < r.input) {
            throw std::runtime_error("trace: line " + std::to_string(number) + " has " + std::to_string(r.ids.size()) +
                                     " hash ids for " + std::to_string(r.input) + " tokens");
        }
        out.push_back(std::move(r));
    }
    if (out.empty()) {
        throw std::runtime_error("trace: " + path + " has no request");
    }
    return out;
}

/// Conversations that grow turn by turn over shared system prompts.
inline std::vector<Request> generate(size_t count, uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    struct Conversation {
        std::vector<int64_t> ids;
        int32_t length = 0;
    };
    std::vector<std::vector<int64_t>> systems;
    int64_t next = 1;
    for (int i = 0; i < 8; ++i) {
        std::vector<int64_t> ids;
        for (uint64_t n = 1 + random() % 4; n > 0; --n) {
            ids.push_back(next++);
        }
        systems.push_back(ids);
    }
    std::vector<Conversation> live;
    std::vector<Request> out;
    while (out.size() < count) {
        if (live.size() < 64 && (live.empty() || random() % 3 == 0)) {
            auto const& ids = systems[std::min(random() % 8, random() % 8)];  // some are more popular
            live.push_back({ids, static_cast<int32_t>(static_cast<int64_t>(ids.size()) * kIdTokens)});
        }
        size_t const which = random() % live.size();
        auto& c = live[which];
        c.length += static_cast<int32_t>(100 + random() % 2500);
        while (static_cast<int64_t>(c.ids.size()) * kIdTokens < c.length) {
            c.ids.push_back(next++);
        }
        auto const output = static_cast<int32_t>(1 + random() % 600);
        out.push_back({c.length, output, c.ids});
        if (c.length > 24000 || random() % 8 == 0) {
            live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
        }
    }
    return out;
}

}  // namespace trace

#endif  // PREFIXCACHE_TESTS_TRACE_HPP

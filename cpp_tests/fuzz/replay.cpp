// Runs the corpus on the library as it is shipped, then random changes of it, and looks
// at the memory of the process. No fuzzer is needed.
//   replay CORPUS [MUTATIONS [SEED]]
#include <dirent.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <prefixcache/library.hpp>

#include "targets.hpp"

namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> corpus(std::string const& folder) {
    std::vector<std::string> names;
    DIR* dir = opendir(folder.c_str());
    if (dir == nullptr) {
        fuzz::fault("no such folder", folder.c_str());
    }
    while (dirent const* e = readdir(dir)) {
        if (e->d_name[0] != '.') {
            names.push_back(folder + "/" + e->d_name);
        }
    }
    closedir(dir);
    std::sort(names.begin(), names.end());
    std::vector<Bytes> out;
    for (auto const& name : names) {
        std::ifstream f(name, std::ios::binary);
        out.emplace_back(std::istreambuf_iterator<char>(f), std::istreambuf_iterator<char>());
    }
    return out;
}

long residentPages() {
    long size = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> size >> resident;
    return resident;
}

Bytes mutated(std::vector<Bytes> const& from, std::mt19937_64& random) {
    Bytes b = from[random() % from.size()];
    if (random() % 4 == 0) {  // the head of one, the tail of another
        Bytes const& other = from[random() % from.size()];
        b.resize(std::min<size_t>(b.size(), random() % 256));
        b.insert(b.end(), other.begin() + static_cast<ptrdiff_t>(random() % (other.size() + 1)), other.end());
    }
    for (uint64_t n = 1 + random() % 8; n > 0 && !b.empty(); --n) {
        b[random() % b.size()] = static_cast<uint8_t>(random());
    }
    return b;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: replay CORPUS [MUTATIONS [SEED]]\n");
        return 2;
    }
    pc_api const& api = prefixcache::Library::get();
    auto const all = corpus(argv[1]);
    uint64_t const mutations = argc > 2 ? std::stoull(argv[2]) : 0, seed = argc > 3 ? std::stoull(argv[3]) : 1;
    if (all.empty()) {
        fuzz::fault("the corpus is empty", argv[1]);
    }
    for (auto const& bytes : all) {
        fuzz::run(api, bytes.data(), bytes.size());
    }
    std::mt19937_64 random(seed);
    long before = 0;
    for (uint64_t i = 0; i < mutations; ++i) {
        if (i == mutations / 2) {
            before = residentPages();
        }
        Bytes const b = mutated(all, random);
        std::ofstream("fuzz_last_input", std::ios::binary)
            .write(reinterpret_cast<char const*>(b.data()), static_cast<std::streamsize>(b.size()));
        fuzz::run(api, b.data(), b.size());
    }
    std::remove("fuzz_last_input");
    long const grown = residentPages() - before;
    if (mutations >= 1000 && grown > 2048) {  // 8 MiB
        fuzz::fault("leak",
                    ("resident memory grew by " + std::to_string(grown * 4) + " KiB in the second half").c_str());
    }
    std::printf("%zu inputs and %llu changed ones, %zu functions\n", all.size(),
                static_cast<unsigned long long>(mutations), fuzz::targets().size());
}

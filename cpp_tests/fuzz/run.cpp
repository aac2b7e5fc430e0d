// One input: a program of calls, each followed by what must hold after it.
#include <string>

#include "targets.hpp"

namespace fuzz {

std::vector<Target> const& targets() {
    static std::vector<Target> const all = [] {
        std::vector<Target> list;
        for (auto const& part : {libraryTargets(), omniTargets(), managerTargets(), tableTargets(), contextTargets()}) {
            list.insert(list.end(), part.begin(), part.end());
        }
        std::sort(list.begin(), list.end(), [](Target const& a, Target const& b) { return a.offset < b.offset; });
        // Word 0 of the table is struct_size and abi_version, then one function a word.
        for (size_t i = 0; i < sizeof(pc_api) / sizeof(void*) - 1; ++i) {
            if (i >= list.size() || list[i].offset != (i + 1) * sizeof(void*)) {
                fault("pc_api has a function that no fuzz target calls; it comes after pc_",
                      i == 0 ? "api" : list[i - 1].name);
            }
        }
        return list;
    }();
    return all;
}

void run(pc_api const& api, uint8_t const* data, size_t size) {
    static Memory* const calls = new Memory;
    static Memory* const device = new Memory;
    Input input(data, size);
    World world(api, input, *calls, *device);
    for (int n = 0; n < 64 && !input.empty(); ++n) {
        calls->reset(0);
        Target const& t = targets()[input.byte() % targets().size()];
        bool const watched = world.draw.begin();
        std::string const before = watched ? world.snapshot() : std::string();
        pc_status const st = t.call(world);
        std::string const error = api.last_error();
        calls->checkFences(t.name);
        switch (st) {
            case PC_ERROR_INTERNAL:
                fault(t.name, error.c_str());  // a panic was caught, or an invariant is broken
            case PC_ERROR_FORKED:
            case PC_ERROR_DEVICE:
                fault(t.name, "an error that cannot happen here");
            default:
                break;
        }
        if (std::string(api.status_name(st)) == "PC_UNKNOWN") {
            fault(t.name, "returned a number that is no status");
        }
        if (watched && st < 0 && !t.partial && world.snapshot() != before) {
            fault(t.name, ("it failed and changed something: " + error).c_str());
        }
    }
}

}  // namespace fuzz

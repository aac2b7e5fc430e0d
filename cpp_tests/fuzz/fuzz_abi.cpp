// libFuzzer's entry. The library is linked in, with its Go code instrumented, so that
// new coverage of it keeps an input: see `make fuzz`.
#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    fuzz::run(*pc_get_api(PC_ABI_VERSION), data, size);
    return 0;
}

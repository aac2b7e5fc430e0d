# cuda.mk - lets gpu/ build without a CUDA toolkit, a driver or a GPU.
# Include it from the top-level Makefile; README.md here says what it gives.
# CUDA_ROOT is the repository root (default: the directory make runs in), BUILD
# the output directory. Paths are absolute because cgo compiles each package in
# that package's own directory.
CUDA_ROOT ?= $(CURDIR)
BUILD     ?= $(CUDA_ROOT)/build

CUDA_DIR := $(CUDA_ROOT)/gpu/cuda
CUDA_OUT := $(abspath $(BUILD))/cuda
CUDA_STUB := $(CUDA_OUT)/libcuda.a

# Ours come first: with a toolkit installed, cu would otherwise find its headers
# (13.x does not compile) or a real libcuda.so (a NEEDED entry: no driver, no load).
CUDA_CGO_CFLAGS  := -I$(CUDA_DIR)/include -O2 -g
CUDA_CGO_LDFLAGS := -L$(CUDA_OUT) -O2 -g
export CGO_CFLAGS  := $(CUDA_CGO_CFLAGS)
export CGO_LDFLAGS := $(CUDA_CGO_LDFLAGS)

CUDA_STUB_FLAGS := -std=c11 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -Werror -I$(CUDA_DIR)/include

$(CUDA_STUB): $(CUDA_DIR)/stub/libcuda_trampoline.c $(CUDA_DIR)/stub/loader.c $(CUDA_DIR)/stub/loader.h $(CUDA_DIR)/include/cuda.h
	@mkdir -p $(CUDA_OUT)
	$(CC) $(CUDA_STUB_FLAGS) -c $(CUDA_DIR)/stub/libcuda_trampoline.c -o $(CUDA_OUT)/trampoline.o
	$(CC) $(CUDA_STUB_FLAGS) -c $(CUDA_DIR)/stub/loader.c -o $(CUDA_OUT)/loader.o
	rm -f $@.tmp && $(AR) rcs $@.tmp $(CUDA_OUT)/trampoline.o $(CUDA_OUT)/loader.o && mv $@.tmp $@

# The simulated driver, for tests on machines without a GPU.
CUDA_SIM := $(CUDA_OUT)/libsimcuda.so
CUDA_SIM_DIR := $(CUDA_ROOT)/cpp_tests/simcuda

CUDA_SIM_SOURCES := $(addprefix $(CUDA_SIM_DIR)/,allocate.cpp control.cpp driver.cpp memory.cpp queue.cpp stream.cpp transfer.cpp)

$(CUDA_SIM): $(CUDA_SIM_SOURCES) $(wildcard $(CUDA_SIM_DIR)/*.h $(CUDA_SIM_DIR)/*.hpp) $(CUDA_DIR)/include/cuda.h
	@mkdir -p $(CUDA_OUT)
	$(CXX) -std=c++17 -O2 -g -fPIC -shared -Wall -Wextra -Werror -I$(CUDA_DIR)/include $(CUDA_SIM_SOURCES) -o $@.tmp -pthread
	@mv $@.tmp $@

.PHONY: cuda-stub cuda-sim cuda-env cuda-generate cuda-check
cuda-sim: $(CUDA_SIM) ## build/cuda/libsimcuda.so, a simulated CUDA driver to test a host with (docs/integrating-cpp.md)

cuda-stub: $(CUDA_STUB)

cuda-env: $(CUDA_STUB) ## what `go test` needs in a shell: eval "$(make -s cuda-env)"
	@echo 'export CGO_CFLAGS="$(CUDA_CGO_CFLAGS)" CGO_LDFLAGS="$(CUDA_CGO_LDFLAGS)"'

# After a change of include/cuda.h. The result is committed.
cuda-generate:
	go run $(CUDA_DIR)/gen $(CUDA_DIR)/include/cuda.h > $(CUDA_DIR)/stub/libcuda_trampoline.c

# CUDA_REAL=DIR names a directory with NVIDIA's cuda.h (12.x or newer); default: from PyPI.
cuda-check:
	python3 $(CUDA_DIR)/check-header.py $(or $(CUDA_REAL),--pypi)

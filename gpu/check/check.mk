# check.mk - the check on a real GPU; docs/gpu-check.md says what it does.
# GPU_CHECK_ARGS are options of gpu_check.py (--help lists them).
GPU_CHECK_ARGS ?=

.PHONY: gpu-check gpu-check-bundle
gpu-check: $(LIB) ## check and measure on this machine's GPU, at most 6 minutes (PYTHON=..., GPU_CHECK_ARGS=...)
	@$(PYTHON) gpu/check/gpu_check.py $(GPU_CHECK_ARGS)

gpu-check-bundle: $(LIB) ## build/gpu-check.tar.gz: what a machine with a GPU needs for the check, and no Go
	@gpu/check/bundle.sh

package gpu_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"gorgonia.org/cu"

	"libprefixcache/core/status"
	"libprefixcache/gpu"
)

// The library has to load and answer where there is no driver. The driver of a
// process is opened once, so each case is a process of its own.
func TestLoad_WithoutDriver(t *testing.T) {
	if os.Getenv(noDriver) != "" {
		_, err := gpu.OpenCUDA(0)
		refused(t, err, status.Device, os.Getenv(noDriver))
		if v := cu.Version(); v != -1 {
			t.Errorf("driver version is %d, expected -1", v)
		}
		return
	}
	for driver, text := range map[string]string{
		"none":                      "no CUDA driver: disabled",
		"/nonexistent/libcuda.so.1": "no CUDA driver: /nonexistent",
		"libc.so.6":                 "cuInit: CUDA_ERROR_NOT_FOUND: driver libc.so.6", // there, but no driver
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLoad_WithoutDriver$")
		cmd.Env = append(os.Environ(), noDriver+"="+text, "PREFIXCACHE_CUDA_DRIVER="+driver)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", driver, err, out)
		}
	}
}

// Loading must not touch a driver that is there: not even open it. A driver that
// is initialised before fork is dead in the child.
func TestLoad_TouchesNoDriver(t *testing.T) {
	if os.Getenv(untouched) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLoad_TouchesNoDriver$")
		cmd.Env = append(os.Environ(), untouched+"=1") // PREFIXCACHE_CUDA_DRIVER is set by Main
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	opened := func() bool {
		maps, err := os.ReadFile("/proc/self/maps")
		ok(t, err)
		return strings.Contains(string(maps), os.Getenv("PREFIXCACHE_CUDA_DRIVER"))
	}
	d := gpu.NewHost()
	p, err := d.AllocHost(4096)
	ok(t, err)
	ok(t, d.FreeHost(p))
	if opened() {
		t.Error("the driver was opened before anybody used a device")
	}
	ok(t, gpu.Probe())
	if !opened() {
		t.Error("the test cannot tell whether the driver is open")
	}
}

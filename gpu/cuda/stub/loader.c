#define _GNU_SOURCE
#include "loader.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t open_once = PTHREAD_ONCE_INIT;
static pthread_once_t init_once = PTHREAD_ONCE_INIT;
static void *driver;
static char driver_path[1024];
static char driver_reason[512];
static CUresult init_result;

/* An absent call is answered by this function. It takes no arguments, which both
 * supported calling conventions (caller cleans up) allow for any prototype. */
static CUresult absent(void) { return driver ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_SHARED_OBJECT_INIT_FAILED; }

static void open_driver(void) {
    const char *path = getenv("PREFIXCACHE_CUDA_DRIVER");
    if (!path || !*path) path = "libcuda.so.1";
    snprintf(driver_path, sizeof driver_path, "%s", path);
    /* "none" switches CUDA off on a machine that has it, for tests and triage. */
    if (strcmp(path, "none") == 0) {
        snprintf(driver_reason, sizeof driver_reason, "disabled by PREFIXCACHE_CUDA_DRIVER=none");
        return;
    }
    /* Never closed: driver threads may outlive every user of the handle. */
    driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        const char *why = dlerror();
        snprintf(driver_reason, sizeof driver_reason, "%s", why ? why : "dlopen failed");
    }
}

static void init_driver(void) {
    CUresult (*init)(unsigned int) = (CUresult(*)(unsigned int))cutramp_symbol("cuInit");
    if (init)
        init_result = init(0);
    else
        init_result = absent();
}

CUresult cutramp_init(void) {
    pthread_once(&init_once, init_driver);
    return init_result;
}

const char *cutramp_path(void) {
    pthread_once(&open_once, open_driver);
    return driver_path;
}

const char *cutramp_reason(void) {
    pthread_once(&open_once, open_driver);
    return driver_reason;
}

void *cutramp_symbol(const char *name) {
    pthread_once(&open_once, open_driver);
    return driver ? dlsym(driver, name) : NULL;
}

void *cutramp_resolve(void *_Atomic *slot, const char *name) {
    void *f = cutramp_symbol(name);
    if (!f) f = (void *)absent;
    atomic_store_explicit(slot, f, memory_order_release);
    return f;
}

/* gorgonia.org/cu calls this from its package init and exits the process when it
 * fails. Loading the library must neither exit nor initialise the driver (a
 * driver initialised before fork is dead in the child), so this one does nothing
 * and cutramp_init does the work when the first cache on a device is created. */
CUresult CUDAAPI cuInit(unsigned int flags) {
    (void)flags;
    return CUDA_SUCCESS;
}

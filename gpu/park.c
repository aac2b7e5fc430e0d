#define _GNU_SOURCE
#include "park.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int gpu_park(uint32_t *word, uint32_t value, int64_t deadline) {
    struct timespec at, *until = NULL;
    if (deadline != INT64_MAX) {
        if (deadline < 0) deadline = 0;
        at.tv_sec = deadline / 1000000000;
        at.tv_nsec = deadline % 1000000000;
        until = &at;
    }
    /* The bitset form takes an absolute time: a woken sleeper that goes back to
     * sleep does not extend its deadline. */
    long r = syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, until, NULL, FUTEX_BITSET_MATCH_ANY);
    return r == -1 && errno == ETIMEDOUT;
}

void gpu_unpark(uint32_t *word, int n) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }

int64_t gpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* park.h - sleep and wake on a 32-bit word (futex). A thread that sleeps here is
 * in C, so that the Go runtime gives its processor to others. */
#ifndef PREFIXCACHE_GPU_PARK_H
#define PREFIXCACHE_GPU_PARK_H

#include <stdint.h>

/* Sleeps while *word == value; until deadline (ns of CLOCK_MONOTONIC, INT64_MAX:
 * for ever). Returns 0 after a wake, a changed word or a signal, 1 after the
 * deadline. */
int gpu_park(uint32_t *word, uint32_t value, int64_t deadline);

/* Wakes up to n sleepers. */
void gpu_unpark(uint32_t *word, int n);

int64_t gpu_now(void);

#endif

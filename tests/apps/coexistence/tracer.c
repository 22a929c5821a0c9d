/* A preloaded tool, like a profiler: counts allocations and passes them on to the next library.
 *
 * Prints the count to standard error at the end: `tracer: N`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static int seen;

int cuMemAlloc_v2(unsigned long long *at, unsigned long bytes) {
    int (*next)(unsigned long long *, unsigned long) = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    seen++;
    return next ? next(at, bytes) : 999;
}

__attribute__((destructor)) static void report(void) {
    fprintf(stderr, "tracer: %d\n", seen);
}

/* A driver that does nothing in a few nanoseconds, so that what a shim adds can be seen.
 *
 * One device of 1 TiB, one context at a time per thread, streams that are always done. Device addresses
 * are never touched. Every thread recycles its own few addresses, as cheaply as a driver could. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef uint64_t P;
typedef void *H;
#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 1, NOT_FOUND = 500 };

static _Thread_local H current;
static _Thread_local volatile uint64_t sink;

API R cuInit(unsigned flags) { (void)flags; return OK; }
API R cuDriverGetVersion(int *v) { *v = 12090; return OK; }
API R cuDeviceGetCount(int *n) { *n = 1; return OK; }
API R cuDeviceGet(int *d, int ordinal) { *d = 0; return ordinal ? 101 : OK; }
API R cuDeviceGetName(char *s, int n, int d) { (void)d; strncpy(s, "bench", (size_t)n); return OK; }
API R cuDeviceGetAttribute(int *v, int a, int d) { (void)a; (void)d; *v = 1; return OK; }
API R cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = 1ull << 40; return OK; }
API R cuDeviceGetUuid_v2(unsigned char *u, int d) {
    (void)d;
    for (int i = 0; i < 16; i++) u[i] = (unsigned char)(i + 1);
    return OK;
}
API R cuDeviceGetUuid(unsigned char *u, int d) { return cuDeviceGetUuid_v2(u, d); }

API R cuCtxCreate_v2(H *c, unsigned f, int d) { (void)f; (void)d; *c = current = malloc(16); return OK; }
API R cuCtxDestroy_v2(H c) { free(c); current = NULL; return OK; }
API R cuCtxGetCurrent(H *c) { *c = current; return OK; }
API R cuCtxSetCurrent(H c) { current = c; return OK; }
API R cuCtxPushCurrent_v2(H c) { current = c; return OK; }
API R cuCtxPopCurrent_v2(H *c) { if (c) *c = current; current = NULL; return OK; }
API R cuCtxGetDevice(int *d) { *d = 0; return current ? OK : 201; }
API R cuCtxSynchronize(void) { return OK; }

API R cuModuleLoadData(H *m, const void *image) { (void)image; *m = malloc(16); return OK; }
API R cuModuleGetFunction(H *f, H m, const char *n) { (void)n; *f = m; return OK; }
API R cuLaunchKernel(H f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                     unsigned bz, unsigned shared, H stream, void **params, void **extra) {
    (void)f; (void)gy; (void)gz; (void)bx; (void)by; (void)bz; (void)shared; (void)stream;
    (void)params; (void)extra;
    sink = gx;
    return OK;
}

#define ROOM 256
static _Thread_local P spare[ROOM];
static _Thread_local unsigned spares;
static P next = 1ull << 32;
API R cuMemAlloc_v2(P *p, size_t n) {
    if (!n || n > 1ull << 40) return n ? 2 : INVALID;
    *p = spares ? spare[--spares] : __atomic_fetch_add(&next, 2ull << 20, __ATOMIC_RELAXED);
    return OK;
}
API R cuMemFree_v2(P p) {
    if (spares < ROOM) spare[spares++] = p;
    return OK;
}
/* One pool, which has all it will ever need. */
API R cuMemAllocAsync(P *p, size_t n, H s) { (void)s; return cuMemAlloc_v2(p, n); }
API R cuMemFreeAsync(P p, H s) { (void)s; return cuMemFree_v2(p); }
API R cuDeviceGetMemPool(H *h, int d) { (void)d; *h = &next; return OK; }
API R cuDeviceGetDefaultMemPool(H *h, int d) { return cuDeviceGetMemPool(h, d); }
API R cuMemPoolGetAttribute(H h, int what, uint64_t *value) { (void)h; (void)what; *value = 32 << 20; return OK; }
API R cuMemPoolTrimTo(H h, size_t keep) { (void)h; (void)keep; return OK; }
API R cuMemGetInfo_v2(size_t *avail, size_t *total) { *avail = *total = 1ull << 40; return OK; }
API R cuMemGetAddressRange_v2(P *base, size_t *n, P p) { *base = p; *n = 2ull << 20; return OK; }
API R cuMemcpyDtoH_v2(void *to, P from, size_t n) { (void)to; (void)from; (void)n; return OK; }
API R cuMemsetD32_v2(P to, unsigned v, size_t n) { (void)to; (void)v; (void)n; return OK; }
API R cuMemcpyHtoDAsync_v2(P to, const void *from, size_t n, H stream) {
    (void)from; (void)n; (void)stream;
    sink = to;
    return OK;
}

API R cuStreamCreate(H *s, unsigned f) { (void)f; *s = malloc(16); return OK; }
API R cuStreamDestroy_v2(H s) { free(s); return OK; }
API R cuStreamSynchronize(H s) { (void)s; return OK; }
API R cuStreamIsCapturing(H s, int *status) { (void)s; *status = 0; return OK; }
API R cuThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return OK; }
API R cuEventCreate(H *e, unsigned f) { (void)f; *e = malloc(16); return OK; }
API R cuEventDestroy_v2(H e) { free(e); return OK; }
API R cuEventRecord(H e, H s) { (void)e; (void)s; return OK; }
API R cuEventQuery(H e) { (void)e; return OK; }
API R cuEventSynchronize(H e) { (void)e; return OK; }
API R cuEventElapsedTime(float *ms, H a, H b) { (void)a; (void)b; *ms = 0.001f; return OK; }

static const struct { const char *name; void *address; } table[] = { /* sorted by name */
    {"cuCtxGetCurrent", (void *)cuCtxGetCurrent},
    {"cuCtxSynchronize", (void *)cuCtxSynchronize},
    {"cuDeviceGet", (void *)cuDeviceGet},
    {"cuDeviceGetAttribute", (void *)cuDeviceGetAttribute},
    {"cuDeviceGetCount", (void *)cuDeviceGetCount},
    {"cuDeviceGetName", (void *)cuDeviceGetName},
    {"cuDeviceGetUuid", (void *)cuDeviceGetUuid_v2},
    {"cuDeviceTotalMem", (void *)cuDeviceTotalMem_v2},
    {"cuEventCreate", (void *)cuEventCreate},
    {"cuEventQuery", (void *)cuEventQuery},
    {"cuEventRecord", (void *)cuEventRecord},
    {"cuInit", (void *)cuInit},
    {"cuLaunchKernel", (void *)cuLaunchKernel},
    {"cuMemAlloc", (void *)cuMemAlloc_v2},
    {"cuMemFree", (void *)cuMemFree_v2},
    {"cuMemGetInfo", (void *)cuMemGetInfo_v2},
    {"cuMemcpyHtoDAsync", (void *)cuMemcpyHtoDAsync_v2},
    {"cuModuleGetFunction", (void *)cuModuleGetFunction},
    {"cuModuleLoadData", (void *)cuModuleLoadData},
    {"cuStreamCreate", (void *)cuStreamCreate},
    {"cuStreamSynchronize", (void *)cuStreamSynchronize},
};
API R cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *why) {
    (void)version; (void)flags;
    size_t low = 0, high = sizeof table / sizeof *table;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(name, table[middle].name);
        if (!order) {
            *address = table[middle].address;
            if (why) *why = 0;
            return OK;
        }
        if (order < 0) high = middle; else low = middle + 1;
    }
    *address = NULL;
    if (why) *why = 1;
    return NOT_FOUND;
}
API R cuGetProcAddress(const char *name, void **address, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, address, version, flags, NULL);
}
API R cuGetErrorString(R r, const char **s) { (void)r; *s = "bench"; return OK; }
API R cuGetErrorName(R r, const char **s) { (void)r; *s = "BENCH"; return OK; }

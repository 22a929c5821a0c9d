/* A library that is linked to the driver, as frameworks are: hands out what the loader bound it to. */
#include <string.h>

extern int cuInit(unsigned);
extern int cuDeviceGet(int *, int);
extern int cuCtxCreate_v2(void **, unsigned, int);
extern int cuMemAlloc_v2(unsigned long long *, unsigned long);

void *bound(const char *name) {
    if (!strcmp(name, "cuInit")) return (void *)cuInit;
    if (!strcmp(name, "cuDeviceGet")) return (void *)cuDeviceGet;
    if (!strcmp(name, "cuCtxCreate_v2")) return (void *)cuCtxCreate_v2;
    return (void *)cuMemAlloc_v2;
}

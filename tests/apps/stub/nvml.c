/* An NVML in C: one device of 1 GiB with 10 MiB used, the calling process on it and two others that
 * share a cgroup with no process. */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef unsigned R;
enum { OK = 0, INVALID = 2, TOO_SMALL = 7 };
struct v1 { unsigned pid; uint64_t used; };
struct v2 { unsigned pid; uint64_t used; unsigned gi, ci; };
struct sample { unsigned pid; uint64_t when; unsigned sm, mem, enc, dec; };

R nvmlInit_v2(void) { return OK; }
R nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)0x77; return i ? INVALID : OK; }
R nvmlDeviceGetUUID(void *d, char *text, unsigned n) {
    const char *uuid = "GPU-10101010-1010-1010-1010-101010101010";
    if (d != (void *)0x77 || n <= strlen(uuid)) return INVALID;
    strcpy(text, uuid);
    return OK;
}
R nvmlDeviceGetMemoryInfo(void *d, uint64_t *m) {
    (void)d;
    m[0] = 1ull << 30; m[2] = 10 << 20; m[1] = m[0] - m[2];
    return OK;
}
R nvmlDeviceGetMemoryInfo_v2(void *d, uint64_t *m) {
    (void)d;
    m[1] = 1ull << 30; m[2] = 1 << 20; m[4] = 10 << 20; m[3] = m[1] - m[2] - m[4];
    return OK;
}

static unsigned pid(int i) { return i == 1 ? (unsigned)getpid() : 0x7ffffff0u + (unsigned)i; }
#define LIST(name, type)                                                         \
    R name(void *d, unsigned *count, struct type *list) {                        \
        unsigned room = *count;                                                  \
        (void)d;                                                                 \
        *count = 3;                                                              \
        if (room < 3 || !list) return TOO_SMALL;                                 \
        memset(list, 0, 3 * sizeof *list);                                       \
        for (int i = 0; i < 3; i++) { list[i].pid = pid(i); list[i].used = 5; }  \
        return OK;                                                               \
    }
LIST(nvmlDeviceGetComputeRunningProcesses, v1)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, v2)
R nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned *count, struct v2 *list) {
    (void)d; (void)list;
    *count = 0;
    return OK;
}
R nvmlDeviceGetProcessUtilization(void *d, struct sample *list, unsigned *count, uint64_t since) {
    unsigned room = *count;
    (void)d;
    *count = 3;
    if (room < 3 || !list || since != 12345) return TOO_SMALL;
    for (int i = 0; i < 3; i++) list[i] = (struct sample){pid(i), 1, 50, 0, 0, 0};
    return OK;
}
R nvmlDeviceGetAccountingPids(void *d, unsigned *count, unsigned *list) {
    unsigned room = *count;
    (void)d;
    *count = 3;
    if (room < 3 || !list) return TOO_SMALL;
    for (int i = 0; i < 3; i++) list[i] = pid(i);
    return OK;
}
R nvmlDeviceGetAccountingStats(void *d, unsigned of, uint64_t *stats) {
    (void)d; (void)of;
    *stats = 1;
    return OK;
}
struct session { unsigned id, pid, other[6]; };
R nvmlDeviceGetEncoderSessions(void *d, unsigned *count, struct session *list) {
    unsigned room = *count;
    (void)d;
    *count = 3;
    if (room < 3) return room ? TOO_SMALL : OK;
    for (int i = 0; i < 3; i++) list[i] = (struct session){(unsigned)i, pid(i), {0}};
    return OK;
}
R nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 5; return d == (void *)0x77 ? 77 : INVALID; }

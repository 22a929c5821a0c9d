/* An NVML in C: one device of 1 GiB, on which are STUB_PROCESSES processes (three if it is not set) that
 * use 10 MiB: the calling one, and others that share a cgroup with no process. Its UUID is STUB_UUID. The
 * files `hang` and `lost` in STUB_DIR let it hang, or lose the device, while they exist. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned R;
enum { OK = 0, INVALID = 2, TOO_SMALL = 7, LOST = 15 };
struct v1 { unsigned pid; uint64_t used; };
struct v2 { unsigned pid; uint64_t used; unsigned gi, ci; };
struct sample { unsigned pid; uint64_t when; unsigned sm, mem, enc, dec; };

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value ? value : otherwise;
}
static unsigned processes(void) { return (unsigned)atoi(setting("STUB_PROCESSES", "3")); }
static uint64_t used(void) { return processes() ? 10 << 20 : 0; }
static int there(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", setting("STUB_DIR", "/nowhere"), name);
    return access(path, F_OK) == 0;
}
static R busy(void) {
    while (there("hang")) usleep(1000);
    return there("lost") ? LOST : OK;
}

R nvmlInit_v2(void) { return OK; }
R nvmlShutdown(void) { return OK; }
R nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return OK; }
R nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)0x77; return i ? INVALID : OK; }
R nvmlDeviceGetHandleByUUID(const char *uuid, void **d) {
    (void)uuid;
    *d = (void *)0x77;
    return busy();
}
R nvmlDeviceGetUUID(void *d, char *text, unsigned n) {
    const char *uuid = setting("STUB_UUID", "GPU-10101010-1010-1010-1010-101010101010");
    if (d != (void *)0x77 || n <= strlen(uuid)) return INVALID;
    strcpy(text, uuid);
    return OK;
}
R nvmlDeviceGetMemoryInfo(void *d, uint64_t *m) {
    (void)d;
    m[0] = 1ull << 30; m[2] = used(); m[1] = m[0] - m[2];
    return OK;
}
R nvmlDeviceGetMemoryInfo_v2(void *d, uint64_t *m) {
    (void)d;
    m[1] = 1ull << 30; m[2] = 1 << 20; m[4] = used(); m[3] = m[1] - m[2] - m[4];
    return OK;
}

static unsigned pid(unsigned i) { return i == 1 ? (unsigned)getpid() : 0x7ffffff0u + i; }
#define LIST(name, type)                                                         \
    R name(void *d, unsigned *count, struct type *list) {                        \
        unsigned room = *count;                                                  \
        (void)d;                                                                 \
        *count = processes();                                                    \
        if (*count && (room < *count || !list)) return TOO_SMALL;                \
        for (unsigned i = 0; i < *count; i++)                                    \
            list[i] = (struct type){.pid = pid(i), .used = 5};                   \
        return busy();                                                           \
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
    *count = processes();
    if (room < *count || !list || since != 12345) return TOO_SMALL;
    for (unsigned i = 0; i < *count; i++) list[i] = (struct sample){pid(i), 1, 50, 0, 0, 0};
    return OK;
}
R nvmlDeviceGetAccountingPids(void *d, unsigned *count, unsigned *list) {
    unsigned room = *count;
    (void)d;
    *count = processes();
    if (room < *count || !list) return TOO_SMALL;
    for (unsigned i = 0; i < *count; i++) list[i] = pid(i);
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
    *count = processes();
    if (room < *count) return room ? TOO_SMALL : OK;
    for (unsigned i = 0; i < *count; i++) list[i] = (struct session){i, pid(i), {0}};
    return OK;
}
R nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 5; return d == (void *)0x77 ? 77 : INVALID; }

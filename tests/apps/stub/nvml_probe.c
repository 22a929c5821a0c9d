/* Asks NVML what a monitor would, and prints what came back. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef unsigned R;
static void *nvml;
static void *sym(const char *name) {
    void *at = dlsym(nvml, name);
    if (!at) { printf("missing %s\n", name); exit(3); }
    return at;
}
#define CALL(name, types, ...) (((R(*) types)sym(name))(__VA_ARGS__))
#define LIST(label, name, bytes)                                                          \
    do {                                                                                  \
        char list[8 * bytes];                                                             \
        unsigned count = 8, own = 0;                                                      \
        R r = CALL(name, (void *, unsigned *, void *), device, &count, list);             \
        for (unsigned i = 0; i < count; i++)                                              \
            own |= *(unsigned *)(list + i * bytes) == (unsigned)getpid();                 \
        printf(label " %u %u %s\n", r, count, own ? "self" : "none");                     \
    } while (0)

int main(void) {
    void *device = NULL;
    uint64_t m[5] = {0};
    unsigned count = 0, mw = 0;
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml || CALL("nvmlInit_v2", (void))) return 2;
    CALL("nvmlDeviceGetHandleByIndex_v2", (unsigned, void **), 0, &device);
    R r = CALL("nvmlDeviceGetMemoryInfo", (void *, uint64_t *), device, m);
    printf("memory %u %lu %lu %lu\n", r, m[0], m[1], m[2]);
    r = CALL("nvmlDeviceGetMemoryInfo_v2", (void *, uint64_t *), device, m);
    printf("memory2 %u %lu %lu %lu %lu\n", r, m[1], m[3], m[4], m[2]);
    r = CALL("nvmlDeviceGetComputeRunningProcesses_v3", (void *, unsigned *, void *), device, &count, NULL);
    printf("count %u %u\n", r, count);
    LIST("compute", "nvmlDeviceGetComputeRunningProcesses_v3", 24);
    LIST("compute1", "nvmlDeviceGetComputeRunningProcesses", 16);
    LIST("graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3", 24);
    char samples[8 * 32];
    count = 8;
    r = CALL("nvmlDeviceGetProcessUtilization", (void *, void *, unsigned *, uint64_t), device, samples, &count, 12345ul);
    printf("utilization %u %u %s\n", r, count, *(unsigned *)samples == (unsigned)getpid() ? "self" : "none");
    LIST("accounting", "nvmlDeviceGetAccountingPids", 4);
    unsigned sessions[3][8] = {{0}}, known = 0;
    count = 0;
    r = CALL("nvmlDeviceGetEncoderSessions", (void *, unsigned *, void *), device, &count, NULL);
    known = count;
    count = 3;
    r = r * 100 + CALL("nvmlDeviceGetEncoderSessions", (void *, unsigned *, void *), device, &count, sessions);
    printf("encoder %u %u %u %s\n", r, known, count, sessions[0][1] == (unsigned)getpid() ? "self" : "none");
    uint64_t stats[16] = {0};
    r = CALL("nvmlDeviceGetAccountingStats", (void *, unsigned, void *), device, (unsigned)getpid(), stats);
    printf("past %u %u\n", r, CALL("nvmlDeviceGetAccountingStats", (void *, unsigned, void *), device, 0x7ffffff0u, stats));
    printf("power %u\n", CALL("nvmlDeviceGetPowerUsage", (void *, unsigned *), device, &mw));
    printf("lacking %u\n", CALL("nvmlDeviceGetTemperature", (void *, unsigned, unsigned *), device, 0, &mw));
    return 0;
}

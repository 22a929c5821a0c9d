/* An NVML with one GPU that hangs, or loses it, when a file says so. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int there(const char *name) {
    char path[4096] = {0};
    const char *dir = getenv("STUB_DIR");
    strncpy(path, dir ? dir : "/nowhere", 4000);
    strcat(path, name);
    return access(path, F_OK) == 0;
}

static unsigned busy(void) {
    while (there("/hang")) usleep(1000);
    return there("/lost") ? 15 : 0;
}

unsigned nvmlInit_v2(void) { return 0; }
unsigned nvmlShutdown(void) { return 0; }
unsigned nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
unsigned nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = device;
    return index == 0 ? 0 : 2;
}
unsigned nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    (void)uuid;
    *device = device;
    return busy();
}
unsigned nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    (void)device;
    strncpy(uuid, "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", length);
    return 0;
}
unsigned nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3]) {
    (void)device;
    memory[0] = memory[1] = 1ull << 30;
    memory[2] = 0;
    return 0;
}
unsigned nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *infos) {
    (void)device;
    (void)infos;
    *count = 0;
    return busy();
}

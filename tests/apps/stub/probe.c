/* A program that does to the driver what its arguments say, and prints what came back.
 *
 * Each argument is one step, `verb` or `verb:number:number`; each step prints one line `verb result ...`.
 * Allocations are numbered from 0 in the order they were made, failed ones too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t P;
static void *driver;
static P made[65536];
static int count;
static void *context;

static void *sym(const char *name) {
    void *at = dlsym(driver, name);
    if (!at) { printf("missing %s\n", name); exit(3); }
    return at;
}
#define CALL(name, types, ...) (((int(*) types)sym(name))(__VA_ARGS__))

/* The file that holds the code at an address. */
static const char *owner(void *at) {
    Dl_info info;
    if (!at) return "none";
    if (!dladdr(at, &info)) return "unknown";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}
static void *by_name(const char *name, int version, int flags, int *result) {
    void *at = NULL;
    int why = -1;
    *result = CALL("cuGetProcAddress_v2", (const char *, void **, int, uint64_t, int *), name, &at,
                   version, (uint64_t)flags, &why);
    *result = *result * 10 + why;
    return at;
}
static void *plugin(const char *path, int how) {
    void *handle = how == -1 ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW) : dlopen(path, RTLD_NOW | how);
    void *(*allocator)(void) = handle ? (void *(*)(void))dlsym(handle, "plugin_allocator") : NULL;
    return allocator ? allocator() : NULL;
}

struct shape { size_t width, height; int format; unsigned channels; };
struct shape3 { size_t width, height, depth; int format; unsigned channels, flags; };
struct allocation { int kind, handles, place, id; void *none; uint64_t flags; };
struct tile { P kind, array, type, words[4]; int op, handles; P memory, offset, mask, none; };
struct ipc { P of, bytes, none[6]; };
struct external { P kind, handle[2], size, more[9]; };

/* A thread that makes one call and is cancelled meanwhile: how the call ended, and the thread. */
struct cancelled { const char *verb; P bytes; volatile int begun; int result; P at; };
static void *cancelled_call(void *argument) {
    struct cancelled *call = argument;
    CALL("cuCtxSetCurrent", (void *), context);
    call->begun = 1;
    if (!strcmp(call->verb, "copy")) call->result = CALL("cuMemcpyDtoH_v2", (void *, P, size_t), &call->at, made[0], 8);
    else call->result = CALL("cuMemAlloc_v2", (P *, size_t), &call->at, call->bytes);
    pthread_testcancel();
    return NULL;
}

/* Eventfds of the program's own, and the kernel's ids of what they were. */
static int own[64], owned;
static long ids[64];
static long eventfd_id(int fd) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *info = fopen(path, "r");
    size_t len = info ? fread(text, 1, sizeof text - 1, info) : 0;
    if (info) fclose(info);
    text[len] = 0;
    char *id = strstr(text, "eventfd-id:");
    return id ? atol(id + 11) : -1;
}

static int step(char *text) {
    char *part[5] = {0};
    int parts = 0;
    for (char *p = strtok(text, ":"); p && parts < 5; p = strtok(NULL, ":")) part[parts++] = p;
    const char *verb = part[0];
    P a = part[1] ? strtoull(part[1], NULL, 0) : 0, b = part[2] ? strtoull(part[2], NULL, 0) : 0;
    P c = part[3] ? strtoull(part[3], NULL, 0) : 0;
    P *slot = &made[count];
    size_t x = 0, y = 0;
    int r = -1;
    if (!strcmp(verb, "init")) r = CALL("cuInit", (unsigned), 0);
    else if (!strcmp(verb, "ctx")) r = CALL("cuCtxCreate_v2", (void **, unsigned, int), &context, 0, (int)a);
    else if (!strcmp(verb, "green")) r = CALL("cuGreenCtxCreate", (void **, void *, int, unsigned), &context, NULL, (int)a, 1);
    else if (!strcmp(verb, "attach")) r = CALL("cuCtxAttach", (void **, unsigned), &context, (unsigned)a);
    else if (!strcmp(verb, "destroy")) r = CALL("cuCtxDestroy_v2", (void *), context);
    else if (!strcmp(verb, "retain")) {
        r = CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, (int)a);
        CALL("cuCtxSetCurrent", (void *), context);
    } else if (!strcmp(verb, "drop")) r = CALL("cuDevicePrimaryCtxRelease_v2", (int), (int)a);
    else if (!strcmp(verb, "alloc")) { r = CALL("cuMemAlloc_v2", (P *, size_t), slot, a); count++; }
    else if (!strcmp(verb, "narrow")) { r = CALL("cuMemAlloc", (P *, unsigned), slot, (unsigned)a); count++; }
    else if (!strcmp(verb, "freenarrow")) r = CALL("cuMemFree", (unsigned), (unsigned)made[a]);
    else if (!strcmp(verb, "managed")) { r = CALL("cuMemAllocManaged", (P *, size_t, unsigned), slot, a, 1); count++; }
    else if (!strcmp(verb, "pitch")) { r = CALL("cuMemAllocPitch_v2", (P *, size_t *, size_t, size_t, unsigned), slot, &x, a, b, 4); count++; }
    else if (!strcmp(verb, "async")) { r = CALL("cuMemAllocAsync_ptsz", (P *, size_t, void *), slot, a, NULL); count++; }
    else if (!strcmp(verb, "free")) r = CALL("cuMemFree_v2", (P), made[a]);
    else if (!strcmp(verb, "freeasync")) r = CALL("cuMemFreeAsync", (P, void *), made[a], NULL);
    else if (!strcmp(verb, "pool")) { /* on the place a, keeping b bytes */
        struct { int kind, handles, place, id; void *none; uint64_t most, rest[7]; } props = {1, 0, a ? (int)a : 1, 0, NULL, 0, {0}};
        r = CALL("cuMemPoolCreate", (P *, void *), slot, &props);
        if (r == 0) CALL("cuMemPoolSetAttribute", (P, int, P *), *slot, 4, &b);
        count++;
    } else if (!strcmp(verb, "pooled")) { r = CALL("cuMemAllocFromPoolAsync", (P *, size_t, P, void *), slot, b, made[a], NULL); count++; }
    else if (!strcmp(verb, "trim")) r = CALL("cuMemPoolTrimTo", (P, size_t), made[a], b);
    else if (!strcmp(verb, "unpool")) r = CALL("cuMemPoolDestroy", (P), made[a]);
    else if (!strcmp(verb, "graph")) { /* that allocates a bytes, made executable */
        struct { int kind, handles, place, id; P rest[11], bytes, at; } params = {1, 0, 1, 0, {0}, a, 0};
        void *graph, *node;
        CALL("cuGraphCreate", (void **, unsigned), &graph, 0);
        CALL("cuGraphAddMemAllocNode", (void **, void *, void *, size_t, void *), &node, graph, NULL, 0, &params);
        r = CALL("cuGraphInstantiateWithFlags", (P *, void *, uint64_t), slot, graph, 0);
        count++;
    } else if (!strcmp(verb, "rungraph")) r = CALL("cuGraphLaunch", (P, void *), made[a], NULL);
    else if (!strcmp(verb, "upload")) r = CALL("cuGraphUpload", (P, void *), made[a], NULL);
    else if (!strcmp(verb, "ungraph")) r = CALL("cuGraphExecDestroy", (P), made[a]);
    else if (!strcmp(verb, "trimgraphs")) r = CALL("cuDeviceGraphMemTrim", (int), (int)a);
    else if (!strcmp(verb, "freeraw")) r = CALL("cuMemFree_v2", (P), a);
    else if (!strcmp(verb, "create")) {
        struct allocation what = {1, 0, (int)b, (int)c, NULL, 0};
        r = CALL("cuMemCreate", (P *, size_t, struct allocation *, uint64_t), slot, a, &what, 0);
        count++;
    } else if (!strcmp(verb, "release")) r = CALL("cuMemRelease", (P), made[a]);
    else if (!strcmp(verb, "map")) r = CALL("cuMemMap", (P, size_t, size_t, P, uint64_t), b, 4096, 0, made[a], 0);
    else if (!strcmp(verb, "unmap")) r = CALL("cuMemUnmap", (P, size_t), a, 4096);
    else if (!strcmp(verb, "retainat")) { r = CALL("cuMemRetainAllocationHandle", (P *, void *), slot, (void *)a); count++; }
    else if (!strcmp(verb, "array")) {
        struct shape shape = {a, b, 32, 1};
        r = CALL("cuArrayCreate_v2", (P *, struct shape *), slot, &shape);
        count++;
    } else if (!strcmp(verb, "unarray")) r = CALL("cuArrayDestroy", (P), made[a]);
    else if (!strcmp(verb, "export")) { /* a descriptor, or 64 bytes of a fabric handle */
        P handle[8] = {0};
        r = CALL("cuMemExportToShareableHandle", (void *, P, int, uint64_t), handle, made[a], b ? (int)b : 1, 0);
        made[count++] = (unsigned)handle[0];
    } else if (!strcmp(verb, "import")) { r = CALL("cuMemImportFromShareableHandle", (P *, void *, int), slot, (void *)made[a], 1); count++; }
    else if (!strcmp(verb, "importfd")) { r = CALL("cuMemImportFromShareableHandle", (P *, void *, int), slot, (void *)a, 1); count++; }
    else if (!strcmp(verb, "close")) r = close((int)made[a]);
    else if (!strcmp(verb, "multicast")) { r = CALL("cuMulticastCreate", (P *, void *), slot, NULL); count++; }
    else if (!strcmp(verb, "bind")) r = CALL("cuMulticastBindMem", (P, size_t, P, size_t, size_t, uint64_t), made[a], c, made[b], 0, 4096, 0);
    else if (!strcmp(verb, "unbind")) r = CALL("cuMulticastUnbind", (P, int, size_t, size_t), made[a], (int)b, c, 4096);
    else if (!strcmp(verb, "tile") || !strcmp(verb, "untile")) { /* array, level, memory */
        struct tile one = {0, made[a], 0, {b}, verb[0] == 't' ? 1 : 2, 0, verb[0] == 't' ? made[c] : 0, 0, 1, 0};
        r = CALL("cuMemMapArrayAsync", (struct tile *, unsigned, void *), &one, 1, NULL);
    } else if (!strcmp(verb, "array3")) { /* width, flags */
        struct shape3 shape = {a, 1, 0, 32, 1, (unsigned)b};
        r = CALL("cuArray3DCreate_v2", (P *, struct shape3 *), slot, &shape);
        count++;
    } else if (!strcmp(verb, "ipcget")) {
        struct ipc handle = {0};
        r = CALL("cuIpcGetMemHandle", (struct ipc *, P), &handle, made[a]);
        x = handle.of;
    } else if (!strcmp(verb, "ipcopen")) { /* a handle and how large the memory behind it is */
        struct ipc handle = {a, b, {0}};
        r = CALL("cuIpcOpenMemHandle_v2", (P *, struct ipc, unsigned), slot, handle, 1);
        count++;
    } else if (!strcmp(verb, "ipcclose")) r = CALL("cuIpcCloseMemHandle", (P), made[a]);
    else if (!strcmp(verb, "external")) { /* so large; of this descriptor */
        struct external what = {1, {b ? made[b] : ~0u}, a, {0}};
        r = CALL("cuImportExternalMemory", (P *, struct external *), slot, &what);
        count++;
    } else if (!strcmp(verb, "within")) { r = CALL("cuExternalMemoryGetMappedBuffer", (P *, P, void *), slot, made[a], NULL); count++; }
    else if (!strcmp(verb, "unexternal")) r = CALL("cuDestroyExternalMemory", (P), made[a]);
    else if (!strcmp(verb, "pin")) { r = CALL("cuMemAllocHost_v2", (P *, size_t), slot, a); count++; }
    else if (!strcmp(verb, "pinflags")) { r = CALL("cuMemHostAlloc", (P *, size_t, unsigned), slot, a, (unsigned)b); count++; }
    else if (!strcmp(verb, "unpin")) r = CALL("cuMemFreeHost", (P), made[a]);
    else if (!strcmp(verb, "register")) r = CALL("cuMemHostRegister_v2", (P, size_t, unsigned), a, b, part[3] ? (unsigned)atoi(part[3]) : 0);
    else if (!strcmp(verb, "unregister")) r = CALL("cuMemHostUnregister", (P), a);
    else if (!strcmp(verb, "limit")) r = CALL("cuCtxSetLimit", (int, size_t), (int)a, b);
    else if (!strcmp(verb, "limited")) r = CALL("cuCtxGetLimit", (size_t *, int), &x, (int)a);
    else if (!strcmp(verb, "reset")) r = CALL("cuDevicePrimaryCtxReset_v2", (int), (int)a);
    else if (!strcmp(verb, "info")) { r = CALL("cuMemGetInfo_v2", (size_t *, size_t *), &x, &y); }
    else if (!strcmp(verb, "total")) { r = CALL("cuDeviceTotalMem_v2", (size_t *, int), &x, (int)a); }
    else if (!strcmp(verb, "launch")) r = CALL("cuLaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), NULL, 7, 1, 1, 1, 1, 1, 0, NULL, NULL, (void **)11);
    else if (!strcmp(verb, "write")) r = CALL("cuStreamWriteValue32_v2", (void *, P, unsigned, unsigned), (void *)1, 2, 3, 4);
    else if (!strcmp(verb, "call")) { /* with nothing, if there is such a function */
        int (*any)(P, P, P, P, P, P, P, P, P, P, P) = (int (*)(P, P, P, P, P, P, P, P, P, P, P))dlsym(driver, part[1]);
        if (any) r = any(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    }
    else if (!strcmp(verb, "absent")) r = CALL("cuGraphDestroy", (void *), NULL);
    else if (!strcmp(verb, "flood")) { /* as many as there are, of this size */
        for (x = 0; (r = CALL("cuMemAlloc_v2", (P *, size_t), &made[count], a)) == 0; x++) count++;
        y = count;
    } else if (!strcmp(verb, "churn")) { /* take and give back, a times */
        for (r = 0; x < a && r == 0; x++) {
            P p;
            r = CALL("cuMemAlloc_v2", (P *, size_t), &p, b);
            if (r == 0) r = CALL("cuMemFree_v2", (P), p);
        }
    } else if (!strcmp(verb, "which")) {
        printf("which %s\n", owner(dlsym(driver, part[1])));
        return 0;
    } else if (!strcmp(verb, "whichby")) { /* name:version:flags */
        void *at = by_name(part[1], (int)b, part[3] ? atoi(part[3]) : 0, &r);
        printf("whichby %d %s\n", r, owner(at));
        return 0;
    } else if (!strcmp(verb, "deep")) {
        void *own = dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
        printf("deep %s\n", owner(own ? dlsym(own, "cuMemAlloc_v2") : NULL));
        return 0;
    } else if (!strcmp(verb, "dlvsym")) {
        void *(*raw)(void *, const char *) = dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5");
        printf("dlvsym %s\n", owner(raw(driver, "cuMemAlloc_v2")));
        return 0;
    } else if (!strcmp(verb, "plugin")) {
        printf("plugin %s\n", owner(plugin(getenv("PLUGIN"), 0)));
        return 0;
    } else if (!strcmp(verb, "deepplugin")) {
        printf("deepplugin %s\n", owner(plugin(getenv("PLUGIN"), RTLD_DEEPBIND)));
        return 0;
    } else if (!strcmp(verb, "newplugin")) {
        printf("newplugin %s\n", owner(plugin(getenv("PLUGIN"), -1)));
        return 0;
    } else if (!strcmp(verb, "unversioned")) {
        void *own = dlopen("libcuda.so", RTLD_NOW);
        printf("unversioned %s\n", owner(own ? dlsym(own, "cuMemAlloc_v2") : NULL));
        return 0;
    } else if (!strcmp(verb, "closeall")) {
        for (int fd = 3; fd < 256; fd++) close(fd);
        r = 0;
    } else if (!strcmp(verb, "reuse")) { /* closes what is not ours, and opens a eventfds with counts of 0 */
        for (int fd = 3; fd < 256; fd++) close(fd);
        for (r = 0; owned < (int)a && owned < 64; owned++) {
            own[owned] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
            ids[owned] = eventfd_id(own[owned]);
        }
    } else if (!strcmp(verb, "reused")) { /* how many are what they were, and their counts */
        for (int i = 0; i < owned; i++) {
            uint64_t got = 0;
            if (ids[i] < 0 || eventfd_id(own[i]) != ids[i]) continue;
            x++;
            if (read(own[i], &got, sizeof got) == sizeof got) y += got;
        }
        r = owned;
    } else if (!strcmp(verb, "cancel")) { /* bytes to allocate, or 0 to copy */
        struct cancelled call = {a ? "alloc" : "copy", a, 0, -1, 0};
        pthread_t thread;
        void *end = NULL;
        pthread_create(&thread, NULL, cancelled_call, &call);
        while (!call.begun) usleep(1000);
        usleep(200000);
        printf("cancelling %d\n", pthread_cancel(thread));
        fflush(stdout);
        pthread_join(thread, &end);
        made[count++] = call.at;
        r = call.result;
        x = end == PTHREAD_CANCELED;
    } else if (!strcmp(verb, "fork")) { /* the rest of the steps happen in a child */
        fflush(stdout);
        pid_t child = fork();
        if (child) {
            int status;
            waitpid(child, &status, 0);
            exit(WIFEXITED(status) ? WEXITSTATUS(status) : 9);
        }
        return 0;
    } else if (!strcmp(verb, "wait")) { /* until a line comes */
        char line[16];
        printf("wait\n");
        fflush(stdout);
        return !fgets(line, sizeof line, stdin);
    } else return 4;
    printf("%s %d %zu %zu\n", verb, r, x, y);
    return 0;
}

int main(int argc, char **argv) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { printf("no driver: %s\n", dlerror()); return 2; }
    for (int i = 1; i < argc; i++) {
        int failed = step(argv[i]);
        fflush(stdout);
        if (failed) return failed;
    }
    return 0;
}

/* A driver in C for tests of the shim libraries: it accounts for memory, but copies nothing and runs nothing.
 *
 * STUB_DEVICES (default 1) devices of STUB_BYTES (default 64 GiB) each; device d has sixteen bytes of
 * 0x10 + d as UUID. An allocation of 0xbad000 bytes fails with 999, after all checks before it. Pointers
 * that were not handed out, or were freed, are invalid. With STUB_KEEPS no context can be destroyed.
 * The memory for the first STUB_LENT contexts is lent. Stream-ordered calls happen at once, and pools grow by
 * pieces of STUB_PIECE bytes. With STUB_OLD arrays are made by the older calls only. */
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int R;
typedef uint64_t P;
typedef void *H;
#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, TOO_EARLY = 3, NO_CONTEXT = 201, NOT_FOUND = 500, ODD = 999 };
enum { DEVICES = 8, LIVE = 1 << 16 };

struct context { int device; size_t heap, stack; };
/* A pool, which grows by pieces; what it keeps of freed memory is above its threshold given back. */
struct pool { int device, made, dying, live; size_t reserved, used, threshold; };
struct live { P at; size_t bytes; int device; struct context *context; int references; struct pool *pool; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct live live[LIVE];
static P next = 1ull << 32;
static struct context primary[DEVICES];
static int retained[DEVICES];
static _Thread_local struct context *current;
static int launches;
static int begun;

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}
static int devices(void) { return (int)setting("STUB_DEVICES", 1); }
static size_t capacity(void) { return (size_t)setting("STUB_BYTES", 64l << 30); }

enum { POOLS = 64, NO_DEVICE = 1000 };
static struct pool pools[POOLS]; /* the first ones are the devices' own */
static size_t graph_memory[DEVICES];

static size_t used(int device) {
    size_t sum = device < DEVICES ? graph_memory[device] : 0;
    for (int i = 0; i < POOLS; i++)
        if ((i < DEVICES ? i : pools[i].device) == device) sum += pools[i].reserved;
    for (int i = 0; i < LIVE; i++)
        if (live[i].at && live[i].device == device) sum += live[i].bytes;
    return sum;
}
static R take(P *at, size_t bytes, int device, struct context *context) {
    R result = NO_MEMORY;
    if (!at || !bytes) return INVALID;
    if (bytes == 0xbad000) return ODD;
    pthread_mutex_lock(&lock);
    int fits = used(device) + bytes <= capacity();
    for (int i = 0; i < LIVE && fits; i++) {
        if (live[i].at) continue;
        live[i] = (struct live){next, bytes, device, context, 1, NULL};
        *at = next;
        next += (bytes + 0xfffff) & ~0xfffffull;
        result = OK;
        break;
    }
    pthread_mutex_unlock(&lock);
    return result;
}
static struct live *find(P at) {
    for (int i = 0; at && i < LIVE; i++)
        if (live[i].at == at) return &live[i];
    return NULL;
}
static size_t pieces(size_t bytes) {
    size_t piece = (size_t)setting("STUB_PIECE", 1);
    return (bytes + piece - 1) / piece * piece;
}
static void shrink(struct pool *pool, size_t keep) {
    size_t needed = pieces(pool->used);
    if (needed < keep) needed = keep;
    if (needed < pool->reserved) pool->reserved = needed;
    if (pool->dying && !pool->live) *pool = (struct pool){0};
}
/* Nothing refers to an allocation any more. */
static void vanish(struct live *one) {
    one->at = 0;
    if (!one->pool) return;
    one->pool->used -= one->bytes;
    one->pool->live--;
    shrink(one->pool, one->pool->threshold);
}
static R drop(P at) {
    pthread_mutex_lock(&lock);
    struct live *found = find(at);
    if (found && --found->references == 0) vanish(found);
    pthread_mutex_unlock(&lock);
    return found ? OK : INVALID;
}
static void end(struct context *context) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < LIVE; i++)
        if (live[i].at && live[i].context == context) vanish(&live[i]);
    pthread_mutex_unlock(&lock);
}

API R cuInit(unsigned flags) { begun |= !flags; return flags ? INVALID : OK; }
API R cuDriverGetVersion(int *v) { *v = 12090; return OK; }
API R cuDeviceGetCount(int *n) { *n = devices(); return OK; }
API R cuDeviceGet(int *d, int ordinal) { *d = ordinal; return ordinal < devices() ? OK : 101; }
API R cuDeviceGetUuid(unsigned char *u, int d) {
    if (d < 0 || d >= devices()) return 101;
    memset(u, 0x10 + d, 16);
    return OK;
}
API R cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = capacity(); return OK; }

API R cuCtxCreate_v2(H *c, unsigned flags, int d) {
    (void)flags;
    static int refused;
    if (d < 0 || d >= devices()) return 101;
    if (refused < setting("STUB_LENT", 0)) return refused++, NO_MEMORY;
    *c = current = malloc(sizeof(struct context));
    *current = (struct context){d, 8 << 20, 1 << 10};
    return OK;
}
API R cuCtxDestroy_v2(H c) {
    if (!c) return NO_CONTEXT;
    if (setting("STUB_KEEPS", 0)) return ODD;
    end(c);
    free(c);
    if (current == c) current = NULL;
    return OK;
}
/* A part of a GPU, which needs no other context made first. */
API R cuGreenCtxCreate(H *g, H what, int d, unsigned flags) {
    (void)what; (void)flags;
    primary[d].device = d;
    *g = current = &primary[d];
    return OK;
}
/* Stands for any way to a context that no shim hooks; the flags are the device. */
API R cuCtxAttach(H *c, unsigned d) { return cuGreenCtxCreate(c, NULL, (int)d, 0); }
API R cuDevicePrimaryCtxRetain(H *c, int d) {
    primary[d].device = d;
    retained[d]++;
    *c = &primary[d];
    return OK;
}
API R cuDevicePrimaryCtxRelease_v2(int d) {
    if (!retained[d]) return NO_CONTEXT;
    if (!--retained[d]) end(&primary[d]);
    return OK;
}
API R cuDevicePrimaryCtxReset_v2(int d) { end(&primary[d]); return OK; }
API R cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) {
    *flags = 0;
    *active = retained[d] > 0;
    return OK;
}
API R cuCtxGetCurrent(H *c) { *c = current; return begun ? OK : TOO_EARLY; }
API R cuCtxSetCurrent(H c) { current = c; return OK; }
API R cuCtxGetDevice(int *d) { if (current) *d = current->device; return current ? OK : NO_CONTEXT; }

API R cuMemAlloc_v2(P *p, size_t n) {
    return !begun ? TOO_EARLY : current ? take(p, n, current->device, current) : NO_CONTEXT;
}
API R cuMemAllocManaged(P *p, size_t n, unsigned flags) { (void)flags; return cuMemAlloc_v2(p, n); }
/* Rows are padded to 768, which a shim cannot guess. */
API R cuMemAllocPitch_v2(P *p, size_t *pitch, size_t width, size_t height, unsigned element) {
    (void)element;
    *pitch = (width + 767) / 768 * 768;
    return cuMemAlloc_v2(p, *pitch * height);
}
/* Waits as a driver does, in a call in which a thread can be cancelled. */
API R cuMemcpyDtoH_v2(void *to, P from, size_t bytes) {
    (void)to; (void)from; (void)bytes;
    usleep(1);
    return begun ? OK : TOO_EARLY;
}
API R cuMemFree_v2(P p) { return !begun ? TOO_EARLY : p ? drop(p) : OK; }
/* The host's memory, which is no device's. */
API R cuMemHostAlloc(P *p, size_t n, unsigned flags) {
    (void)flags;
    return current ? take(p, n, DEVICES, current) : NO_CONTEXT;
}
API R cuMemAllocHost_v2(P *p, size_t n) { return cuMemHostAlloc(p, n, 0); }
API R cuMemFreeHost(P p) { return drop(p); }
API R cuMemHostRegister_v2(P p, size_t n, unsigned flags) {
    (void)flags;
    P at;
    R r = find(p) ? 712 : take(&at, n, DEVICES, current);
    pthread_mutex_lock(&lock);
    if (r == OK) find(at)->at = p;
    pthread_mutex_unlock(&lock);
    return r;
}
API R cuMemHostUnregister(P p) { return drop(p); }
/* Two multiprocessors of 1024 threads each. */
API R cuDeviceGetAttribute(int *n, int what, int d) {
    *n = what == 16 ? 2 : what == 39 ? 1024 : 0;
    return d < 0 || d >= devices() ? 101 : OK;
}
static size_t *limit_of(int limit) {
    return !current ? NULL : limit == 0 ? &current->stack : limit == 2 ? &current->heap : NULL;
}
/* The limits are the stack's and the heap's, up to a GiB. */
API R cuCtxSetLimit(int limit, size_t n) {
    size_t *place = limit_of(limit);
    if (!place || n > 1 << 30) return INVALID;
    *place = n;
    return OK;
}
API R cuCtxGetLimit(size_t *n, int limit) {
    size_t *place = limit_of(limit);
    if (!place) return INVALID;
    *n = *place;
    return OK;
}
/* From before CUDA 3.2: 32 bits of everything, and so few bytes of addresses that one will do. */
API R cuMemAlloc(unsigned *p, unsigned n) {
    P at;
    R r = cuMemAlloc_v2(&at, n);
    pthread_mutex_lock(&lock);
    if (r == OK) find(at)->at = *p = (unsigned)(at >> 12);
    pthread_mutex_unlock(&lock);
    return r;
}
API R cuMemFree(unsigned p) { return cuMemFree_v2(p); }
API R cuMemGetInfo_v2(size_t *avail, size_t *total) {
    if (!current) return NO_CONTEXT;
    *total = capacity();
    *avail = capacity() - used(current->device);
    return OK;
}
static R from_pool(P *p, size_t n, struct pool *pool) {
    R r = current ? take(p, n, NO_DEVICE, NULL) : NO_CONTEXT; /* it outlives all contexts */
    if (r != OK) return r;
    pthread_mutex_lock(&lock);
    int device = pool < pools + DEVICES ? (int)(pool - pools) : pool->device;
    size_t wanted = pieces(pool->used + n), more = wanted > pool->reserved ? wanted - pool->reserved : 0;
    struct live *made = find(*p);
    if (used(device) + more > capacity()) {
        made->at = 0;
        r = NO_MEMORY;
    } else {
        pool->reserved += more;
        pool->used += n;
        pool->live++;
        made->pool = pool;
    }
    pthread_mutex_unlock(&lock);
    return r;
}
struct pool_props { int kind, handles, place, id; void *none; size_t most; };
API R cuMemPoolCreate(H *made, const struct pool_props *props) {
    for (int i = DEVICES; i < POOLS; i++)
        if (!pools[i].made) {
            pools[i] = (struct pool){.device = props->place == 1 ? props->id : DEVICES, .made = 1};
            *made = &pools[i];
            return OK;
        }
    return NO_MEMORY;
}
API R cuMemPoolDestroy(H h) {
    struct pool *pool = h;
    if (pool < pools + DEVICES || pool->dying) return INVALID;
    pool->dying = 1;
    pool->threshold = 0;
    shrink(pool, 0);
    return OK;
}
API R cuMemPoolGetAttribute(H h, int what, uint64_t *value) {
    struct pool *pool = h;
    if (pool->dying) abort(); /* as asking for what is gone may end */
    if (what == 5) *value = pool->reserved;
    else if (what == 7) *value = pool->used;
    else return INVALID;
    return OK;
}
API R cuMemPoolSetAttribute(H h, int what, uint64_t *value) {
    struct pool *pool = h;
    if (what != 4) return INVALID;
    pool->threshold = (size_t)*value;
    return OK;
}
API R cuMemPoolTrimTo(H h, size_t keep) {
    pthread_mutex_lock(&lock);
    shrink(h, keep);
    pthread_mutex_unlock(&lock);
    return OK;
}
API R cuDeviceGetDefaultMemPool(H *h, int d) { *h = &pools[d]; return d < devices() ? OK : 101; }
API R cuDeviceGetMemPool(H *h, int d) { return cuDeviceGetDefaultMemPool(h, d); }
API R cuMemAllocFromPoolAsync(P *p, size_t n, H pool, H s) { (void)s; return from_pool(p, n, pool); }
API R cuMemAllocAsync(P *p, size_t n, H s) {
    (void)s;
    return from_pool(p, n, current ? &pools[current->device] : NULL);
}
API R cuMemAllocAsync_ptsz(P *p, size_t n, H s) { return cuMemAllocAsync(p, n, s); }
API R cuMemFreeAsync(P p, H s) { (void)s; return drop(p); }
API R cuMemFreeAsync_ptsz(P p, H s) { return cuMemFreeAsync(p, s); }

struct location { int kind, id; };
struct allocation { int kind, handles; struct location place; };
static P mapped[64][2];
API R cuMemCreate(P *h, size_t n, const struct allocation *what, uint64_t flags) {
    (void)flags;
    int device = what->place.kind == 1 ? what->place.id : DEVICES; /* beyond all devices: the host */
    return take(h, n, device, NULL);
}
API R cuMemRelease(P h) { return drop(h); }
API R cuMemMap(P at, size_t n, size_t offset, P h, uint64_t flags) {
    (void)n; (void)offset; (void)flags;
    struct live *found = find(h);
    if (!found) return INVALID;
    found->references++;
    for (int i = 0; i < 64; i++)
        if (!mapped[i][0]) { mapped[i][0] = at; mapped[i][1] = h; return OK; }
    return INVALID;
}
API R cuMemUnmap(P at, size_t n) {
    (void)n;
    for (int i = 0; i < 64; i++)
        if (mapped[i][0] == at) { mapped[i][0] = 0; return drop(mapped[i][1]); }
    return INVALID;
}
API R cuMemRetainAllocationHandle(P *h, void *at) {
    for (int i = 0; i < 64; i++)
        if (mapped[i][0] == (P)at) { *h = mapped[i][1]; find(*h)->references++; return OK; }
    return INVALID;
}

/* Memory held by a descriptor, a tile or an object is never released: that is the task of the kernel and
 * the driver, and the tests read the shim's ledger. */
static struct live *hold(P h) {
    struct live *found = find(h);
    if (found) found->references++;
    return found;
}
static P exported[64];
API R cuMemExportToShareableHandle(void *at, P h, int kind, uint64_t flags) {
    (void)flags;
    if (!hold(h)) return INVALID;
    if (kind == 8) { memset(at, 8, 64); return OK; }
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC); /* all of them look alike, as the real ones */
    exported[fd % 64] = h;
    *(int *)at = fd;
    return OK;
}
/* A handle that this process did not export is another process's. */
API R cuMemImportFromShareableHandle(P *h, void *from, int kind) {
    P known = kind == 1 ? exported[(uintptr_t)from % 64] : 0;
    if (!hold(known)) return take(h, 512, DEVICES, NULL);
    *h = known;
    return OK;
}
API R cuMulticastCreate(P *h, void *prop) { (void)prop; return take(h, 512, DEVICES, NULL); }
API R cuMulticastBindMem(P mc, size_t at, P h, size_t from, size_t n, uint64_t flags) {
    (void)at; (void)from; (void)n; (void)flags;
    return find(mc) && hold(h) ? OK : INVALID;
}
API R cuMulticastUnbind(P mc, int d, size_t at, size_t n) {
    (void)d; (void)at; (void)n;
    return find(mc) ? OK : INVALID;
}

struct ipc { P of, bytes, none[6]; };
static struct { P of, at; int count; } opened[16];
API R cuIpcGetMemHandle(struct ipc *handle, P p) {
    struct live *found = find(p);
    *handle = (struct ipc){p, found ? found->bytes : 0, {0}};
    return found ? OK : INVALID;
}
API R cuIpcOpenMemHandle_v2(P *p, struct ipc handle, unsigned flags) {
    int i = 0;
    if (flags != 1) return INVALID;
    while (opened[i].count && opened[i].of != handle.of) i++;
    if (!opened[i].count && cuMemAlloc_v2(&opened[i].at, handle.bytes)) return NO_MEMORY;
    opened[i].of = handle.of;
    opened[i].count++;
    *p = opened[i].at;
    return OK;
}
API R cuIpcCloseMemHandle(P p) {
    for (int i = 0; i < 16; i++)
        if (opened[i].count && opened[i].at == p) return --opened[i].count ? OK : drop(p);
    return INVALID;
}
API R cuMemGetAddressRange_v2(P *base, size_t *n, P p) {
    struct live *found = find(p);
    if (found) { *base = p; *n = found->bytes; }
    return found ? OK : INVALID;
}

API R cuImportExternalMemory(P *m, void *what) { (void)what; return take(m, 512, DEVICES, current); }
API R cuExternalMemoryGetMappedBuffer(P *p, P m, void *what) {
    (void)what;
    return find(m) ? take(p, 512, DEVICES, current) : INVALID;
}
API R cuDestroyExternalMemory(P m) { return drop(m); }

/* An array takes a quarter more than its elements. Only one whose memory comes later can be asked. */
struct shape { size_t width, height; int format; unsigned channels; };
struct shape3 { size_t width, height, depth; int format; unsigned channels, flags; };
struct need { size_t size, alignment; unsigned reserved[4]; };
static size_t later[64];
static size_t array_bytes(size_t width, size_t height, unsigned channels) {
    return width * (height ? height : 1) * channels * 4 / 4 * 5;
}
API R cuArrayCreate_v2(P *a, const struct shape *s) {
    if (s->width >> 40) return INVALID;
    return cuMemAlloc_v2(a, array_bytes(s->width, s->height, s->channels));
}
API R cuArray3DCreate_v2(P *a, const struct shape3 *s) {
    if (s->width >> 40 || setting("STUB_OLD", 0)) return INVALID;
    if (!(s->flags & 0xc0)) return cuMemAlloc_v2(a, array_bytes(s->width, s->height, s->channels));
    for (int i = 0; i < 64; i++)
        if (!later[i]) {
            later[i] = array_bytes(s->width, s->height, s->channels);
            *a = (P)i + 1;
            return OK;
        }
    return NO_MEMORY;
}
API R cuArrayGetMemoryRequirements(struct need *n, P a, int d) {
    (void)d;
    if (!a || a > 64 || !later[a - 1]) return INVALID;
    n->size = later[a - 1];
    return OK;
}
API R cuArrayDestroy(P a) {
    if (!a || a > 64) return drop(a);
    R r = later[a - 1] ? OK : INVALID;
    later[a - 1] = 0;
    return r;
}
struct tile { P kind, array, type, words[4]; int op, handles; P memory, offset, mask, none; };
API R cuMemMapArrayAsync(const struct tile *tiles, unsigned count, H s) {
    (void)s;
    for (unsigned i = 0; i < count; i++)
        if (tiles[i].op == 1 && !hold(tiles[i].memory)) return INVALID;
    return OK;
}

API R cuLaunchKernel(H f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                     unsigned bz, unsigned shared, H stream, void **params, void **extra) {
    (void)f; (void)gy; (void)gz; (void)bx; (void)by; (void)bz; (void)shared; (void)stream;
    (void)params;
    __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
    return gx == 7 && extra == (void **)11 ? OK : INVALID; /* first and last argument arrived */
}
API R cuLaunchKernel_ptsz(H f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, H stream, void **params, void **extra) {
    return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
API R cuStreamIsCapturing(H s, int *status) { (void)s; *status = 0; return OK; }
API R cuEventCreate(H *e, unsigned f) { (void)f; *e = malloc(16); return OK; }
API R cuEventDestroy_v2(H e) { free(e); return OK; }
API R cuEventRecord(H e, H s) { (void)e; (void)s; return OK; }
API R cuEventQuery(H e) { (void)e; return OK; }
API R cuEventElapsedTime(float *ms, H a, H b) { (void)a; (void)b; *ms = 0.001f; return OK; }

/* Graphs of one allocation, of device 0; what a launch takes stays until it is trimmed. */
struct graph { size_t bytes; struct graph *of; int backed; };
struct node_params { struct pool_props pool; size_t rest[7], access[2], bytes; P at; };
static struct graph *execs[64];
API R cuGraphCreate(H *g, unsigned flags) { (void)flags; *g = calloc(1, sizeof(struct graph)); return OK; }
API R cuGraphAddMemAllocNode(H *node, H g, H *after, size_t n, struct node_params *params) {
    (void)after; (void)n;
    ((struct graph *)g)->bytes = params->bytes;
    *node = g;
    return OK;
}
API R cuGraphGetNodes(H g, H *nodes, size_t *n) {
    if (nodes && *n) nodes[0] = g;
    *n = ((struct graph *)g)->bytes > 0;
    return OK;
}
API R cuGraphNodeGetType(H node, int *kind) { (void)node; *kind = 10; return OK; }
API R cuGraphMemAllocNodeGetParams(H node, struct node_params *params) {
    params->bytes = ((struct graph *)node)->bytes;
    params->pool.place = 1;
    return OK;
}
API R cuGraphInstantiateWithFlags(H *e, H g, uint64_t flags) {
    (void)flags;
    for (int i = 0; i < 64; i++)
        if (!execs[i]) {
            *e = execs[i] = calloc(1, sizeof(struct graph));
            execs[i]->of = g;
            return OK;
        }
    return NO_MEMORY;
}
API R cuGraphInstantiate_v2(H *e, H g, H *bad, char *log, size_t n) {
    (void)bad; (void)log; (void)n;
    return cuGraphInstantiateWithFlags(e, g, 0);
}
API R cuGraphLaunch(H e, H s) {
    struct graph *exec = e;
    (void)s;
    size_t more = exec->backed ? 0 : pieces(exec->of->bytes);
    if (used(0) + more > capacity()) return NO_MEMORY;
    graph_memory[0] += more;
    exec->backed = 1;
    return OK;
}
API R cuGraphUpload(H e, H s) { return cuGraphLaunch(e, s); }
API R cuGraphExecDestroy(H e) {
    for (int i = 0; i < 64; i++)
        if (execs[i] == e) execs[i] = NULL;
    free(e);
    return OK;
}
API R cuDeviceGraphMemTrim(int d) {
    graph_memory[d] = 0;
    for (int i = 0; i < 64; i++)
        if (execs[i]) execs[i]->backed = 0;
    return OK;
}
API R cuDeviceGetGraphMemAttribute(int d, int what, uint64_t *value) {
    *value = what == 2 ? graph_memory[d] : 0;
    return OK;
}

/* A function that no shim hooks, with arguments of every class. */
API R cuStreamWriteValue32_v2(H s, P to, unsigned value, unsigned flags) {
    return s == (H)1 && to == 2 && value == 3 && flags == 4 ? 77 : INVALID;
}
API R cuMemsetD8Async(P to, unsigned char value, size_t n, H s) { (void)to; (void)value; (void)n; (void)s; return OK; }
/* Newer than any table. */
API R cuFromTheFuture(int x) { return x + 1; }

/* Forms that are reached by name and version only, at addresses that no symbol has. */
static R hidden_free(P p, H s) { return cuMemFreeAsync(p, s); }

API R cuGetProcAddress_v2(const char *name, void **at, int version, uint64_t flags, int *why) {
    static const struct { const char *name; int since; int per_thread; void *at; } table[] = {
        {"cuInit", 2000, 0, (void *)cuInit},
        {"cuGetProcAddress", 12000, 0, (void *)cuGetProcAddress_v2},
        {"cuMemAlloc", 3020, 0, (void *)cuMemAlloc_v2},
        {"cuMemAlloc", 2000, 0, (void *)cuMemAlloc},
        {"cuMemFree", 3020, 0, (void *)cuMemFree_v2},
        {"cuMemAllocAsync", 11020, 2, (void *)cuMemAllocAsync_ptsz},
        {"cuMemAllocAsync", 11020, 0, (void *)cuMemAllocAsync},
        {"cuMemFreeAsync", 11020, 0, (void *)hidden_free},
        {"cuMemGetInfo", 3020, 0, (void *)cuMemGetInfo_v2},
        {"cuLaunchKernel", 7000, 2, (void *)cuLaunchKernel_ptsz},
        {"cuLaunchKernel", 4000, 0, (void *)cuLaunchKernel},
        {"cuGraphInstantiate", 12000, 0, (void *)cuGraphInstantiateWithFlags},
        {"cuGraphInstantiate", 11000, 0, (void *)cuGraphInstantiate_v2},
        {"cuStreamWriteValue32", 11070, 0, (void *)cuStreamWriteValue32_v2},
        {"cuMemsetD8Async", 3020, 0, (void *)cuMemsetD8Async},
        {"cuFromTheFuture", 12090, 0, (void *)cuFromTheFuture},
    };
    int known = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(name, table[i].name)) continue;
        known = 1;
        if (version < table[i].since || (table[i].per_thread && !(flags & 2))) continue;
        *at = table[i].at;
        if (why) *why = 0;
        return OK;
    }
    *at = NULL;
    if (why) *why = known ? 2 : 1;
    return NOT_FOUND;
}

/* Reaches the driver by one way and allocates beyond its slice's cap: `way HOW BYTES [PATH]`.
 *
 * Prints one line: `caught` if the driver refused that as out of memory, `open` if it succeeded, `nothing:`
 * and the reason if this way leads to no driver. Built with -DLINKED it is itself linked to the driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *(*find_fn)(const char *);
static void *library;
static void *(*raw)(void *, const char *);

static int nothing(const char *what, const char *why) {
    printf("nothing: %s %s\n", what, why ? why : "");
    return 0;
}
static void *by_dlsym(const char *name) { return dlsym(library, name); }
static void *by_raw(const char *name) { return raw(library, name); }

/* How many symbols there are: one more than the last of the last chain of the table of hashes. */
static uint32_t symbols(const uint32_t *hash) {
    uint32_t buckets = hash[0], first = hash[1], last = 0;
    const uint32_t *bucket = hash + 4 + hash[2] * 2, *chain = bucket + buckets;
    for (uint32_t i = 0; i < buckets; i++)
        if (bucket[i] > last) last = bucket[i];
    if (last < first) return first;
    while (!(chain[last - first] & 1)) last++;
    return last + 1;
}
/* Reads the loaded library's own table of symbols, and asks the loader only for what is not in it. */
static void *by_walk(const char *name) {
    struct link_map *map;
    const ElfW(Sym) *table = NULL;
    const char *names = NULL;
    const uint32_t *hash = NULL;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map)) return NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag; entry++) {
        if (entry->d_tag == DT_SYMTAB) table = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) names = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_GNU_HASH) hash = (void *)entry->d_un.d_ptr;
    }
    for (uint32_t i = 0; table && names && hash && i < symbols(hash); i++)
        if (table[i].st_shndx && !strcmp(names + table[i].st_name, name))
            return (void *)(map->l_addr + table[i].st_value);
    return dlsym(library, name);
}
static find_fn of_plugin(void *handle) {
    return handle ? (find_fn)dlsym(handle, "bound") : NULL;
}

#ifdef LINKED
extern void *bound(const char *);
#endif

static find_fn way(const char *how, const char *path) {
    const int now = RTLD_NOW;
    find_fn find = by_dlsym;
#ifdef LINKED
    if (!strcmp(how, "needed")) return bound;
#endif
    if (!strcmp(how, "plugin")) return of_plugin(dlopen(path, now));
    if (!strcmp(how, "deepplugin")) return of_plugin(dlopen(path, now | RTLD_DEEPBIND));
    if (!strcmp(how, "newplugin")) return of_plugin(dlmopen(LM_ID_NEWLM, path, now));
    if (!strcmp(how, "deep")) library = dlopen("libcuda.so.1", now | RTLD_DEEPBIND);
    else if (!strcmp(how, "unversioned")) library = dlopen("libcuda.so", now);
    else if (!strcmp(how, "newspace")) library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", now);
    else if (!strcmp(how, "path")) library = dlopen(path, now);
    else library = dlopen("libcuda.so.1", now);
    if (!strcmp(how, "walk")) find = by_walk;
    if (!strcmp(how, "dlvsym")) {
        raw = (void *(*)(void *, const char *))dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5");
        find = raw ? by_raw : NULL;
    }
    return library ? find : NULL;
}

#define CALL(name, types, ...) (((int(*) types)find(name))(__VA_ARGS__))

int main(int argc, char **argv) {
    char code[32];
    int device, r;
    void *context;
    unsigned long long memory;
    if (argc < 3) return 2;
    find_fn find = way(argv[1], argc > 3 ? argv[3] : "");
    if (!find) return nothing("no driver:", dlerror());
    for (const char **name = (const char *[]){"cuInit", "cuDeviceGet", "cuCtxCreate_v2", "cuMemAlloc_v2", 0}; *name; name++)
        if (!find(*name)) return nothing("no", *name);
    if ((r = CALL("cuInit", (unsigned), 0)) == 0 && (r = CALL("cuDeviceGet", (int *, int), &device, 0)) == 0)
        r = CALL("cuCtxCreate_v2", (void **, unsigned, int), &context, 0, device);
    if (r) {
        snprintf(code, sizeof code, "%d", r);
        return nothing("no context:", code);
    }
    r = CALL("cuMemAlloc_v2", (unsigned long long *, unsigned long), &memory, strtoul(argv[2], NULL, 0));
    snprintf(code, sizeof code, "%d", r);
    if (r == 0) puts("open");
    else if (r == 2) puts("caught");
    else nothing("no memory:", code);
    return 0;
}

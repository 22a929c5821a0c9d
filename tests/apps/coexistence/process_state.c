/* The state of a process before its first CUDA call and after it: two lines of
 * `when threads=N caught=SIGNALS umask=M inherited=FDS own=FDS`.
 *
 * A descriptor is `inherited` by programs that are executed, or the process's `own`. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

extern int cuInit(unsigned);
extern int cuCtxCreate_v2(void **, unsigned, int);
extern int cuMemAlloc_v2(unsigned long long *, unsigned long);

static void status(const char *key, char *value) {
    char line[256];
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key))) sscanf(line + strlen(key), " %63s", value);
    if (file) fclose(file);
}
static void tell(const char *when) {
    char threads[64] = "", caught[64] = "";
    int inherited = 0, own = 0;
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] == '.' || fd == dirfd(dir)) continue;
        if (fcntl(fd, F_GETFD) & FD_CLOEXEC) own++;
        else inherited++;
    }
    if (dir) closedir(dir);
    status("Threads:", threads);
    status("SigCgt:", caught);
    mode_t mask = umask(0);
    umask(mask);
    printf("%s threads=%s caught=%s umask=%o inherited=%d own=%d\n", when, threads, caught, mask, inherited, own);
}

int main(void) {
    void *context;
    unsigned long long memory;
    tell("before");
    if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuMemAlloc_v2(&memory, 1 << 20)) return 1;
    tell("after");
    return 0;
}

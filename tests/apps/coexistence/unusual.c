/* A process that uses CUDA in an unusual way: `unusual CASE`. It prints `ok`, or the first line that was not as on a device
 * of 1 GiB, and ends with 1. `unusual use` is an ordinary process, for cases that start another program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long address;
enum { OUT_OF_MEMORY = 2, THREADS = 8 };
static const size_t MIB = 1 << 20, MUCH = (size_t)2 << 30;
static char *me;

static int (*init)(unsigned), (*create)(void **, unsigned, int), (*allocate)(address *, size_t), (*release)(address);
static int (*info)(size_t *, size_t *), (*set)(address, unsigned char, size_t), (*set_async)(address, unsigned char, size_t, void *);
static int (*synchronize)(void), (*destroy)(void *), (*count)(int *), (*later)(address *, size_t, void *);

/* Ends this process with the line that failed. */
#define MUST(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s\n", __LINE__, #what); \
            fflush(stdout); \
            _exit(1); \
        } \
    } while (0)

static void *open_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(driver);
    struct { void *at; const char *name; } wanted[] = {
        {&init, "cuInit"}, {&create, "cuCtxCreate_v2"}, {&allocate, "cuMemAlloc_v2"}, {&release, "cuMemFree_v2"},
        {&info, "cuMemGetInfo_v2"}, {&set, "cuMemsetD8_v2"}, {&set_async, "cuMemsetD8Async"}, {&synchronize, "cuCtxSynchronize"},
        {&destroy, "cuCtxDestroy_v2"}, {&count, "cuDeviceGetCount"}, {&later, "cuMemAllocAsync"},
    };
    for (size_t at = 0; at < sizeof wanted / sizeof *wanted; at++)
        MUST((*(void **)wanted[at].at = dlsym(driver, wanted[at].name)));
    return driver;
}

static void *context(int device) {
    void *context;
    MUST(init(0) == 0);
    MUST(create(&context, 0, device) == 0);
    return context;
}

/* What fits is given, filled and taken back; what does not fit is refused. */
static void use(size_t bytes) {
    address at, other;
    size_t free, total;
    MUST(allocate(&at, bytes) == 0);
    MUST(allocate(&other, MUCH) == OUT_OF_MEMORY);
    MUST(later(&other, MUCH, NULL) == OUT_OF_MEMORY);
    MUST(info(&free, &total) == 0 && total <= 1024 * MIB && free + bytes <= total);
    MUST(set(at, 7, bytes) == 0);
    MUST(synchronize() == 0);
    MUST(release(at) == 0);
}

static void ends_well(pid_t child) {
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void fork_before_init(void) {
    for (int at = 0; at < 3; at++) {
        pid_t child = fork();
        if (!child) {
            context(0);
            use(256 * MIB);
            _exit(0);
        }
        ends_well(child);
    }
    context(0);
    use(256 * MIB);
}

static void fork_and_exec(void) {
    context(0);
    pid_t child = fork();
    if (!child) {
        execl(me, me, "use", NULL);
        _exit(2);
    }
    use(256 * MIB);
    ends_well(child);
    use(256 * MIB);
}

static void vfork_and_exec(void) {
    context(0);
    address at;
    MUST(allocate(&at, 256 * MIB) == 0);
    for (int round = 0; round < 3; round++) {
        pid_t child = vfork();
        if (!child) {
            execl(me, me, "use", NULL);
            _exit(2);
        }
        ends_well(child);
    }
    use(256 * MIB);
    MUST(release(at) == 0);
}

static void *become_another(void *unused) {
    (void)unused;
    execl(me, me, "much", NULL);
    return NULL;
}
/* Another thread than the first replaces the program while the process holds most of its memory. */
static void exec_in_thread(void) {
    context(0);
    address at;
    pthread_t thread;
    MUST(allocate(&at, 768 * MIB) == 0);
    MUST(!pthread_create(&thread, NULL, become_another, NULL));
    pthread_join(thread, NULL);
    MUST(!"the program was replaced");
}

static void unload(void) {
    for (int round = 0; round < 3; round++) {
        void *driver = open_driver();
        void *made = context(0);
        use(128 * MIB);
        MUST(destroy(made) == 0);
        MUST(dlclose(driver) == 0);
        usleep(20000);
    }
}

static volatile sig_atomic_t alarms;
static void count_alarm(int number) { alarms += number == SIGALRM; }
/* A timer without SA_RESTART interrupts every call that waits: for the daemon, for a turn, for the device. */
static void signals(void) {
    struct sigaction action = {.sa_handler = count_alarm};
    struct itimerval often = {{0, 500}, {0, 500}};
    context(0);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    address held;
    MUST(allocate(&held, MIB) == 0);
    for (int round = 0; round < 15; round++) {
        use((size_t)(round % 6 + 1) * 100 * MIB);
        for (int at = 0; at < 8; at++) MUST(set_async(held, 1, MIB, NULL) == 0);
        MUST(synchronize() == 0);
    }
    MUST(alarms > 20);
}

static void *in_thread(void *device) {
    context((int)(size_t)device);
    use(256 * MIB);
    return device;
}
static void small_stack(void) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    MUST(!pthread_attr_setstacksize(&attributes, 64 << 10));
    pthread_t thread;
    MUST(!pthread_create(&thread, &attributes, in_thread, NULL));
    MUST(!pthread_join(thread, NULL));
    context(0);
    use(256 * MIB);
}

static void *for_ever(void *unused) {
    address at;
    for (;;)
        if (!allocate(&at, 8 * MIB)) {
            set_async(at, 1, MIB, NULL);
            release(at);
        }
    return unused;
}
/* The process ends while other threads are in the middle of calls. */
static void exit_while_calling(void) {
    for (int round = 0; round < 10; round++) {
        pid_t child = fork();
        if (!child) {
            void *made = context(0);
            for (int at = 0; at < THREADS; at++) {
                pthread_t thread;
                MUST(!pthread_create(&thread, NULL, for_ever, made));
            }
            usleep(10000 + 3000 * round);
            exit(0);
        }
        ends_well(child);
    }
    context(0);
    use(768 * MIB);
}

static void hundred_processes(void) {
    enum { MANY = 100 };
    int go[2];
    pid_t children[MANY];
    MUST(!pipe(go));
    for (int at = 0; at < MANY; at++) {
        children[at] = fork();
        MUST(children[at] >= 0);
        if (!children[at]) {
            char end;
            int devices;
            MUST(init(0) == 0 && count(&devices) == 0 && devices == 1);
            close(go[1]);
            _exit(read(go[0], &end, 1) != 0);
        }
    }
    context(0);
    use(256 * MIB);
    close(go[1]);
    for (int at = 0; at < MANY; at++) ends_well(children[at]);
}

static void all_devices(void) {
    int devices;
    MUST(init(0) == 0 && count(&devices) == 0 && devices == 16);
    for (int at = 0; at < devices; at++) {
        void *made = context(at);
        use(256 * MIB);
        MUST(destroy(made) == 0);
    }
}

/* Refuses one system call from now on, with EPERM. */
static void refuse(int call) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}
/* A sandbox that begins once the program has its context: no new sockets, threads, programs or anonymous files. */
static void filtered_later(void) {
    context(0);
    int calls[] = {SYS_socket, SYS_connect, SYS_clone, SYS_clone3, SYS_execve, SYS_memfd_create, SYS_eventfd2, SYS_openat};
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++) refuse(calls[at]);
    for (int round = 0; round < 5; round++) use(700 * MIB);
}
/* Without sockets a process cannot ask for memory: it gets an error, or none beyond its device. */
static void filtered_before(void) {
    void *made;
    address at;
    refuse(SYS_socket);
    if (init(0) == 0 && create(&made, 0, 0) == 0) MUST(allocate(&at, MUCH) != 0);
}

int main(int arguments, char **words) {
    struct { const char *name; void (*run)(void); } cases[] = {
        {"fork_before_init", fork_before_init}, {"fork_and_exec", fork_and_exec}, {"vfork_and_exec", vfork_and_exec},
        {"exec_in_thread", exec_in_thread}, {"unload", unload}, {"signals", signals}, {"small_stack", small_stack},
        {"exit_while_calling", exit_while_calling}, {"hundred_processes", hundred_processes}, {"all_devices", all_devices},
        {"filtered_later", filtered_later}, {"filtered_before", filtered_before},
    };
    MUST(arguments == 2);
    me = words[0];
    const char *name = words[1];
    void *driver = strcmp(name, "unload") ? open_driver() : NULL;
    if (!strcmp(name, "use") || !strcmp(name, "much")) {
        context(0);
        use(!strcmp(name, "use") ? 128 * MIB : 768 * MIB);
        if (!strcmp(name, "use")) return 0;
        return puts("ok") < 0;
    }
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++)
        if (!strcmp(name, cases[at].name)) {
            cases[at].run();
            return puts("ok") < 0;
        }
    return driver ? 2 : 3;
}

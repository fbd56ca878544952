/* Stands between the core and the C library, and makes one chosen system call go wrong.
 *
 * Only calls that come from semlock's own module are counted: the interpreter opens and
 * closes files of its own, and those must neither be numbered nor be hurt.  The calls are
 * numbered from the moment of fault_arm() on, so that a test can visit them one by one.
 *
 * It is preloaded (LD_PRELOAD) and driven from within its process, through ctypes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    NOTHING,
    FAIL_BEFORE,
    FAIL_AFTER,
    KILL_BEFORE,
    KILL_AFTER,
    STOP_BEFORE,
    STOP_AFTER,
    DEAF,           /* a watch is made that never tells anything */
    DEAF_THEN_STOP, /* and then the process stops */
    COPY_AFTER,     /* another process has copies of all descriptors from then on */
};

#define LOG_ROOM 1024
#define RULE_ROOM 8
#define FAULT_ROOM 8
#define SYS_PIDFD_OPEN 434 /* everywhere; old headers don't know it */

static struct {
    int armed; /* calls are counted and written down */
    struct {
        int action;    /* what happens at the chosen call */
        int error;     /* the errno of a call that fails */
        int countdown; /* which one of those that match, from the fault before on */
        char name[16]; /* which calls match; empty for any */
    } faults[FAULT_ROOM];
    int fault_count;
    int next;             /* the fault that comes next */
    int report;           /* where to tell that the process is about to stop, or -1 */
    int skip_sync;        /* the disk is left out: no test here pulls the plug */
    void (*asleep)(void); /* what else happens in the world while this process sleeps */
    int at_barrier;       /* it happens as well where the core waits for a removal to end */
    int tell_asleep;      /* the next sleep is to be told of */
    int deaf;             /* no watch tells anything */
    int locks_by_writers; /* an exclusive flock needs a descriptor that is open for writing */
    int count;            /* calls since it was armed */
    char log[LOG_ROOM][16];
    struct {
        char name[16];
        int error;
    } rules[RULE_ROOM]; /* calls that never work, as on some filesystem */
    int rule_count;
    pid_t copy; /* the process with the copies, 0 for none */
} state = {.report = -1};

/* Add a fault to those that wait for fault_arm(): each begins to count at the one before. */
void
fault_add(const char *name, int nth, int action, int error)
{
    int i = state.fault_count++ % FAULT_ROOM;

    snprintf(state.faults[i].name, sizeof state.faults[i].name, "%s", name);
    state.faults[i].countdown = nth;
    state.faults[i].action = action;
    state.faults[i].error = error;
}

void
fault_arm(void)
{
    state.next = 0;
    state.count = 0;
    state.armed = 1;
}

/* How many calls were made since it was armed. */
int
fault_disarm(void)
{
    state.armed = 0;
    state.fault_count = 0;
    return state.count;
}

/* How many of the faults have happened. */
int
fault_happened(void)
{
    return state.next;
}

const char *
fault_logged(int number)
{
    return number < state.count && number < LOG_ROOM ? state.log[number] : "";
}

/* Let every call of this name fail from now on; without a name, let all of them work again.
 * With no error the call claims success, and does nothing. */
void
fault_refuse(const char *name, int error)
{
    int i = state.rule_count++ % RULE_ROOM;

    if (!*name) {
        state.rule_count = 0;
        return;
    }
    snprintf(state.rules[i].name, sizeof state.rules[i].name, "%s", name);
    state.rules[i].error = error;
}

void
fault_skip_sync(int skip)
{
    state.skip_sync = skip;
}

/* Have something called whenever the core is about to sleep, or waits for a removal. */
void
fault_when_asleep(void (*what)(void), int at_barrier)
{
    state.asleep = what;
    state.at_barrier = at_barrier;
}

/* Let no watch tell anything from now on. */
void
fault_deafen(void)
{
    state.deaf = 1;
}

/* Let flock be what NFS makes of it: a lock of bytes, which is to be written to. */
void
fault_lock_by_writers(void)
{
    state.locks_by_writers = 1;
}

/* Have the next sleep told of, where stops are. */
void
fault_tell_asleep(void)
{
    state.tell_asleep = 1;
}

void
fault_report_to(int fd)
{
    state.report = fd;
}

static int
from_the_core(void *caller)
{
    Dl_info where;

    return dladdr(caller, &where) != 0 && where.dli_fname != NULL &&
           strstr(where.dli_fname, "/semlock/_core/compiled.") != NULL;
}

static void
stop(void)
{
    static const char word[] = "stopped\n";

    /* Told first, so that what waits for the stop learns too that there is none. */
    if (state.report >= 0 && write(state.report, word, sizeof word - 1) < 0) {
        raise(SIGKILL);
    }
    raise(SIGSTOP);
}

/* Start a process that has copies of all descriptors and does nothing: a program that is being
 * started is one between its fork and its exec.  No hook of a fork runs. */
static void
copy_descriptors(void)
{
    state.copy = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (state.copy == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
            pause();
        }
    }
}

/* End that process. */
void
fault_end_copy(void)
{
    if (state.copy > 0) {
        kill(state.copy, SIGKILL);
        waitpid(state.copy, NULL, 0);
        state.copy = 0;
    }
}

/* The errno of the chosen call is kept here between enter() and leave(). */
static int chosen_error;

/* The call has been made; its result goes on unless something is to happen now. */
static long
leave(int action, long result)
{
    int error = errno;

    if (action == KILL_AFTER) {
        raise(SIGKILL);
    }
    if (action == STOP_AFTER) {
        stop();
    }
    if (action == COPY_AFTER) {
        copy_descriptors();
    }
    if (action == FAIL_AFTER) {
        errno = chosen_error;
        return -1;
    }
    errno = error;
    return result;
}

/* A name is meant by itself, by its beginning and a star, and by nothing at all. */
static int
is_meant(const char *wanted, const char *name)
{
    size_t length = strlen(wanted);

    if (length > 0 && wanted[length - 1] == '*') {
        return strncmp(name, wanted, length - 1) == 0;
    }
    return length == 0 || strcmp(name, wanted) == 0;
}

/* What to do about this call: NOTHING, FAIL_BEFORE, or what comes when it has been made. */
static int
enter(const char *name)
{
    int action = NOTHING;

    if (state.armed) {
        if (state.count < LOG_ROOM) {
            snprintf(state.log[state.count], sizeof state.log[0], "%s", name);
        }
        state.count++;
        if (state.next < state.fault_count) {
            if (is_meant(state.faults[state.next].name, name) &&
                --state.faults[state.next].countdown == 0) {
                action = state.faults[state.next].action;
                chosen_error = state.faults[state.next].error;
                state.next++;
            }
        }
    }
    if (action == KILL_BEFORE) {
        raise(SIGKILL);
    }
    if (action == STOP_BEFORE) {
        stop();
        action = NOTHING;
    }
    if (action == FAIL_BEFORE) {
        errno = chosen_error;
        return action;
    }
    for (int i = 0; i < state.rule_count && i < RULE_ROOM; i++) {
        if (strcmp(name, state.rules[i].name) == 0) {
            /* It is made and refused, so what comes after a call comes now. */
            errno = state.rules[i].error;
            leave(action, -1);
            return FAIL_BEFORE;
        }
    }
    return action;
}

#define REAL(name)                                                                            \
    static __typeof__(&name) real;                                                            \
    if (real == NULL) {                                                                       \
        real = (__typeof__(real))dlsym(RTLD_NEXT, #name);                                     \
    }

#define WRAP(type, name, known_as, parameters, arguments)                                     \
    type name parameters;                                                                     \
    type name parameters                                                                      \
    {                                                                                         \
        int action;                                                                           \
        REAL(name)                                                                            \
        if (!from_the_core(__builtin_return_address(0))) {                                    \
            return real arguments;                                                            \
        }                                                                                     \
        action = enter(known_as);                                                             \
        return action == FAIL_BEFORE ? (errno == 0 ? 0 : -1)                                  \
                                     : (type)leave(action, (long)real arguments);             \
    }

/* Every sleep of the core is this one; what happens in the meantime has happened before it. */
int
ppoll(struct pollfd *what, nfds_t count, const struct timespec *time, const sigset_t *mask)
{
    int action;
    REAL(ppoll)
    if (!from_the_core(__builtin_return_address(0))) {
        return real(what, count, time, mask);
    }
    if (state.armed && state.asleep != NULL) {
        state.asleep();
    }
    if (state.armed && state.tell_asleep) {
        state.tell_asleep = 0;
        if (state.report >= 0 && write(state.report, "asleep\n", 7) < 0) {
            raise(SIGKILL);
        }
    }
    action = enter("ppoll");
    return action == FAIL_BEFORE ? -1 : (int)leave(action, real(what, count, time, mask));
}

/* The clock of this process and of those that it forks from now on.  When it was made slow,
 * none of them is late, however busy the machine is. */
#define SLOWER 64
static int64_t *slow_since;

static int64_t
nanoseconds(void)
{
    struct timespec now;

    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

void
fault_share_clock(void)
{
    slow_since = mmap(NULL, sizeof *slow_since, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void
fault_slow_clock(void)
{
    *slow_since = nanoseconds();
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
    int64_t at;
    REAL(clock_gettime)
    if (clock != CLOCK_MONOTONIC || slow_since == NULL || *slow_since == 0 ||
        !from_the_core(__builtin_return_address(0))) {
        return real(clock, now);
    }
    at = *slow_since + (nanoseconds() - *slow_since) / SLOWER;
    now->tv_sec = at / 1000000000;
    now->tv_nsec = at % 1000000000;
    return 0;
}

/* A watch that is deaf stands for one that was made when its news had been told already. */
int
inotify_add_watch(int fd, const char *path, uint32_t mask)
{
    int action;
    REAL(inotify_add_watch)
    if (!from_the_core(__builtin_return_address(0))) {
        return real(fd, path, mask);
    }
    action = enter("addwatch");
    if (action == FAIL_BEFORE) {
        return -1;
    }
    if (action == DEAF || action == DEAF_THEN_STOP || state.deaf) {
        mask = IN_UNMOUNT | IN_DONT_FOLLOW | IN_MOVE; /* none of which a file tells */
        action = action == DEAF_THEN_STOP ? STOP_AFTER : action == DEAF ? NOTHING : action;
    }
    return (int)leave(action, real(fd, path, mask));
}

/* What the C library has no function for, or had none a few years ago. */
long
syscall(long number, ...)
{
    long a, b, c, d, e, f;
    int action;
    va_list rest;
    REAL(syscall)
    va_start(rest, number);
    a = va_arg(rest, long);
    b = va_arg(rest, long);
    c = va_arg(rest, long);
    d = va_arg(rest, long);
    e = va_arg(rest, long);
    f = va_arg(rest, long);
    va_end(rest);
    if (!from_the_core(__builtin_return_address(0))) {
        return real(number, a, b, c, d, e, f);
    }
    if (state.armed && number == SYS_renameat2 && state.at_barrier) {
        state.asleep();
    }
    action = enter(number == SYS_renameat2    ? "renameat2"
                   : number == SYS_getdents64 ? "getdents"
                   : number == SYS_PIDFD_OPEN ? "pidfd"
                                              : "syscall");
    if (action == FAIL_BEFORE) {
        return -1;
    }
    a = real(number, a, b, c, d, e, f);
    if (action == FAIL_AFTER && number == SYS_PIDFD_OPEN && a >= 0) {
        close((int)a);
    }
    return leave(action, a);
}

int
inotify_init1(int flags)
{
    int action, fd;
    REAL(inotify_init1)
    if (!from_the_core(__builtin_return_address(0))) {
        return real(flags);
    }
    action = enter("inotify");
    if (action == FAIL_BEFORE) {
        return -1;
    }
    fd = real(flags);
    if (action == FAIL_AFTER && fd >= 0) {
        close(fd);
    }
    return (int)leave(action, fd);
}

WRAP(int, inotify_rm_watch, "rmwatch", (int fd, int mark), (fd, mark))
WRAP(int, chmod, "chmod", (const char *path, mode_t mode), (path, mode))
WRAP(int, mkdir, "mkdir", (const char *path, mode_t mode), (path, mode))
/* Their header also has the calls whose structures are passed on here without a look. */
int mkfifo(const char *path, mode_t mode);
int mkfifoat(int at, const char *path, mode_t mode);
WRAP(int, mkfifo, "mkfifo", (const char *path, mode_t mode), (path, mode))
WRAP(int, mkfifoat, "mkfifo", (int at, const char *path, mode_t mode), (at, path, mode))
WRAP(int, madvise, "madvise", (void *start, size_t length, int advice),
     (start, length, advice))
WRAP(int, rmdir, "rmdir", (const char *path), (path))
WRAP(int, access, "access", (const char *path, int mode), (path, mode))
WRAP(int, faccessat, "faccessat", (int at, const char *path, int mode, int flags),
     (at, path, mode, flags))
WRAP(int, fchmod, "fchmod", (int fd, mode_t mode), (fd, mode))
WRAP(int, kill, "kill", (pid_t pid, int number), (pid, number))
WRAP(int, link, "link", (const char *from, const char *to), (from, to))
WRAP(int, linkat, flags &AT_EMPTY_PATH ? "linkfd" : "linkat",
     (int from_at, const char *from, int to_at, const char *to, int flags),
     (from_at, from, to_at, to, flags))
WRAP(ssize_t, read, "read", (int fd, void *bytes, size_t size), (fd, bytes, size))
WRAP(ssize_t, write, "write", (int fd, const void *bytes, size_t size), (fd, bytes, size))
WRAP(ssize_t, readlink, "readlink", (const char *path, char *bytes, size_t size),
     (path, bytes, size))
WRAP(int, ioctl, "ioctl", (int fd, unsigned long request, void *data), (fd, request, data))
WRAP(int, fsetxattr, "fsetxattr",
     (int fd, const char *name, const void *value, size_t size, int flags),
     (fd, name, value, size, flags))
WRAP(ssize_t, fgetxattr, "fgetxattr", (int fd, const char *name, void *value, size_t size),
     (fd, name, value, size))
WRAP(int, rename, "rename", (const char *from, const char *to), (from, to))
WRAP(int, unlink, "unlink", (const char *path), (path))
WRAP(int, unlinkat, "unlink", (int at, const char *path, int flags), (at, path, flags))

int
flock(int fd, int operation)
{
    int action;
    REAL(flock)
    if (!from_the_core(__builtin_return_address(0))) {
        return real(fd, operation);
    }
    action = enter(operation == LOCK_UN ? "unlock" : "flock");
    if (action == FAIL_BEFORE) {
        return -1;
    }
    if (state.locks_by_writers && (operation & LOCK_EX) &&
        (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) {
        errno = EBADF;
        return (int)leave(action, -1);
    }
    return (int)leave(action, real(fd, operation));
}

/* The same calls under the names that they have with and without 64-bit offsets, and in the C
 * libraries of before 2021. */
#define WRAP_FILE_CALLS(ending, offset)                                                       \
    WRAP(int, fstat##ending, "fstat", (int fd, void *seen), (fd, seen))                       \
    WRAP(int, lstat##ending, "lstat", (const char *path, void *seen), (path, seen))           \
    WRAP(int, stat##ending, "stat", (const char *path, void *seen), (path, seen))             \
    WRAP(int, __fxstat##ending, "fstat", (int version, int fd, void *seen),                   \
         (version, fd, seen))                                                                 \
    WRAP(int, __lxstat##ending, "lstat", (int version, const char *path, void *seen),         \
         (version, path, seen))                                                               \
    WRAP(int, __xstat##ending, "stat", (int version, const char *path, void *seen),           \
         (version, path, seen))                                                               \
    WRAP(int, fstatfs##ending, "fstatfs", (int fd, void *seen), (fd, seen))                   \
    WRAP(int, statfs##ending, "statfs", (const char *path, void *seen), (path, seen))         \
    WRAP(int, getrlimit##ending, "getrlimit", (int which, void *limit), (which, limit))       \
    WRAP(int, ftruncate##ending, "ftruncate", (int fd, offset size), (fd, size))              \
    WRAP(ssize_t, pread##ending, "pread", (int fd, void *bytes, size_t size, offset at),      \
         (fd, bytes, size, at))                                                               \
    WRAP(ssize_t, pwrite##ending, "pwrite",                                                   \
         (int fd, const void *bytes, size_t size, offset at), (fd, bytes, size, at))

#define WRAP_OPEN(name)                                                                       \
    int name(const char *path, int flags, ...)                                                \
    {                                                                                         \
        int action, fd;                                                                       \
        mode_t mode = 0;                                                                      \
        va_list rest;                                                                         \
        REAL(name)                                                                            \
        va_start(rest, flags);                                                                \
        if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {                          \
            mode = va_arg(rest, mode_t);                                                      \
        }                                                                                     \
        va_end(rest);                                                                         \
        if (!from_the_core(__builtin_return_address(0))) {                                    \
            return real(path, flags, mode);                                                   \
        }                                                                                     \
        action = enter((flags & O_TMPFILE) == O_TMPFILE ? "tmpfile"                           \
                       : flags & O_CREAT                ? "create"                            \
                                                        : "open");                                           \
        if (action == FAIL_BEFORE) {                                                          \
            return -1;                                                                        \
        }                                                                                     \
        fd = real(path, flags, mode);                                                         \
        if (action == FAIL_AFTER && fd >= 0) {                                                \
            close(fd); /* the kernel gives no descriptor with an error */                     \
        }                                                                                     \
        return (int)leave(action, fd);                                                        \
    }

#define WRAP_FCNTL(name)                                                                      \
    int name(int fd, int command, ...)                                                        \
    {                                                                                         \
        int action;                                                                           \
        void *argument;                                                                       \
        va_list rest;                                                                         \
        REAL(name)                                                                            \
        va_start(rest, command);                                                              \
        argument = va_arg(rest, void *);                                                      \
        va_end(rest);                                                                         \
        if (!from_the_core(__builtin_return_address(0))) {                                    \
            return real(fd, command, argument);                                               \
        }                                                                                     \
        action = enter(command == F_OFD_SETLK                       ? "setlk"                 \
                       : command == F_GETSIG || command == F_SETSIG ? "signature"             \
                                                                    : "fcntl");               \
        return action == FAIL_BEFORE ? -1 : (int)leave(action, real(fd, command, argument));  \
    }

WRAP_FILE_CALLS(, off_t)
WRAP_OPEN(open)
WRAP_FCNTL(fcntl)
#if defined(__GLIBC__)
WRAP_FILE_CALLS(64, off64_t)
WRAP_OPEN(open64)
WRAP_FCNTL(fcntl64)
#endif

#define WRAP_SYNC(name)                                                                       \
    int name(int fd)                                                                          \
    {                                                                                         \
        int action;                                                                           \
        REAL(name)                                                                            \
        if (!from_the_core(__builtin_return_address(0))) {                                    \
            return real(fd);                                                                  \
        }                                                                                     \
        action = enter(#name);                                                                \
        return action == FAIL_BEFORE ? -1                                                     \
                                     : (int)leave(action, state.skip_sync ? 0 : real(fd));    \
    }

WRAP_SYNC(fsync)
WRAP_SYNC(fdatasync)

/* Linux frees the descriptor whatever close(2) answers, so here no error comes before. */
int
close(int fd)
{
    int action;
    REAL(close)
    if (!from_the_core(__builtin_return_address(0))) {
        return real(fd);
    }
    action = enter("close");
    if (action == FAIL_BEFORE) {
        action = FAIL_AFTER;
    }
    return (int)leave(action, real(fd));
}

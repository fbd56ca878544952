/* The calls of macOS and the BSDs that differ from Linux, as far as the core makes them.
 *
 * Each difference names the place in the system's own source that shows it, or says that none
 * was seen.  Whatever is not told here is taken to be as on Linux, which proves nothing about
 * the system.
 */
#define STANDIN_INSIDE
#include "kernel.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mount.h>
#include <sys/proc.h>
#include <sys/statvfs.h>
#include <sys/sysctl.h>
#if defined(__APPLE__)
#include <libproc.h>
#elif defined(__FreeBSD__)
#include <sys/user.h>
#endif

#define HOUR ((int64_t)3600 * 1000000000)
#define FIRST_BOOT (500000 * HOUR + 123456789)

#if defined(__APPLE__)
#define LOCAL_KIND "apfs"
#elif defined(__FreeBSD__)
#define LOCAL_KIND "ufs"
#else
#define LOCAL_KIND "ffs"
#endif

standin_kernel standin = {
    .boot = FIRST_BOOT, .kind = LOCAL_KIND, .flags = MNT_LOCAL, .machine = "one"};

/* There are no unnamed files, and open() drops the sticky bit: "~S_ISTXT" in open() of XNU's
 * vfs_syscalls.c and in FreeBSD's kern_openat(); the other two are taken to do the same.  What
 * O_NOFOLLOW says of a link: open(2) of each. */
int
standin_open(const char *path, int flags, ...)
{
    va_list rest;
    mode_t mode = 0;
    int fd;

    if ((flags & O_TMPFILE) == O_TMPFILE) {
        abort();
    }
#if defined(O_EVTONLY)
    flags &= ~O_EVTONLY;
#endif
    if (flags & O_CREAT) {
        va_start(rest, flags);
        mode = va_arg(rest, mode_t) & 06777;
        va_end(rest);
    }
    fd = open(path, flags, mode);
#if defined(__FreeBSD__)
    if (fd < 0 && errno == ELOOP && (flags & O_NOFOLLOW)) {
        errno = EMLINK;
    }
#elif defined(__NetBSD__)
    if (fd < 0 && errno == ELOOP && (flags & O_NOFOLLOW)) {
        errno = EFTYPE;
    }
#endif
    return fd;
}

int
standin_close(int fd)
{
    standin_closed(fd);
    return close(fd);
}

/* What is asked of a number is asked of what these systems know: no signature of an owner, no
 * seals.  flock and fcntl locks are of one kind, in one list for each file: v_lockf in
 * lf_advlock() of XNU's kern_lockf.c, lf_advlock() of NetBSD and OpenBSD, flock(2) of FreeBSD.
 * So the core must not ask for an fcntl lock. */
int
standin_fcntl(int fd, int command, ...)
{
    va_list rest;
    int argument = 0;

    if (command == F_SETFD || command == F_SETFL || command == F_DUPFD_CLOEXEC) {
        va_start(rest, command);
        argument = va_arg(rest, int);
        va_end(rest);
    }
#if defined(__APPLE__)
    if (command == F_FULLFSYNC || command == F_BARRIERFSYNC) {
        errno = standin.sync_error;
        return errno == 0 ? 0 : -1;
    }
#endif
    if (command != F_GETFD && command != F_SETFD && command != F_SETFL &&
        command != F_DUPFD_CLOEXEC) {
        abort();
    }
    return fcntl(fd, command, argument);
}

/* "mode & ACCESSPERMS" in each kernel's mkdir. */
int
standin_mkdir(const char *path, mode_t mode)
{
    return mkdir(path, mode & 0777);
}

int
standin_fsync(int fd)
{
    standin.syncs++;
    return fsync(fd);
}

/* NetBSD's msdosfs, ext2fs and lfs hand on what the device says to DIOCCACHESYNC; ffs doesn't.
 */
int
standin_fsync_range(int fd, int how, off_t start, off_t length)
{
    (void)how;
    (void)start;
    (void)length;
    if (standin.sync_error != 0) {
        errno = standin.sync_error;
        return -1;
    }
    return fsync(fd);
}

int
standin_statfs(const char *path, struct statfs *about)
{
    if (access(path, F_OK) != 0) {
        return -1;
    }
    memset(about, 0, sizeof *about);
    about->f_flags = standin.flags;
    strncpy(about->f_fstypename, standin.kind, sizeof about->f_fstypename - 1);
    return 0;
}

int
standin_fstatfs(int fd, struct statfs *about)
{
    return fcntl(fd, F_GETFD) < 0 ? -1 : standin_statfs("/", about);
}

int
standin_statvfs(const char *path, struct statvfs *about)
{
    if (access(path, F_OK) != 0) {
        return -1;
    }
    memset(about, 0, sizeof *about);
    about->f_flag = standin.flags & ST_LOCAL;
    strncpy(about->f_fstypename, standin.kind, sizeof about->f_fstypename - 1);
    return 0;
}

int
standin_fstatvfs(int fd, struct statvfs *about)
{
    return fcntl(fd, F_GETFD) < 0 ? -1 : standin_statvfs("/", about);
}

/* What Linux knows of a process: 0 none, 1 it runs, 2 it has ended and was not reaped. */
static int
look(int64_t pid, int64_t *uptime)
{
    char path[64], text[1024], *field;
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    file = fopen(path, "r");
    if (file == NULL) {
        return 0;
    }
    n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    field = strrchr(text, ')');
    if (field == NULL) {
        return 0; /* it went while it was read */
    }
    field += 2;
    n = *field == 'Z' || *field == 'X' ? 2 : 1;
    for (int i = 3; i < 22; i++) {
        field = strchr(field, ' ') + 1;
    }
    *uptime = strtoll(field, NULL, 10) * 10000000 + 7654321; /* no whole microseconds */
    return (int)n;
}

int
standin_ended(int64_t pid)
{
    int64_t uptime;

    return look(pid, &uptime) == 2;
}

/* A process that has ended is told of before it shows: proc_exit() of XNU calls
 * proc_knote(NOTE_EXIT) and marks it SZOMB after that, and so does FreeBSD's exit1(); the
 * other two are taken to do the same.  It can't be attached to any more by then, but on
 * FreeBSD; see kqueue/event.c. */
static int
state(int64_t pid, int64_t *uptime)
{
    int seen = pid == standin.hidden ? 0 : look(pid, uptime);

    if (seen == 2 && __atomic_fetch_sub(&standin.late, 1, __ATOMIC_SEQ_CST) > 0) {
        return 1;
    }
    if (seen == 2) {
        __atomic_store_n(&standin.late, 0, __ATOMIC_SEQ_CST);
    }
    return seen;
}

/* kill() finds zombies on macOS (pzfind() in kill()) and FreeBSD (pfind_any()).  OpenBSD's
 * exit1() takes them out of the table that is looked in; NetBSD is taken to find none either.
 * FreeBSD says of a process that must not be seen that there is none: mac_partition and
 * mac_seeotheruids return ESRCH. */
int
standin_kill(pid_t pid, int number)
{
#if defined(__NetBSD__) || defined(__OpenBSD__)
    int64_t uptime;

    if (state(pid, &uptime) == 2) {
        errno = ESRCH;
        return -1;
    }
#endif
    if (pid == standin.hidden) {
        errno = ESRCH;
        return -1;
    }
    return kill(pid, number);
}

static struct timeval
wall(int64_t nanoseconds)
{
    return (struct timeval){.tv_sec = nanoseconds / 1000000000,
                            .tv_usec = nanoseconds % 1000000000 / 1000};
}

#if defined(__APPLE__)
/* The start is p_start, the wall clock at the fork: proc_pidbsdinfo().  Others' processes are
 * refused (CHECK_SAME_USER), and zombies found only for an argument that is not 0:
 * proc_pidinfo() of proc_info.c. */
int
proc_pidinfo(int pid, int flavor, uint64_t argument, void *buffer, int size)
{
    struct proc_bsdinfo info = {0};
    int64_t uptime;
    int seen = state(pid, &uptime);

    if (flavor != PROC_PIDTBSDINFO || size != (int)sizeof info) {
        abort();
    }
    if (seen == 0 || (seen == 2 && argument == 0)) {
        errno = ESRCH;
        return 0;
    }
    if (pid == standin.others) {
        errno = EPERM;
        return 0;
    }
    info.pbi_pid = (uint32_t)pid;
    info.pbi_status = seen == 2 ? SZOMB : SRUN;
    info.pbi_start_tvsec = (uint64_t)wall(FIRST_BOOT + uptime).tv_sec;
    info.pbi_start_tvusec = (uint64_t)wall(FIRST_BOOT + uptime).tv_usec;
    memcpy(buffer, &info, sizeof info);
    return size;
}
#endif

/* What sysctl tells of one process: 0 with a size, 0 with the size 0, or an error. */
static int
tell_process(int64_t pid, void *old, size_t *size)
{
    int64_t uptime;
    int seen = state(pid, &uptime);
#if defined(__APPLE__)
    /* Everybody's, zombies too, as ps(1) needs it. */
    struct kinfo_proc entry = {0};

    if (seen != 0) {
        entry.kp_proc.p_stat = seen == 2 ? SZOMB : SRUN;
        entry.kp_proc.p_starttime = wall(FIRST_BOOT + uptime);
    }
#elif defined(__FreeBSD__)
    /* fill_kinfo_proc_only(): the uptime at the fork and the time of the boot are added as
     * timevals.  pget(): ESRCH. */
    struct kinfo_proc entry = {0};
    struct timeval began, boot = wall(standin.boot);

    if (seen == 0) {
        errno = ESRCH;
        return -1;
    }
    began = wall(uptime);
    timeradd(&began, &boot, &entry.ki_start);
    entry.ki_pid = (pid_t)pid;
    entry.ki_stat = seen == 2 ? SZOMB : SRUN;
#elif defined(__OpenBSD__)
    /* fill_kproc(): the sum is one of nanoseconds, rounded after; a zombie has none of it and
     * is called SDEAD. */
    struct kinfo_proc entry = {0};

    entry.p_pid = (int32_t)pid;
    entry.p_stat = seen == 2 ? SDEAD : SRUN;
    if (seen == 1) {
        entry.p_ustart_sec = (uint64_t)wall(standin.boot + uptime).tv_sec;
        entry.p_ustart_usec = (uint32_t)wall(standin.boot + uptime).tv_usec;
    }
#else
    /* fill_proc() of NetBSD's kern_proc.c: the wall clock at the fork, from fork1()'s
     * getmicrotime(); p_uvalid only of what is no zombie.  The first process began with the
     * clock's first time: main() of init_main.c. */
    struct kinfo_proc2 entry = {0};

    entry.p_pid = (int32_t)pid;
    entry.p_realstat = seen == 2 ? SZOMB : SRUN;
    if (seen == 1) {
        uptime = pid == 1 ? 0 : uptime;
        entry.p_uvalid = 1;
        entry.p_ustart_sec = (uint32_t)wall(FIRST_BOOT + uptime).tv_sec;
        entry.p_ustart_usec = (uint32_t)wall(FIRST_BOOT + uptime).tv_usec;
    }
#endif
    if (*size < sizeof entry) {
        abort();
    }
    *size = seen == 0 ? 0 : sizeof entry;
    memcpy(old, &entry, *size);
    return 0;
}

int
standin_sysctl(const int *name, unsigned count, void *old, size_t *size, const void *new,
               size_t length)
{
    struct timeval boot = wall(standin.boot);

    if (new != NULL || length != 0 || name[0] != CTL_KERN) {
        abort();
    }
    if (name[1] == KERN_BOOTTIME && count == 2 && *size == sizeof boot) {
        memcpy(old, &boot, sizeof boot);
        return 0;
    }
#if defined(__NetBSD__)
    if (name[1] != KERN_PROC2 || count != 6) {
        abort();
    }
#elif defined(__OpenBSD__)
    if (name[1] != KERN_PROC || count != 6) {
        abort();
    }
#else
    if (name[1] != KERN_PROC || count != 4) {
        abort();
    }
#endif
    return tell_process(name[3], old, size);
}

static int
tell(void *old, size_t *size, const void *value, size_t length)
{
    if (*size < length) {
        errno = ENOMEM;
        return -1;
    }
    memcpy(old, value, length);
    *size = length;
    return 0;
}

int
standin_sysctlbyname(const char *name, void *old, size_t *size, const void *new, size_t length)
{
    int number = -1;

    (void)name;
    if (new != NULL || length != 0) {
        abort();
    }
#if defined(__APPLE__)
    /* A text of 37 bytes: bootsessionuuid_string of kern_sysctl.c. */
    if (strcmp(name, "kern.bootsessionuuid") == 0) {
        return tell(old, size, "01234567-89AB-CDEF-0123-456789ABCDEF", 37);
    }
#elif defined(__FreeBSD__)
    /* Sixteen random bytes, or ENXIO while there is no randomness: sysctl_bootid(). */
    if (strcmp(name, "kern.boot_id") == 0) {
        errno = standin.no_boot_id;
        return errno != 0 ? -1 : tell(old, size, "0123456789abcdef", 16);
    }
    if (strcmp(name, "kern.hostuuid") == 0 || strcmp(name, "kern.hostname") == 0) {
        return tell(old, size, standin.machine, strlen(standin.machine) + 1);
    }
    if (strcmp(name, "security.jail.jailed") == 0) {
        number = standin.jailed;
    }
    if (strncmp(name, "security.bsd.see_", 17) == 0) {
        number = 1;
    }
    if (strcmp(name, "security.mac.seeotheruids.enabled") == 0 ||
        strcmp(name, "security.mac.seeotheruids.suser_privileged") == 0) {
        number = strstr(name, "enabled") != NULL ? standin.hides : 0;
    }
#endif
    if (number < 0) {
        errno = ENOENT;
        return -1;
    }
    return tell(old, size, &number, sizeof number);
}

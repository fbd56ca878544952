/* macOS and the BSDs: what they have in common, mostly features that none of them has: unnamed
 * files, a witness, a table of descriptors per thread.  What differs is in darwin/system.c,
 * bsd/system.c and bsd/process.c. */
#define _NETBSD_SOURCE
#include <sys/param.h>
#include <sys/mount.h>
#include <sys/sysctl.h>
#include <sys/time.h>
#if defined(__NetBSD__)
#include <sys/statvfs.h>
#endif
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "posix/system.h"

/* NetBSD has other names for the same. */
#if defined(__NetBSD__)
typedef struct statvfs mount_of;
#define ABOUT_OPEN(fd, about) fstatvfs(fd, about)
#define ABOUT_PATH(path, about) statvfs(path, about)
#define IS_LOCAL(about) (((about)->f_flag & ST_LOCAL) != 0)
#else
typedef struct statfs mount_of;
#define ABOUT_OPEN(fd, about) fstatfs(fd, about)
#define ABOUT_PATH(path, about) statfs(path, about)
#define IS_LOCAL(about) (((about)->f_flags & MNT_LOCAL) != 0)
#endif

/* The system flags a filesystem as local, and its kind is known to be so. */
static int
is_local(const mount_of *about)
{
    for (const char *const *kind = semlock_local_kinds; *kind != NULL; kind++) {
        if (strcmp(*kind, about->f_fstypename) == 0) {
            return IS_LOCAL(about);
        }
    }
    return 0;
}

int
semlock_system_local(int fd)
{
    mount_of about;

    return ABOUT_OPEN(fd, &about) == 0 && is_local(&about);
}

/* Does kqueue report every change in this directory?  Not where other machines can change it.
 */
int
semlock_system_hears(const char *directory)
{
    mount_of about;

    return ABOUT_PATH(directory, &about) == 0 && is_local(&about);
}

#if !defined(__NetBSD__)
/* The wall clock time of the boot.  It changes when the clock is set. */
int
semlock_system_booted(int64_t *microseconds)
{
    int name[2] = {CTL_KERN, KERN_BOOTTIME};
    struct timeval booted;
    size_t size = sizeof booted;

    if (sysctl(name, 2, &booted, &size, NULL, 0) != 0) {
        return -errno;
    }
    *microseconds = (int64_t)booted.tv_sec * 1000000 + booted.tv_usec;
    return 0;
}
#endif

/* The time of the boot, in nanoseconds since 1970 by the clock as it is set now; 0 if it is
 * not known. */
int64_t
semlock_boot_time(void)
{
    int64_t moment;

    return semlock_system_booted(&moment) == 0 ? moment * 1000 : 0;
}

/* The umask cannot be read here without being changed. */
int
semlock_system_umask(void)
{
    return -1;
}

/* Random bytes. */
void
semlock_system_random(void *bytes, size_t length)
{
    arc4random_buf(bytes, length);
}

/* The user and group IDs do not say here whether the process can change its user later. */
int
semlock_system_one_user(void)
{
    return 0;
}

/* All threads share one table of descriptors. */
int
semlock_system_unshare_descriptors(void)
{
    return 0;
}

int
semlock_system_unnamed(const char *directory, int32_t mode)
{
    (void)directory;
    (void)mode;
    return -EOPNOTSUPP;
}

int
semlock_system_link_unnamed(int fd, const char *path, semlock_pool *pool)
{
    (void)fd;
    (void)path;
    (void)pool;
    return -EOPNOTSUPP;
}

int
semlock_system_link_kept(const semlock_lock *lock, semlock_pool *pool)
{
    (void)pool;
    return semlock_link_by_private_name(lock);
}

/* flock and fcntl locks exclude each other here, so a witness on the instance would keep the
 * guard from being taken. */
int
semlock_system_take_witness(int fd)
{
    (void)fd;
    return -EOPNOTSUPP;
}

int
semlock_system_witness(int fd)
{
    (void)fd;
    return -1;
}

int
semlock_start_time(int64_t pid, int64_t *start)
{
    semlock_fate found = {0, 0};
    int outcome = pid < 1 || pid > 0x7fffffff ? -EINVAL : semlock_system_look_up(pid, &found);

    *start = found.start;
    return outcome;
}

int
semlock_identify(semlock_process *process)
{
    memset(process, 0, sizeof *process);
    process->pid = getpid();
    if (semlock_start_time(process->pid, &process->start) != 0) {
        process->start = 0;
    }
    semlock_system_name_space(process);
    return 0;
}

/* The state of the process with this number and start time (0 if unknown).  The difference of
 * two rounded times can be off by one microsecond.  That is accepted: a PID is not reused that
 * soon. */
int
semlock_probe(int64_t pid, int64_t start)
{
    semlock_fate found;
    int error;

    if (pid < 1 || pid > 0x7fffffff) {
        return -EINVAL;
    }
    error = kill((pid_t)pid, 0) == 0 ? 0 : errno;
    if (error != 0 && error != EPERM) {
        return error == ESRCH && !semlock_system_hides_processes() ? SEMLOCK_GONE : -error;
    }
    if (semlock_system_look_up(pid, &found) != 0) {
        return SEMLOCK_EXISTS;
    }
    if (start != 0 && found.start != 0 &&
        (found.start < start - 1 || found.start > start + 1)) {
        return SEMLOCK_RECYCLED;
    }
    if (found.zombie) {
        return SEMLOCK_ZOMBIE;
    }
    return start != 0 && found.start != 0 ? SEMLOCK_RUNS : SEMLOCK_EXISTS;
}

/* Without a witness, no holder is seen to have closed its file before its end. */
int
semlock_probe_ending(int64_t pid, int64_t start, int64_t patience)
{
    (void)patience;
    return semlock_probe(pid, start);
}

/* No filesystem here is known to keep a boot mark in order, so files are synced. */
int
semlock_system_mark_boot(const semlock_file *file, semlock_pool *pool)
{
    (void)file;
    (void)pool;
    return 0;
}

uint64_t
semlock_system_boot_mark(int fd, const semlock_view *seen)
{
    (void)fd;
    (void)seen;
    return 0;
}

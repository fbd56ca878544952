/* FreeBSD, NetBSD and OpenBSD: the system seam.  What differs between them is in the first
 * half, one small function for each question and system; the second half is common. */
#define _NETBSD_SOURCE
#include <sys/param.h>
#include <sys/mount.h>
#include <sys/proc.h>
#include <sys/stat.h>
#include <sys/sysctl.h>
#include <sys/time.h>
#if defined(__FreeBSD__)
#include <sys/user.h>
#elif defined(__NetBSD__)
#include <sys/statvfs.h>
#elif !defined(__OpenBSD__)
#error "semlock has no system source for this platform"
#endif
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "semlock.h"

/* What the system tells of a process. */
typedef struct {
    int64_t start; /* microseconds, 0 when it isn't told; see each look_up */
    int zombie;
} fate;

static int64_t
microseconds(int64_t seconds, int64_t rest)
{
    return seconds * 1000000 + rest;
}

#if !defined(__NetBSD__)
/* The wall clock's time of the boot.  It moves whenever somebody sets the clock. */
static int
boot_time(int64_t *moment)
{
    int name[2] = {CTL_KERN, KERN_BOOTTIME};
    struct timeval booted;
    size_t size = sizeof booted;

    if (sysctl(name, 2, &booted, &size, NULL, 0) != 0) {
        return -errno;
    }
    *moment = microseconds(booted.tv_sec, booted.tv_usec);
    return 0;
}
#endif

#if defined(__FreeBSD__)
static int
look_up_once(int64_t pid, fate *found)
{
    int name[4] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, (int)pid};
    struct kinfo_proc entry;
    size_t size = sizeof entry;

    if (sysctl(name, 4, &entry, &size, NULL, 0) != 0) {
        return -errno;
    }
    if (size < sizeof entry || entry.ki_pid != (pid_t)pid) {
        return -ESRCH;
    }
    found->start = microseconds(entry.ki_start.tv_sec, entry.ki_start.tv_usec);
    found->zombie = entry.ki_stat == SZOMB;
    return 0;
}
#elif defined(__OpenBSD__)
static int
look_up_once(int64_t pid, fate *found)
{
    struct kinfo_proc entry;
    int name[6] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, (int)pid, (int)sizeof entry, 1};
    size_t size = sizeof entry;

    if (sysctl(name, 6, &entry, &size, NULL, 0) != 0) {
        return -errno;
    }
    if (size < sizeof entry || entry.p_pid != (pid_t)pid) {
        return -ESRCH;
    }
    found->zombie = entry.p_stat == SDEAD || entry.p_stat == SZOMB;
    found->start =
        found->zombie ? 0 : microseconds((int64_t)entry.p_ustart_sec, entry.p_ustart_usec);
    return 0;
}
#endif

#if defined(__NetBSD__)
/* NetBSD notes the wall clock at the fork and leaves it alone.  Zombies have lost it. */
static int
look_up(int64_t pid, fate *found)
{
    struct kinfo_proc2 entry;
    int name[6] = {CTL_KERN, KERN_PROC2, KERN_PROC_PID, (int)pid, (int)sizeof entry, 1};
    size_t size = sizeof entry;

    if (sysctl(name, 6, &entry, &size, NULL, 0) != 0) {
        return -errno;
    }
    if (size < sizeof entry || entry.p_pid != (pid_t)pid) {
        return -ESRCH;
    }
    found->zombie = entry.p_realstat == SZOMB || entry.p_realstat == SDEAD;
    found->start =
        entry.p_uvalid == 0 ? 0 : microseconds(entry.p_ustart_sec, entry.p_ustart_usec);
    return 0;
}
#else
/* FreeBSD and OpenBSD note the uptime at the fork and add the time of the boot when asked,
 * so the sum moves with the clock.  Without the time of the boot it is what was noted; if
 * that changed between the two questions, both are asked again. */
static int
look_up(int64_t pid, fate *found)
{
    int64_t before, after;
    int outcome;

    for (int again = 0; again < 8; again++) {
        outcome = boot_time(&before);
        if (outcome == 0) {
            outcome = look_up_once(pid, found);
        }
        if (outcome != 0 || found->start == 0) {
            return outcome;
        }
        if (boot_time(&after) == 0 && before == after) {
            found->start -= before;
            return 0;
        }
    }
    found->start = 0;
    return 0;
}
#endif

#if defined(__FreeBSD__)
/* A random number of this boot.  Where the kernel is too old to have one, the time of the
 * boot must do; where it has one and can't tell it yet, nothing is said, for two texts for
 * one boot would make a living holder look like one of an earlier boot. */
static void
name_boot(char *text, size_t room)
{
    unsigned char id[16];
    size_t size = sizeof id;
    int64_t moment;

    if (sysctlbyname("kern.boot_id", id, &size, NULL, 0) != 0) {
        if (errno == ENOENT && boot_time(&moment) == 0) {
            snprintf(text, room, "boottime-%lld", (long long)moment);
        }
        return;
    }
    for (size_t i = 0; i < size; i++) {
        snprintf(text + 2 * i, room - 2 * i, "%02x", id[i]);
    }
}
#elif defined(__NetBSD__)
/* The first process was given the time of the boot and keeps it when the clock is set. */
static void
name_boot(char *text, size_t room)
{
    fate first;

    if (look_up(1, &first) == 0 && first.start != 0) {
        snprintf(text, room, "init-%lld", (long long)first.start);
    }
}
#else
/* OpenBSD has nothing that stays as it is for a boot and differs from boot to boot.  The
 * text begins with a word of its own, so that readers can tell that it changes with the
 * clock and that another one is no proof of another boot. */
static void
name_boot(char *text, size_t room)
{
    int64_t moment;

    if (boot_time(&moment) == 0) {
        snprintf(text, room, "boottime-%lld", (long long)moment);
    }
}
#endif

#if defined(__FreeBSD__)
static int
setting(const char *name)
{
    int value = 0;
    size_t size = sizeof value;

    return sysctlbyname(name, &value, &size, NULL, 0) == 0 ? value : -1;
}

static uint64_t
mix(uint64_t hash, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;

    while (length-- > 0) {
        hash = (hash ^ *at++) * 1099511628211u;
    }
    return hash;
}

/* Is this directory the machine's own root?  On UFS a root is number 2.  On ZFS it has no
 * fixed number, and all that is known is whether the filesystem is the one that holds it. */
static int
may_be_the_machines(const struct stat *root)
{
    struct statfs about;

    return statfs("/", &about) != 0 ||
           ((about.f_flags & MNT_ROOTFS) != 0 &&
            (strcmp(about.f_fstypename, "ufs") != 0 || root->st_ino == 2));
}

/* A jail sees no process outside, so its numbers mean nothing to those who are not in it.
 * It can't learn its own number; what it has for itself stands in for that.  A service jail
 * has nothing for itself: it shares root and name with the machine and with others of its
 * kind.  There each process is alone with its number, and nobody judges another by it. */
static uint64_t
process_space(const semlock_process *process)
{
    static const char *const names[] = {"kern.hostuuid", "kern.hostname"};
    uint64_t hash = 14695981039346656037u;
    struct stat root;
    char text[256];

    if (setting("security.jail.jailed") != 1) {
        return 0;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t size = sizeof text;

        if (sysctlbyname(names[i], text, &size, NULL, 0) == 0) {
            hash = mix(hash, text, size);
        }
    }
    memset(&root, 0, sizeof root);
    if (stat("/", &root) == 0) {
        hash = mix(hash, &root.st_dev, sizeof root.st_dev);
        hash = mix(hash, &root.st_ino, sizeof root.st_ino);
    }
    if (may_be_the_machines(&root)) {
        hash = mix(hash, &process->pid, sizeof process->pid);
        hash = mix(hash, &process->start, sizeof process->start);
    }
    return hash | 1;
}

/* An administrator can hide processes of other users, and policies can hide those with other
 * labels even from root; they then answer like none at all. */
static int
others_are_hidden(void)
{
    static const char *const labels[] = {
        "security.mac.partition.enabled", "security.mac.biba.enabled",
        "security.mac.mls.enabled", "security.mac.lomac.enabled"};

    for (size_t i = 0; i < sizeof labels / sizeof labels[0]; i++) {
        if (setting(labels[i]) == 1) {
            return 1;
        }
    }
    if (setting("security.mac.seeotheruids.enabled") == 1 &&
        (geteuid() != 0 || setting("security.mac.seeotheruids.suser_privileged") == 0)) {
        return 1;
    }
    return geteuid() != 0 && (setting("security.bsd.see_other_uids") == 0 ||
                              setting("security.bsd.see_other_gids") == 0 ||
                              setting("security.bsd.see_jail_proc") == 0);
}
#else
static uint64_t
process_space(const semlock_process *process)
{
    (void)process;
    return 0;
}

static int
others_are_hidden(void)
{
    return 0; /* who may not be seen refuses signal 0, and that says that he exists */
}
#endif

/* The kinds whose files no other machine reaches but through this one, by the names that one
 * system or another has for them.  The flag alone doesn't say so: FreeBSD sets it for a folder
 * that a virtual machine shares with its host (p9fs), OpenBSD for every FUSE mount, and then
 * two machines would each take the other's living holder for one of their own before a
 * restart.  A kind that is not listed is treated as remote; so is FreeBSD's nullfs, which has
 * the flag of whatever is below it. */
static int
is_local_kind(const char *kind, int flagged)
{
    static const char *const kinds[] = {"ffs",    "ufs", "zfs",     "tmpfs", "mfs",
                                        "ext2fs", "lfs", "msdosfs", "msdos"};

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kind, kinds[i]) == 0) {
            return flagged;
        }
    }
    return 0;
}

#if defined(__NetBSD__)
int
semlock_system_local(int fd)
{
    struct statvfs about;

    return fstatvfs(fd, &about) == 0 &&
           is_local_kind(about.f_fstypename, (about.f_flag & ST_LOCAL) != 0);
}

/* Does this machine hear of every change in this directory?  Not where others make them. */
int
semlock_system_hears(const char *directory)
{
    struct statvfs about;

    return statvfs(directory, &about) == 0 &&
           is_local_kind(about.f_fstypename, (about.f_flag & ST_LOCAL) != 0);
}

/* Does the filesystem not know the call, or the device below it?  The fast filesystem keeps
 * that to itself; the others hand on whatever word the device's driver has for it. */
static int
refused(int error)
{
    return error == EINVAL || error == EOPNOTSUPP || error == ENOTSUP || error == ENOSYS ||
           error == ENOTTY || error == ENODEV || error == ENXIO;
}

/* Everything, and out of the drive's own cache where the filesystem can ask for that. */
static int
sync_all(int fd)
{
    if (fsync_range(fd, FFILESYNC | FDISKSYNC, 0, 0) == 0) {
        return 0;
    }
    if (!refused(errno)) {
        return -errno;
    }
    return fsync(fd) == 0 ? 0 : -errno;
}
#else
int
semlock_system_local(int fd)
{
    struct statfs about;

    return fstatfs(fd, &about) == 0 &&
           is_local_kind(about.f_fstypename, (about.f_flags & MNT_LOCAL) != 0);
}

int
semlock_system_hears(const char *directory)
{
    struct statfs about;

    return statfs(directory, &about) == 0 &&
           is_local_kind(about.f_fstypename, (about.f_flags & MNT_LOCAL) != 0);
}

static int
sync_all(int fd)
{
    return fsync(fd) == 0 ? 0 : -errno;
}
#endif

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

/* flock and fcntl locks are one and the same kind here and exclude each other, so a witness
 * on the instance would be a guard that is never free. */
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

/* A kept file was synced whole when it was made; see linux_system.c. */
int
semlock_system_sync(int fd, int32_t durability, int overwritten)
{
    if (durability == SEMLOCK_SYNC_NONE) {
        return 0;
    }
    if (durability == SEMLOCK_SYNC_DATA || overwritten) {
        return fdatasync(fd) == 0 ? 0 : -errno;
    }
    return sync_all(fd);
}

int
semlock_start_time(int64_t pid, int64_t *start)
{
    fate found = {0, 0};
    int outcome = pid < 1 || pid > 0x7fffffff ? -EINVAL : look_up(pid, &found);

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
    process->pidns = process_space(process);
    name_boot(process->boot, sizeof process->boot);
    return 0;
}

/* What became of the process with this number that began at `start` (0 if that is unknown)?
 * Subtracting two rounded times can be off by one microsecond, which tells no two processes
 * apart: a number isn't given out again that soon. */
int
semlock_probe(int64_t pid, int64_t start)
{
    fate found;
    int error;

    if (pid < 1 || pid > 0x7fffffff) {
        return -EINVAL;
    }
    error = kill((pid_t)pid, 0) == 0 ? 0 : errno;
    if (error != 0 && error != EPERM) {
        return error == ESRCH && !others_are_hidden() ? SEMLOCK_GONE : -error;
    }
    if (look_up(pid, &found) != 0) {
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

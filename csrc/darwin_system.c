/* macOS: the system seam.  There are no unnamed files and no witness here, a flush that
 * means it has a name of its own, and what became of a process is told by libproc and
 * sysctl. */
#include <errno.h>
#include <fcntl.h>
#include <libproc.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/param.h>
#include <sys/proc.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include "semlock.h"

/* What the system tells of a process. */
typedef struct {
    int64_t start; /* microseconds since 1970, noted at its fork and never changed */
    int zombie;
} fate;

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

/* The kinds whose files no other machine reaches but through this one.  The flag alone doesn't
 * say so: whoever mounts by FUSE may set it, for files that are wherever they are, and then
 * two machines would each take the other's living holder for one of their own before a
 * restart.  A kind that is not listed is treated as remote. */
static int
is_local_kind(const struct statfs *about)
{
    static const char *const kinds[] = {"apfs", "hfs", "msdos", "exfat", "tmpfs"};

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(about->f_fstypename, kinds[i]) == 0) {
            return (about->f_flags & MNT_LOCAL) != 0;
        }
    }
    return 0;
}

int
semlock_system_local(int fd)
{
    struct statfs about;

    return fstatfs(fd, &about) == 0 && is_local_kind(&about);
}

/* Does this machine hear of every change in this directory?  Not where others make them. */
int
semlock_system_hears(const char *directory)
{
    struct statfs about;

    return statfs(directory, &about) == 0 && is_local_kind(&about);
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

/* Is this the filesystem saying that it doesn't know the call, and not the disk failing? */
static int
refused(int error)
{
    return error == ENOTSUP || error == EOPNOTSUPP || error == EINVAL || error == ENOTTY ||
           error == ENOSYS || error == ENODEV;
}

/* fsync on macOS hands the bytes to the drive and lets the drive keep them in its cache,
 * where a power cut finds them.  F_FULLFSYNC waits until they are on the medium,
 * F_BARRIERFSYNC only keeps them in order before whatever is written later, which is what a
 * lock that may vanish but must not be half there asks for.  Network filesystems and some
 * foreign ones refuse either, and for them fsync is the best there is.  A real error of the
 * disk is passed on: to ask again with a weaker call might answer that all is well. */
int
semlock_system_sync(int fd, int32_t durability, int overwritten)
{
    (void)overwritten;
    if (durability == SEMLOCK_SYNC_NONE) {
        return 0;
    }
    if (fcntl(fd, durability == SEMLOCK_SYNC_FULL ? F_FULLFSYNC : F_BARRIERFSYNC) != -1) {
        return 0;
    }
    if (!refused(errno)) {
        return -errno;
    }
    return fsync(fd) == 0 ? 0 : -errno;
}

/* The short way shows zombies too when its argument says so, but only processes of our own
 * user; sysctl shows everybody's.  Both read the same fields of the kernel. */
static int
look_up(int64_t pid, fate *found)
{
    int name[4] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, (int)pid};
    struct proc_bsdinfo info;
    struct kinfo_proc entry;
    size_t size = sizeof entry;

    if (proc_pidinfo((int)pid, PROC_PIDTBSDINFO, 1, &info, (int)sizeof info) ==
        (int)sizeof info) {
        found->start =
            (int64_t)info.pbi_start_tvsec * 1000000 + (int64_t)info.pbi_start_tvusec;
        found->zombie = info.pbi_status == SZOMB;
        return 0;
    }
    if (sysctl(name, 4, &entry, &size, NULL, 0) != 0) {
        return -errno;
    }
    if (size < sizeof entry) {
        return -ESRCH;
    }
    found->start = (int64_t)entry.kp_proc.p_starttime.tv_sec * 1000000 +
                   (int64_t)entry.kp_proc.p_starttime.tv_usec;
    found->zombie = entry.kp_proc.p_stat == SZOMB;
    return 0;
}

int
semlock_start_time(int64_t pid, int64_t *start)
{
    fate found;
    int outcome;

    if (pid < 1 || pid > 0x7fffffff) {
        return -EINVAL;
    }
    outcome = look_up(pid, &found);
    if (outcome == 0) {
        *start = found.start;
    }
    return outcome;
}

int
semlock_identify(semlock_process *process)
{
    size_t size = sizeof process->boot - 1;

    memset(process, 0, sizeof *process);
    process->pid = getpid();
    if (semlock_start_time(process->pid, &process->start) != 0) {
        process->start = 0;
    }
    /* A random number of this boot, which setting the clock doesn't change. */
    if (sysctlbyname("kern.bootsessionuuid", process->boot, &size, NULL, 0) != 0) {
        process->boot[0] = 0;
    }
    return 0;
}

/* What became of the process with this number that began at `start` (0 if not known)? */
int
semlock_probe(int64_t pid, int64_t start)
{
    fate found;

    if (pid < 1 || pid > 0x7fffffff) {
        return -EINVAL;
    }
    if (kill((pid_t)pid, 0) != 0 && errno != EPERM) {
        return errno == ESRCH ? SEMLOCK_GONE : -errno;
    }
    if (look_up(pid, &found) != 0) {
        return SEMLOCK_EXISTS;
    }
    if (start != 0 && found.start != start) {
        return SEMLOCK_RECYCLED;
    }
    if (found.zombie) {
        return SEMLOCK_ZOMBIE;
    }
    return start != 0 ? SEMLOCK_RUNS : SEMLOCK_EXISTS;
}

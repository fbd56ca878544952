/* macOS: what this system does differently.  It has no unnamed files and no witness,
 * F_FULLFSYNC syncs to the medium, and libproc and sysctl give the state of processes. */
#include <errno.h>
#include <fcntl.h>
#include <libproc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/param.h>
#include <sys/proc.h>
#include <sys/stat.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include "posix/system.h"

/* macOS has no memory that is cleared by a fork, so PIDs are compared. */
int64_t *
semlock_system_mark(void)
{
    return NULL;
}

/* The kinds of filesystem whose files other machines reach only through this one.  The flag
 * alone is not enough: a FUSE mount may set it for files that are elsewhere.  Two machines
 * would then each take the other's living holder for one of their own from before a restart.
 * A kind that is not listed counts as remote. */
const char *const semlock_local_kinds[] = {"apfs", "hfs", "msdos", "exfat", "tmpfs", NULL};

/* Does the error mean that the filesystem does not support the call, rather than that the disk
 * failed? */
static int
refused(int error)
{
    return error == ENOTSUP || error == EOPNOTSUPP || error == EINVAL || error == ENOTTY ||
           error == ENOSYS || error == ENODEV;
}

/* fsync on macOS passes the bytes to the drive, which may keep them in its cache; a power cut
 * loses them.  F_FULLFSYNC waits until they are on the medium.  F_BARRIERFSYNC only orders
 * them before later writes; that is enough for a lock that may vanish but must not be half
 * written.  Network filesystems and some foreign ones refuse both, and then fsync is the best
 * available.  A real disk error is returned: a weaker call after it might succeed and hide it.
 */
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

/* proc_pidinfo with argument 1 shows zombies too, but only processes of our own user; sysctl
 * shows those of all users.  Both read the same fields of the kernel. */
int
semlock_system_look_up(int64_t pid, semlock_fate *found)
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

/* A random number of this boot; setting the clock does not change it. */
void
semlock_system_name_space(semlock_process *process)
{
    size_t size = sizeof process->boot - 1;

    if (sysctlbyname("kern.bootsessionuuid", process->boot, &size, NULL, 0) != 0) {
        process->boot[0] = 0;
    }
}

/* Signal 0 to a process of another user gives EPERM, so it is known to exist. */
int
semlock_system_hides_processes(void)
{
    return 0;
}

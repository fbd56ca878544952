/* FreeBSD, NetBSD and OpenBSD: files and memory. bsd/process.c is about processes,
 * kqueue/system.c has what macOS shares with them. */
#define _NETBSD_SOURCE
#include <sys/param.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "posix/system.h"

/* The kinds of filesystem whose files other machines reach only through this one, by their
 * names on the three systems.  The flag alone is not enough: FreeBSD sets it for a folder
 * shared between a virtual machine and its host (p9fs), OpenBSD for every FUSE mount.  Two
 * machines would then each take the other's living holder for one of their own from before a
 * restart.  A kind that is not listed counts as remote; so does FreeBSD's nullfs, which has
 * the flag of the filesystem below it. */
const char *const semlock_local_kinds[] = {"ffs",    "ufs", "zfs",     "tmpfs", "mfs",
                                           "ext2fs", "lfs", "msdosfs", "msdos", NULL};

#if defined(__NetBSD__)
/* Does the error mean that the filesystem or its device does not support the call?  The fast
 * filesystem hides the device's error; others pass on the error of the driver. */
static int
refused(int error)
{
    return error == EINVAL || error == EOPNOTSUPP || error == ENOTSUP || error == ENOSYS ||
           error == ENOTTY || error == ENODEV || error == ENXIO;
}

/* Sync all, including the drive's cache where the filesystem supports that. */
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
static int
sync_all(int fd)
{
    return fsync(fd) == 0 ? 0 : -errno;
}
#endif

/* Memory that reads zero in a forked child; NULL where the kernel does not support it. */
int64_t *
semlock_system_mark(void)
{
#if defined(INHERIT_ZERO) || defined(MAP_INHERIT_ZERO)
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
#if defined(INHERIT_ZERO)
    int zero = INHERIT_ZERO;
#else
    int zero = MAP_INHERIT_ZERO;
#endif

    if (page == MAP_FAILED) {
        return NULL;
    }
    if (minherit(page, size, zero) == 0) {
        return page;
    }
    munmap(page, size);
#endif
    return NULL;
}

/* A kept file was fully synced when it was created; see linux/system.c. */
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

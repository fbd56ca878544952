/* Linux: the boot mark, an extended attribute that names the boot in which a lock file was
 * made (semlock.h, THE BOOT MARK).
 *
 *   ext3, ext4 with a journal, xfs, btrfs, f2fs   marked: tests/power cuts the power of each
 *   tmpfs, ramfs                                  neither: they are empty after a restart
 *   all others, and where a step fails            synced: their order is not known
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "posix/system.h"

#define NAME "user.semlock"
#define EXT 0x0000ef53

/* The C libraries differ in the type of a request. */
#if defined(__GLIBC__)
#define GENERATION_OF FS_IOC_GETVERSION
#else
#define GENERATION_OF ((int)FS_IOC_GETVERSION)
#endif

typedef struct {
    uint64_t boot;
    uint64_t seal;
} boot_mark;

/* A number of this inode and this boot, so that the attribute of a copy proves nothing: the
 * copy is another inode, and an inode number that is used again has another generation. */
static int
seal(int fd, uint64_t ino, uint64_t boot, uint64_t *number)
{
    int generation[2] = {0, 0}; /* the request is declared for a long, and gives an int */
    uint64_t parts[3] = {boot, ino, 0};

    if (ioctl(fd, GENERATION_OF, generation) != 0) {
        return -errno;
    }
    parts[2] = (uint64_t)(uint32_t)generation[0];
    *number = semlock_hash(SEMLOCK_NO_HASH, parts, sizeof parts);
    return 0;
}

/* Has the ext2, ext3 or ext4 filesystem on this device a journal?  Without one its metadata
 * comes to the disk in any order.  The driver says so in a file named like the device. */
static int
has_journal(uint64_t dev)
{
    char path[256];
    char link[512];
    char task[16];
    const char *name;
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "/sys/dev/block/%u:%u", major((dev_t)dev), minor((dev_t)dev));
    n = readlink(path, link, sizeof link - 1);
    if (n <= 0) {
        return 0;
    }
    link[n] = 0;
    name = strrchr(link, '/');
    n = snprintf(path, sizeof path, "/sys/fs/ext4/%s/journal_task", name ? name + 1 : link);
    fd = n < (ssize_t)sizeof path ? semlock_open(path, O_RDONLY, 0) : -1;
    if (fd < 0) {
        return 0;
    }
    n = read(fd, task, sizeof task);
    close(fd);
    return n > 0 && task[0] != '<'; /* the number of the journal's thread, or "<none>" */
}

/* Does the filesystem write an inode's attribute before a name that was made later?  The
 * answer for the last filesystem is kept, by its identity. */
static int
keeps_order(const semlock_file *file, semlock_pool *pool)
{
    struct statfs about;
    uint64_t which;

    if (fstatfs((int)file->handle, &about) != 0) {
        return 0;
    }
    which = semlock_hash(SEMLOCK_NO_HASH, &about.f_fsid, sizeof about.f_fsid) ^ file->dev;
    if (semlock_load64(&pool->ordered) == which) {
        return 1;
    }
    if ((uint32_t)about.f_type == EXT && !has_journal(file->dev)) {
        return 0;
    }
    semlock_store64(&pool->ordered, which);
    return 1;
}

/* Mark the file: 1 if after a power cut it is known for what it is, or is not there. */
int
semlock_system_mark_boot(const semlock_file *file, semlock_pool *pool)
{
    int fd = (int)file->handle;
    boot_mark mark = {pool->boot, 0};

    if (file->local == SEMLOCK_IN_MEMORY) {
        return 1;
    }
    return file->local == SEMLOCK_ORDERED && mark.boot != 0 && keeps_order(file, pool) &&
           seal(fd, file->ino, mark.boot, &mark.seal) == 0 &&
           fsetxattr(fd, NAME, &mark, sizeof mark, 0) == 0;
}

/* The boot that the file's mark names; 0 if it has none, or that of another file. */
uint64_t
semlock_system_boot_mark(int fd, const semlock_view *seen)
{
    boot_mark mark;
    uint64_t number;

    if (seen->local != SEMLOCK_ORDERED ||
        fgetxattr(fd, NAME, &mark, sizeof mark) != (ssize_t)sizeof mark ||
        seal(fd, seen->ino, mark.boot, &number) != 0 || number != mark.seal) {
        return 0;
    }
    return mark.boot;
}

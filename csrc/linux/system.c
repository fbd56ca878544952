/* Linux: unnamed files, the witness, and which filesystems are local. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "posix/system.h"

/* The position of the witness: one byte that no record and no foreign lock on a file's content
 * reaches, and that is a valid offset on every filesystem. */
#define WITNESS_BYTE ((off_t)1 << 61)

/* A signal number that marks descriptors as ours (F_SETSIG).  Other descriptors do not have
 * it, and the kernel sends it only after O_ASYNC, which is never set here. */
#define SIGNATURE 62

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* since Linux 4.14 */
#endif
#define NO_ADVICE (-1)
#ifndef F_SETSIG
#define F_SETSIG 10
#define F_GETSIG 11
#endif

/* Old headers lack it; the values are part of the kernel's stable interface. */
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

/* The same on every processor for which there are wheels. */
#ifndef O_TMPFILE
#define O_TMPFILE (020000000 | O_DIRECTORY)
#endif

/* Memory that reads zero in a forked child; NULL where the kernel does not support it.  An
 * emulator or a sandbox may accept any advice and do nothing, so advice that does not exist
 * must be refused. */
int64_t *
semlock_system_mark(void)
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED) {
        return NULL;
    }
    if (madvise(page, size, MADV_WIPEONFORK) != 0 || madvise(page, size, NO_ADVICE) == 0) {
        munmap(page, size);
        return NULL;
    }
    return page;
}

/* Random bytes from the kernel, or else made from the time, which differs between processes
 * too. */
void
semlock_system_random(void *bytes, size_t length)
{
    struct timespec now;
    uint64_t word;

    if (syscall(SYS_getrandom, bytes, length, 0) == (long)length) {
        return;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    word = (uint64_t)now.tv_nsec + (uint64_t)now.tv_sec * 1000000007u;
    for (size_t i = 0; i < length; i++) {
        word = (word ^ (uint64_t)getpid()) * 1099511628211u;
        ((unsigned char *)bytes)[i] ^= (unsigned char)(word >> 32);
    }
}

/* Event sources and process handles share one inode, so the signature identifies ours. */
int
semlock_system_sign(int fd)
{
    return fcntl(fd, F_SETSIG, SIGNATURE) == 0 ? 0 : -errno;
}

/* If a sandbox forbids the question, the descriptor counts as ours; EBADF means that it is
 * closed. */
int
semlock_system_signed(int fd)
{
    int found = fcntl(fd, F_GETSIG);

    return found == SIGNATURE || (found < 0 && errno != EBADF);
}

/* Give this thread its own table of descriptors. */
int
semlock_system_unshare_descriptors(void)
{
    return unshare(CLONE_FILES) == 0;
}

/* Has this process one user and one group, real, effective and saved, and no capability to
 * change them?  Then that stays so until it executes another program.  (A new user namespace
 * gives it that capability again, but only over its own user, unless a privileged program maps
 * more.) */
int
semlock_system_one_user(void)
{
    const uint32_t changing = 1u << CAP_SETUID | 1u << CAP_SETGID;
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    uid_t user, effective, saved;
    gid_t group, effective_group, saved_group;

    if (getresuid(&user, &effective, &saved) != 0 ||
        getresgid(&group, &effective_group, &saved_group) != 0 ||
        syscall(SYS_capget, &header, sets) != 0) {
        return 0;
    }
    return user == effective && user == saved && group == effective_group &&
           group == saved_group && (sets[0].permitted & changing) == 0;
}

int
semlock_system_unnamed(const char *directory, int32_t mode)
{
    int fd = semlock_open(directory, O_TMPFILE | O_RDWR, (mode_t)mode);

    if (fd >= 0) {
        return fd;
    }
    /* Kernels and filesystems without O_TMPFILE see a request to open a directory for writing.
     */
    return errno == EISDIR || errno == EINVAL || errno == EOPNOTSUPP ? -EOPNOTSUPP : -errno;
}

/* Linking by descriptor needs a capability before Linux 6.10, and fails with ENOENT without
 * it; a sandbox may answer EPERM.  Then the result is SEMLOCK_CHANGED, and the caller uses
 * another way.  After LINKS_BEFORE_ASKING links by the other way this one is tried again,
 * because the cause may be gone. */
#define LINKS_BEFORE_ASKING 256

static int
link_by_fd(int fd, const char *path, semlock_pool *pool)
{
    if (semlock_load32(&pool->no_link_by_fd) > 0 &&
        semlock_add32(&pool->no_link_by_fd, -1) > 1) {
        return SEMLOCK_CHANGED;
    }
    if (linkat(fd, "", AT_FDCWD, path, AT_EMPTY_PATH) == 0) {
        return SEMLOCK_OK;
    }
    return errno != ENOENT && errno != EPERM && errno != EINVAL ? -errno : SEMLOCK_CHANGED;
}

/* The other way worked, so the refusal was about linking by descriptor, not about the path. */
static int
linked_otherwise(semlock_pool *pool)
{
    if (semlock_load32(&pool->no_link_by_fd) <= 0) {
        semlock_store32(&pool->no_link_by_fd, LINKS_BEFORE_ASKING);
    }
    return SEMLOCK_OK;
}

/* The way by /proc works wherever /proc is mounted. */
int
semlock_system_link_unnamed(int fd, const char *path, semlock_pool *pool)
{
    char proc[40];
    int outcome = link_by_fd(fd, path, pool);

    if (outcome != SEMLOCK_CHANGED) {
        return outcome;
    }
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, proc, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) {
        return linked_otherwise(pool);
    }
    if (errno == ENOENT && access(proc, F_OK) != 0) {
        return -EOPNOTSUPP; /* no /proc here: use a named file */
    }
    return -errno;
}

int
semlock_system_link_kept(const semlock_lock *lock, semlock_pool *pool)
{
    int outcome = link_by_fd((int)lock->file.handle, lock->path, pool);

    if (outcome != SEMLOCK_CHANGED) {
        return outcome;
    }
    outcome = semlock_link_by_private_name(lock);
    return outcome == SEMLOCK_OK ? linked_otherwise(pool) : outcome;
}

/* One file seen by an overlay and by the directory below it is two inodes to the kernel, each
 * with its own locks. */
#define OVERLAY 0x794c7630

/* The kinds of filesystem on which flock and OFD locks are known to be independent of each
 * other, and visible to every process that can reach the file.  A kind that is not listed
 * counts as remote. */
static int
local_kind(const struct statfs *about)
{
    static const struct {
        uint32_t type;
        int kind;
    } kinds[] = {
        {0x0000ef53, SEMLOCK_ORDERED},   /* ext2, ext3, ext4: see linux/boot_mark.c */
        {0x01021994, SEMLOCK_IN_MEMORY}, /* tmpfs */
        {0x58465342, SEMLOCK_ORDERED},   /* xfs */
        {0x9123683e, SEMLOCK_ORDERED},   /* btrfs */
        {0xf2f52010, SEMLOCK_ORDERED},   /* f2fs */
        {0x858458f6, SEMLOCK_IN_MEMORY}, /* ramfs */
        {OVERLAY, SEMLOCK_LAYERED},      {0x2fc12fc1, SEMLOCK_LOCAL}, /* zfs */
        {0xca451a4e, SEMLOCK_LOCAL},                                  /* bcachefs */
        {0x3153464a, SEMLOCK_LOCAL},                                  /* jfs */
        {0x52654973, SEMLOCK_LOCAL},                                  /* reiserfs */
        {0x00003434, SEMLOCK_LOCAL},                                  /* nilfs2 */
    };

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if ((uint32_t)about->f_type == kinds[i].type) {
            return kinds[i].kind;
        }
    }
    return 0;
}

int
semlock_system_local(int fd)
{
    struct statfs about;

    return fstatfs(fd, &about) == 0 ? local_kind(&about) : 0;
}

/* Does inotify report every change in this directory?  Not where other machines can change it.
 */
int
semlock_system_hears(const char *directory)
{
    struct statfs about;

    return statfs(directory, &about) == 0 && local_kind(&about) != 0;
}

/* The kernel's own form of directory entries. readdir() allocates so much per directory that
 * handing over in a queue would take a fifth longer. */
struct entry {
    uint64_t ino;
    int64_t next;
    unsigned short length;
    unsigned char type;
    char name[];
};

void
semlock_names_start(semlock_names *names, int fd)
{
    names->fd = fd;
    names->error = 0;
    names->at = names->length = 0;
}

const char *
semlock_names_next(semlock_names *names)
{
    const struct entry *entry;

    if (names->at >= names->length) {
        long n = syscall(SYS_getdents64, names->fd, names->buffer, sizeof names->buffer);

        names->at = 0;
        names->length = n < 0 ? 0 : (int32_t)n;
        if (n <= 0) {
            names->error = n < 0 ? -errno : 0;
            return NULL;
        }
    }
    entry = (const struct entry *)(const void *)(names->buffer + names->at);
    names->at += entry->length;
    return entry->name;
}

void
semlock_names_end(semlock_names *names)
{
    close(names->fd);
}

static struct flock
witness_lock(short type)
{
    struct flock lock;

    memset(&lock, 0, sizeof lock);
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = WITNESS_BYTE;
    lock.l_len = 1;
    return lock;
}

int
semlock_system_take_witness(int fd)
{
    struct flock lock = witness_lock(F_WRLCK);

    return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : -errno;
}

/* 1 taken, 0 free, -1 not known here.  A query for a read lock reports conflicting write locks
 * only.  Every reader of the file can hold a read lock there, so read locks must not count. */
int
semlock_system_witness(int fd)
{
    struct flock lock = witness_lock(F_RDLCK);

    if (fcntl(fd, F_OFD_GETLK, &lock) != 0) {
        return -1;
    }
    return lock.l_type != F_UNLCK;
}

/* A kept file was fully synced when it was created.  Overwriting changes only its bytes, so
 * fdatasync is enough and saves writing the inode. */
int
semlock_system_sync(int fd, int32_t durability, int overwritten)
{
    if (durability == SEMLOCK_SYNC_NONE) {
        return 0;
    }
    if (durability == SEMLOCK_SYNC_DATA || overwritten) {
        return fdatasync(fd) == 0 ? 0 : -errno;
    }
    return fsync(fd) == 0 ? 0 : -errno;
}

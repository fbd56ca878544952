/* Linux: unnamed files, the witness, which filesystems are local, and what became of a
 * process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "semlock.h"

/* Where the witness lies: one byte that no record and no foreign lock of a whole file's
 * content reaches, and that still fits a 32-bit off_t's 64-bit form on every filesystem. */
#define WITNESS_BYTE ((off_t)1 << 61)

/* Since Linux 2.6.x headers may lack it: values are part of the kernel's stable interface. */
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

/* The same on every processor that there are wheels for. */
#ifndef O_TMPFILE
#define O_TMPFILE (020000000 | O_DIRECTORY)
#endif

int
semlock_system_unnamed(const char *directory, int32_t mode)
{
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, (mode_t)mode);

    if (fd >= 0) {
        return fd;
    }
    /* Kernels and filesystems without it take it for an odd way to open a directory. */
    return errno == EISDIR || errno == EINVAL || errno == EOPNOTSUPP ? -EOPNOTSUPP : -errno;
}

/* Linking by descriptor needs a capability before Linux 6.10, and says ENOENT without it.
 * The way through /proc always works where /proc is mounted. */
int
semlock_system_link_unnamed(int fd, const char *path, semlock_pool *pool)
{
    char proc[40];

    if (!semlock_load32(&pool->no_link_by_fd)) {
        if (linkat(fd, "", AT_FDCWD, path, AT_EMPTY_PATH) == 0) {
            return SEMLOCK_OK;
        }
        if (errno != ENOENT && errno != EPERM && errno != EINVAL) {
            return -errno;
        }
    }
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, proc, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) {
        semlock_store32(&pool->no_link_by_fd, 1);
        return SEMLOCK_OK;
    }
    if (errno == ENOENT && access(proc, F_OK) != 0) {
        return -EOPNOTSUPP; /* no /proc here: a named file will do */
    }
    return -errno;
}

int
semlock_system_link_kept(const semlock_lock *lock, semlock_pool *pool)
{
    if (!semlock_load32(&pool->no_link_by_fd)) {
        if (linkat((int)lock->file.handle, "", AT_FDCWD, lock->path, AT_EMPTY_PATH) == 0) {
            return SEMLOCK_OK;
        }
        if (errno != ENOENT && errno != EPERM && errno != EINVAL) {
            return -errno;
        }
    }
    return semlock_link_by_private_name(lock);
}

/* The kinds on which flock and OFD locks are known to be separate and to be seen by every
 * process that can reach the file.  A kind that is not listed is treated as remote. */
static int
is_local_kind(const struct statfs *about)
{
    static const uint32_t kinds[] = {
        0x0000ef53, /* ext2, ext3, ext4 */
        0x01021994, /* tmpfs */
        0x58465342, /* xfs */
        0x9123683e, /* btrfs */
        0x794c7630, /* overlayfs */
        0xf2f52010, /* f2fs */
        0x858458f6, /* ramfs */
        0x2fc12fc1, /* zfs */
        0xca451a4e, /* bcachefs */
        0x3153464a, /* jfs */
        0x52654973, /* reiserfs */
        0x00003434, /* nilfs2 */
    };

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if ((uint32_t)about->f_type == kinds[i]) {
            return 1;
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

/* The kernel's own form of a directory's entries.  The library's form allocates so much for
 * each directory that a queue's hand-over would be a fifth dearer. */
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
witness_lock(void)
{
    struct flock lock;

    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = WITNESS_BYTE;
    lock.l_len = 1;
    return lock;
}

int
semlock_system_take_witness(int fd)
{
    struct flock lock = witness_lock();

    return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : -errno;
}

/* 1 taken, 0 free, -1 nobody can tell here. */
int
semlock_system_witness(int fd)
{
    struct flock lock = witness_lock();

    if (fcntl(fd, F_OFD_GETLK, &lock) != 0) {
        return -1;
    }
    return lock.l_type != F_UNLCK;
}

/* A kept file was synced whole when it was made.  Writing over its bytes changes no more than
 * those, so syncing data is as good as syncing all, and spares the inode's write. */
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

static int
read_small(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    int error;

    if (fd < 0) {
        return -errno;
    }
    n = read(fd, text, room - 1);
    error = errno;
    close(fd);
    if (n < 0) {
        return -error;
    }
    text[n] = 0;
    return (int)n;
}

/* The third, 20th and 22nd fields of /proc/PID/stat: state, threads, start.  The second is
 * the command in parentheses and may hold anything, so counting begins behind the last one. */
static int
read_stat(int64_t pid, char *state, long *threads, int64_t *start)
{
    char path[64];
    char text[1024];
    char *field;
    int outcome;

    /* Of itself a process reads it as of its first thread: emulators of other processors make
     * up /proc/self and its like, with another start than everybody else sees. */
    if (pid == getpid()) {
        snprintf(path, sizeof path, "/proc/%lld/task/%lld/stat", (long long)pid,
                 (long long)pid);
    }
    else {
        snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    }
    outcome = read_small(path, text, sizeof text);
    if (outcome < 0) {
        return outcome;
    }
    field = strrchr(text, ')');
    if (field == NULL || field[1] != ' ') {
        return -EIO;
    }
    field += 2;
    *state = *field;
    for (int number = 3; number < 20; number++) {
        field = strchr(field, ' ');
        if (field == NULL) {
            return -EIO;
        }
        field++;
    }
    *threads = strtol(field, &field, 10);
    strtol(field, &field, 10);
    *start = strtoll(field, &field, 10);
    return 0;
}

/* /proc may belong to another PID namespace than ours; then its numbers are of no use. */
static int
proc_is_ours(void)
{
    char self[32];
    ssize_t n = readlink("/proc/self", self, sizeof self - 1);

    if (n <= 0) {
        return 0;
    }
    self[n] = 0;
    return strtoll(self, NULL, 10) == (long long)getpid();
}

static uint64_t
namespace_number(const char *path)
{
    struct stat seen;

    return stat(path, &seen) == 0 ? (uint64_t)seen.st_ino : 0;
}

int
semlock_start_time(int64_t pid, int64_t *start)
{
    char state;
    long threads;

    return proc_is_ours() ? read_stat(pid, &state, &threads, start) : -ESRCH;
}

/* Without /proc the process stays without boot and start, which makes its locks unjudgeable
 * and is accepted.  Being short of descriptors now is no reason to stay so for ever. */
int
semlock_identify(semlock_process *process)
{
    int outcome;

    memset(process, 0, sizeof *process);
    process->pid = getpid();
    process->pidns = namespace_number("/proc/self/ns/pid");
    process->timens = namespace_number("/proc/self/ns/time");
    outcome =
        read_small("/proc/sys/kernel/random/boot_id", process->boot, sizeof process->boot);
    if (outcome < 0 && outcome != -ENOENT && outcome != -ENOTDIR && outcome != -EACCES) {
        return outcome;
    }
    process->boot[outcome > 0 ? strcspn(process->boot, "\n") : 0] = 0;
    if (semlock_start_time(process->pid, &process->start) != 0) {
        process->start = 0;
    }
    return 0;
}

/* What became of the process with this number that began at `start` (0 if that is unknown)?
 * Asked only of processes in our own PID and time namespace. */
int
semlock_probe(int64_t pid, int64_t start)
{
    char state;
    long threads;
    int64_t began;

    if (pid < 1 || pid > 0x7fffffff) {
        return -EINVAL;
    }
    if (kill((pid_t)pid, 0) != 0 && errno != EPERM) {
        return errno == ESRCH ? SEMLOCK_GONE : -errno;
    }
    if (!proc_is_ours() || read_stat(pid, &state, &threads, &began) != 0) {
        return SEMLOCK_EXISTS;
    }
    if (start != 0 && began != start) {
        return SEMLOCK_RECYCLED;
    }
    /* A leader that ended before its other threads looks like a zombie and is none. */
    if ((state == 'Z' && threads <= 1) || state == 'X' || state == 'x') {
        return SEMLOCK_ZOMBIE;
    }
    return start != 0 ? SEMLOCK_RUNS : SEMLOCK_EXISTS;
}

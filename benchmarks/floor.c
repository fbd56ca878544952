/* The floor: what the same work costs in C, without an interpreter.
 *
 * Every loop does `operations` operations, going round the `count` paths that it is given,
 * and returns the nanoseconds that they took, or a negative errno.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define RECORD_LENGTH 162 /* as long as a record of semlock */

static const char record[RECORD_LENGTH] = "pid=1\ntimestamp=1700000000\n";

static long long
now(void)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    return (long long)at.tv_sec * 1000000000 + at.tv_nsec;
}

/* open(O_EXCL) + write (+ fsync) + close + unlink: the simplest lock file there can be. */
static long long
plain_pair(const char *const *paths, long count, long operations, int sync)
{
    long long start = now();

    for (long i = 0; i < operations; i++) {
        const char *path = paths[i % count];
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

        if (fd < 0 || write(fd, record, sizeof record) != (ssize_t)sizeof record) {
            return -errno;
        }
        if ((sync && fsync(fd) != 0) || close(fd) != 0 || unlink(path) != 0) {
            return -errno;
        }
    }
    return now() - start;
}

long long
plain(const char *const *paths, long count, long operations)
{
    return plain_pair(paths, count, operations, 0);
}

long long
plain_synced(const char *const *paths, long count, long operations)
{
    return plain_pair(paths, count, operations, 1);
}

/* Guard the file, see that the path still names it, and take the path away. */
static int
exact_removal(int fd, const char *path)
{
    struct stat seen;

    return flock(fd, LOCK_EX | LOCK_NB) != 0 || lstat(path, &seen) != 0 || unlink(path) != 0;
}

/* The path for a file that is open: by its descriptor, or through /proc on older kernels. */
static int
link_open_file(int fd, const char *path)
{
    char proc[40];

    if (linkat(fd, "", AT_FDCWD, path, AT_EMPTY_PATH) == 0) {
        return 0;
    }
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, proc, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

/* An unnamed file in the path's directory. */
static int
unnamed(const char *path)
{
    char directory[4096];
    const char *slash = strrchr(path, '/');

    if (slash == NULL || (size_t)(slash - path) + 2 > sizeof directory) {
        errno = EINVAL;
        return -1;
    }
    memcpy(directory, path, (size_t)(slash - path) + 1);
    directory[slash - path + 1] = 0;
    return open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
}

/* A finished file under a private name beside the path, as semlock keeps it from one
 * acquisition to the next: its descriptor, or a negative errno. */
int
keep(const char *path)
{
    char name[4096];
    int fd = unnamed(path);

    /* An inode that has lost its last name gets no new one, so it keeps this one. */
    if (fd < 0 || snprintf(name, sizeof name, "%s.kept", path) >= (int)sizeof name ||
        write(fd, record, sizeof record) != (ssize_t)sizeof record || fsync(fd) != 0 ||
        link_open_file(fd, name) != 0) {
        return -errno;
    }
    return fd;
}

/* Get the user and group of new files.  semlock does so in each pair only where the process
 * may change them; here that is root. */
static void
ask_user(void)
{
    static uid_t first = (uid_t)-1;

    if (first == (uid_t)-1) {
        first = geteuid();
    }
    if (first == 0) {
        (void)!geteuid();
        (void)!getegid();
    }
}

/* Is the descriptor still the one that was kept?  Its position tells. */
static int
is_ours(int fd)
{
    return lseek(fd, 0, SEEK_CUR) >= 0;
}

/* The system calls of semlock when it has kept a finished file. */
static long long
kept_pair(const char *path, int fd, long operations, int sync)
{
    long long start = now();

    for (long i = 0; i < operations; i++) {
        ask_user();
        if (!is_ours(fd) || pwrite(fd, record, sizeof record, 0) != (ssize_t)sizeof record ||
            (sync && fdatasync(fd) != 0) || link_open_file(fd, path) != 0 || !is_ours(fd) ||
            exact_removal(fd, path) != 0 || flock(fd, LOCK_UN) != 0) {
            return -errno;
        }
    }
    return now() - start;
}

long long
kept(const char *path, int fd, long operations)
{
    return kept_pair(path, fd, operations, 0);
}

long long
kept_synced(const char *path, int fd, long operations)
{
    return kept_pair(path, fd, operations, 1);
}

/* The system calls of semlock when it has to make a file: identity, kind of filesystem,
 * room for descriptors, witness, record, link; then exact removal. */
static long long
fresh_pair(const char *const *paths, long count, long operations, int sync)
{
    long long start = now();

    for (long i = 0; i < operations; i++) {
        const char *path = paths[i % count];
        struct flock witness = {.l_type = F_WRLCK, .l_start = (off_t)1 << 61, .l_len = 1};
        struct statfs about;
        struct rlimit limit;
        struct stat made;
        int fd;

        if (access(path, F_OK) == 0) {
            return -EEXIST;
        }
        fd = unnamed(path);
        ask_user();
        if (fd < 0 || fstat(fd, &made) != 0 || fstatfs(fd, &about) != 0 ||
            lseek(fd, (off_t)1 << 40, SEEK_SET) < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
            fcntl(fd, F_OFD_SETLK, &witness) != 0 ||
            pwrite(fd, record, sizeof record, 0) != (ssize_t)sizeof record ||
            (sync && fsync(fd) != 0) || link_open_file(fd, path) != 0 || !is_ours(fd) ||
            exact_removal(fd, path) != 0 || close(fd) != 0) {
            return -errno;
        }
    }
    return now() - start;
}

long long
fresh(const char *const *paths, long count, long operations)
{
    return fresh_pair(paths, count, operations, 0);
}

long long
fresh_synced(const char *const *paths, long count, long operations)
{
    return fresh_pair(paths, count, operations, 1);
}

/* The failed try of a plain lock file. */
long long
failing_create(const char *const *paths, long count, long operations)
{
    long long start = now();

    for (long i = 0; i < operations; i++) {
        const char *path = paths[i % count];

        if (open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644) >= 0 ||
            errno != EEXIST) {
            return -ESTALE;
        }
    }
    return now() - start;
}

/* The failed try of semlock: one look. */
long long
look(const char *const *paths, long count, long operations)
{
    long long start = now();

    for (long i = 0; i < operations; i++) {
        if (access(paths[i % count], F_OK) != 0) {
            return -errno;
        }
    }
    return now() - start;
}

/* The failed tries of semlock's batch: looks beside one descriptor of the directory, which
 * is opened for every round of the paths. */
long long
look_from_directory(const char *const *paths, long count, long operations)
{
    size_t head = (size_t)(strrchr(paths[0], '/') - paths[0]) + 1;
    char directory[4096] = {0};
    long long start;

    if (head >= sizeof directory) {
        return -ENAMETOOLONG;
    }
    memcpy(directory, paths[0], head);
    start = now();
    for (long done = 0; done < operations; done += count) {
        int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0) {
            return -errno;
        }
        for (long i = 0; i < count && done + i < operations; i++) {
            if (faccessat(fd, paths[i] + head, F_OK, 0) != 0) {
                return -errno;
            }
        }
        close(fd);
    }
    return now() - start;
}

/* What a blocking flock(2) costs to wake up.  Entering returns when the lock was entered, and
 * leaving when that began, both on CLOCK_MONOTONIC, or a negative errno. */

static int
lock_and_wait(int fd)
{
    int failed;

    do {
        failed = flock(fd, LOCK_EX);
    } while (failed != 0 && errno == EINTR);
    return failed;
}

/* A file that stays. */
long long
stays_enter(const char *path, int *fd)
{
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0 || lock_and_wait(*fd) != 0) {
        return -errno;
    }
    return now();
}

long long
stays_leave(const char *path, int fd)
{
    long long left = now();

    (void)path;
    return close(fd) == 0 ? left : -errno;
}

/* Wait until the file that is at the path now may have been left.  The file of a holder that
 * died is still there: it is removed by who finds that out. */
static int
outwait(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat seen;
    int failed;

    if (fd < 0) {
        return errno == ENOENT ? 0 : -1;
    }
    failed = lock_and_wait(fd) != 0 || fstat(fd, &seen) != 0 ||
             (seen.st_nlink != 0 && unlink(path) != 0);
    close(fd);
    return failed ? -1 : 0;
}

/* A lock file that its holder creates and locks. */
long long
own_enter(const char *path, int *fd)
{
    struct stat made;

    for (;;) {
        *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (*fd < 0) {
            if (errno != EEXIST || outwait(path) != 0) {
                return -errno;
            }
            continue;
        }
        if (lock_and_wait(*fd) != 0 || fstat(*fd, &made) != 0) {
            return -errno;
        }
        if (made.st_nlink != 0) {
            return now();
        }
        close(*fd); /* somebody was between the two and took it for dead */
    }
}

long long
own_leave(const char *path, int fd)
{
    long long left = now();

    return unlink(path) == 0 && close(fd) == 0 ? left : -errno;
}

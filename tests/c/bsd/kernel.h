/* What macOS and the BSDs say where Linux says something else, for the sources that are made
 * for them and run on Linux.  Every source is compiled with this header in front of it; the
 * calls in it lead to kernel.c, where each difference is told with the place that shows it.
 *
 * The systems are told apart by the names that their compilers define.
 */
#ifndef STANDIN_KERNEL_H
#define STANDIN_KERNEL_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

/* What those systems don't have: no source of theirs may ask for it. */
#undef F_GETSIG
#undef F_SETSIG
#undef F_OFD_GETLK
#undef F_OFD_SETLK
#undef F_OFD_SETLKW
#undef O_PATH

/* What the tests may set. */
typedef struct {
    int64_t boot;     /* the clock's time of the boot, in nanoseconds: moves with the clock */
    const char *kind; /* of every filesystem */
    uint64_t flags;   /* of its mount */
    int sync_error;   /* what asking the drive to flush its cache ends with */
    int syncs;        /* how often fsync and fdatasync were called */
    int late;         /* so many looks at an ended process still show it running */
    int64_t others;   /* a process of another user */
    int64_t hidden;   /* a process that must not be seen */
    int jailed;       /* FreeBSD: in a jail */
    int hides;        /* FreeBSD: some processes are hidden */
    int no_boot_id;   /* FreeBSD: the error of asking for it */
    const char *machine; /* FreeBSD: what a jail has for itself */
} standin_kernel;

extern standin_kernel standin;

struct statfs;
struct statvfs;

int standin_open(const char *path, int flags, ...);
int standin_close(int fd);
int standin_fcntl(int fd, int command, ...);
int standin_mkdir(const char *path, mode_t mode);
int standin_kill(pid_t pid, int number);
int standin_fsync(int fd);
int standin_fsync_range(int fd, int how, off_t start, off_t length);
int standin_statfs(const char *path, struct statfs *about);
int standin_fstatfs(int fd, struct statfs *about);
int standin_statvfs(const char *path, struct statvfs *about);
int standin_fstatvfs(int fd, struct statvfs *about);
int standin_sysctl(const int *name, unsigned count, void *old, size_t *size, const void *new,
                   size_t length);
int standin_sysctlbyname(const char *name, void *old, size_t *size, const void *new,
                         size_t length);

/* Whether a process has ended, though no process may have taken note of it. */
int standin_ended(int64_t pid);
/* kqueue/event.c: the filters of a closed file go with it. */
void standin_closed(int fd);

#if defined(__APPLE__)
#define F_FULLFSYNC 51
#define F_BARRIERFSYNC 85
#define O_EVTONLY 0x40000000
#define st_ctimespec st_ctim
#define st_mtimespec st_mtim
#endif
#if defined(__NetBSD__)
#define FFILESYNC 2
#define FDISKSYNC 4
#endif
#define EFTYPE 1079 /* no error of Linux */

#define open(...) standin_open(__VA_ARGS__)
#define close(fd) standin_close(fd)
#define fcntl(...) standin_fcntl(__VA_ARGS__)
#define mkdir(path, mode) standin_mkdir(path, mode)
#define kill(pid, number) standin_kill(pid, number)
#define fsync(fd) standin_fsync(fd)
#define fdatasync(fd) standin_fsync(fd)
#define statfs(path, about) standin_statfs(path, about)
#define fstatfs(fd, about) standin_fstatfs(fd, about)
#define statvfs(path, about) standin_statvfs(path, about)
#define fstatvfs(fd, about) standin_fstatvfs(fd, about)
#define sysctl(name, count, old, size, new, length)                                           \
    standin_sysctl(name, count, old, size, new, length)
#define sysctlbyname(name, old, size, new, length)                                            \
    standin_sysctlbyname(name, old, size, new, length)
#define fsync_range(fd, how, start, length) standin_fsync_range(fd, how, start, length)

#endif

/* The stand-ins themselves call Linux. */
#if defined(STANDIN_INSIDE)
#undef open
#undef close
#undef fcntl
#undef mkdir
#undef kill
#undef fsync
#undef fdatasync
#undef statfs
#undef fstatfs
#undef statvfs
#undef fstatvfs
#undef sysctl
#undef sysctlbyname
#undef fsync_range
#endif

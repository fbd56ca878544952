/* Linux: the identity of this process, the start time of others, and whether they still run.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "posix/system.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

/* The kernel's number of the time namespace in which every process begins. */
#define INITIAL_TIME_NAMESPACE 0xEFFFFFFA

static int
read_small(const char *path, char *text, size_t room)
{
    int fd = semlock_open(path, O_RDONLY, 0);
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

int
semlock_system_umask(void)
{
    char text[4096];
    const char *line;

    if (read_small("/proc/thread-self/status", text, sizeof text) < 0) {
        return -1;
    }
    line = strstr(text, "\nUmask:");
    return line == NULL ? -1 : (int)strtol(line + sizeof "\nUmask:" - 1, NULL, 8);
}

/* Fields 3, 20 and 22 of /proc/PID/stat: state, number of threads, start time.  Field 2 is the
 * command in parentheses and may contain anything, so counting starts after the last
 * parenthesis. */
static int
read_stat(int64_t pid, char *state, long *threads, int64_t *start)
{
    char path[64];
    char text[1024];
    char *field;
    int outcome;

    /* A process reads its own as the entry of its first thread: emulators of other processors
     * fake /proc/self and /proc/PID of the process itself, with another start time than other
     * processes see. */
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

/* /proc may belong to another PID namespace; then its numbers are useless here. */
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

/* The offset of the boot clock in this process's time namespace: the kernel adds it to the
 * times that it shows here. -ESRCH if it is not known: the file that has it describes the
 * namespace of future children, which can be another one. */
static int
boot_clock_offset(int64_t *nanoseconds)
{
    uint64_t own = namespace_number("/proc/self/ns/time");
    long long seconds, rest;
    char text[256];
    char *line;

    *nanoseconds = 0;
    if (own == INITIAL_TIME_NAMESPACE || (own == 0 && errno == ENOENT)) {
        return 0;
    }
    if (own == 0 || own != namespace_number("/proc/self/ns/time_for_children") ||
        read_small("/proc/self/timens_offsets", text, sizeof text) < 0) {
        return -ESRCH;
    }
    line = strstr(text, "boottime");
    if (line == NULL || sscanf(line, "boottime %lld %lld", &seconds, &rest) != 2) {
        return -ESRCH;
    }
    *nanoseconds = seconds * 1000000000 + rest;
    return 0;
}

/* The start time of a process by the machine's own clock: the same for every reader in any
 * time namespace, and also after that namespace is gone. 0 if it is not exact, which is so
 * where the namespace's offset is not a whole number of ticks. */
static int
began_at(int64_t pid, char *state, long *threads, int64_t *start)
{
    int64_t offset;
    int outcome = read_stat(pid, state, threads, start);

    if (outcome != 0) {
        return outcome;
    }
    if (boot_clock_offset(&offset) != 0) {
        *start = 0;
    }
    else if (offset != 0) {
        int64_t tick = 1000000000 / sysconf(_SC_CLK_TCK);
        int64_t moment = *start * tick - offset;

        *start = moment < 0 || offset % tick != 0 ? 0 : moment / tick;
    }
    return 0;
}

int
semlock_start_time(int64_t pid, int64_t *start)
{
    char state;
    long threads;

    return proc_is_ours() ? began_at(pid, &state, &threads, start) : -ESRCH;
}

/* The time of the boot, in nanoseconds since 1970 by the clock as it is set now; 0 if it is
 * not known.  Computed from clocks, because containers may fake what /proc shows. */
int64_t
semlock_boot_time(void)
{
    struct timespec wall, since;
    int64_t offset;

    if (boot_clock_offset(&offset) != 0 || clock_gettime(CLOCK_REALTIME, &wall) != 0 ||
        clock_gettime(CLOCK_BOOTTIME, &since) != 0) {
        return 0;
    }
    return ((int64_t)wall.tv_sec - (int64_t)since.tv_sec) * 1000000000 +
           ((int64_t)wall.tv_nsec - (int64_t)since.tv_nsec) + offset;
}

/* Without /proc the process has no boot number and start time.  Its locks then cannot be
 * judged by others; this is accepted.  It has none either where /proc doesn't tell its PID
 * namespace, as that of an inner namespace: two such processes would compare numbers of
 * different ones.  A kernel without PID namespaces has one for all.  A shortage of descriptors
 * is temporary, so it is returned as an error rather than kept as such a result. */
int
semlock_identify(semlock_process *process)
{
    int outcome, told;

    memset(process, 0, sizeof *process);
    process->pid = getpid();
    process->pidns = namespace_number("/proc/self/ns/pid");
    told = process->pidns != 0 || (errno == ENOENT && proc_is_ours());
    process->timens = namespace_number("/proc/self/ns/time");
    outcome =
        read_small("/proc/sys/kernel/random/boot_id", process->boot, sizeof process->boot);
    if (outcome < 0 && outcome != -ENOENT && outcome != -ENOTDIR && outcome != -EACCES) {
        return outcome;
    }
    process->boot[outcome > 0 && told ? strcspn(process->boot, "\n") : 0] = 0;
    if (semlock_start_time(process->pid, &process->start) != 0) {
        process->start = 0;
    }
    return 0;
}

/* Have all threads of this process ended, or do they within so many nanoseconds? 1, 0, -ESRCH
 * if there is none, or another error if it can't be told so.  /proc/PID/stat takes three times
 * as long. */
static int
has_ended(int64_t pid, int64_t patience)
{
    struct pollfd process = {.events = POLLIN};
    struct timespec time = {0, (long)patience};
    int ended;

    process.fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    if (process.fd < 0) {
        return -errno;
    }
    ended = ppoll(&process, 1, &time, NULL) == 1 && (process.revents & POLLIN) != 0;
    close(process.fd);
    return ended;
}

/* The state of the process with this number and start time (0 if unknown).  Only called for
 * processes in our own PID namespace. */
int
semlock_probe(int64_t pid, int64_t start)
{
    return semlock_probe_ending(pid, start, 0);
}

/* The same, but a process that runs is given some time to end, less than a second. */
int
semlock_probe_ending(int64_t pid, int64_t start, int64_t patience)
{
    char state;
    long threads;
    int64_t began;
    int ended;

    if (pid < 1 || pid > 0x7fffffff) {
        return -EINVAL;
    }
    ended = has_ended(pid, patience);
    if (ended == 1 || ended == -ESRCH) {
        return ended == 1 ? SEMLOCK_ZOMBIE : SEMLOCK_GONE;
    }
    if (ended < 0 && kill((pid_t)pid, 0) != 0 && errno != EPERM) {
        return errno == ESRCH ? SEMLOCK_GONE : -errno;
    }
    if (!proc_is_ours() || began_at(pid, &state, &threads, &began) != 0) {
        return SEMLOCK_EXISTS;
    }
    if (began == 0) {
        start = 0;
    }
    if (start != 0 && began != start) {
        return SEMLOCK_RECYCLED;
    }
    /* A process whose first thread ended before the others shows Z too, but still runs. */
    if ((state == 'Z' && threads <= 1) || state == 'X' || state == 'x') {
        return SEMLOCK_ZOMBIE;
    }
    return start != 0 ? SEMLOCK_RUNS : SEMLOCK_EXISTS;
}

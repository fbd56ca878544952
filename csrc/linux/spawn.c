/* Linux: starting a command as the holder of a lock that this process has taken.
 *
 * The new process shares this one's memory until it executes the command (vfork), so nothing
 * is copied for it, and this thread stands still until then.  Before, the process writes
 * itself into the record: from its first instruction on the command is the holder that others
 * see.  Both have the kernel's lock meanwhile, so the record is never taken for a dead
 * holder's.
 *
 * An emulator may give the new process a copy of the memory.  So all that it has to say comes
 * through a pipe, whose end is closed when the command is executed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "posix/system.h"

#define HEAD_ROOM 32 /* "pid=" and a number */
#define SIGNALS 64

/* Copy a record with another process in it: its new length. */
static int32_t
put_process(char *to, const char *from, int32_t length, int64_t pid, int64_t start)
{
    int32_t size = snprintf(to, HEAD_ROOM, "pid=%lld\n", (long long)pid);
    const char *end = memchr(from, '\n', (size_t)length);

    while (end != NULL && ++end < from + length) {
        const char *line = end;
        int32_t left = length - (int32_t)(line - from);

        end = memchr(line, '\n', (size_t)left);
        if (left > 6 && memcmp(line, "start=", 6) == 0) {
            if (start != 0) {
                size += snprintf(to + size, HEAD_ROOM, "start=%lld\n", (long long)start);
            }
        }
        else {
            left = end == NULL ? left : (int32_t)(end - line) + 1;
            memcpy(to + size, line, (size_t)left);
            size += left;
        }
    }
    return size;
}

/* In the new process: become the holder that the record names.  The record's new length, 0 if
 * it is not this lock's any more, or an error. */
static int
become_holder(const semlock_lock *lock)
{
    char before[SEMLOCK_REWRITE_LIMIT];
    char after[SEMLOCK_REWRITE_LIMIT + 2 * HEAD_ROOM];
    int fd = (int)lock->file.handle;
    int64_t start = 0;
    int length = semlock_read_all(fd, before, (int32_t)sizeof before);
    int own = length < 0 ? length : semlock_has_record(fd, lock);
    int32_t size;
    int error;

    if (own != 1) {
        return own;
    }
    if (semlock_start_time(getpid(), &start) != 0) {
        start = 0; /* as in the record of any other process whose start is not known */
    }
    size = put_process(after, before, length, getpid(), start);
    error = semlock_write_all(fd, after, size);
    if (error == 0 && size < length) {
        /* Until then a line without "=" is behind the record, and readers ignore it. */
        error = semlock_shorten(fd, size);
    }
    if (error == 0 && size != length && !lock->file.marked) {
        error = semlock_system_sync(fd, SEMLOCK_SYNC_FULL, 0);
    }
    return error != 0 ? error : size;
}

static void
set_signals(const semlock_command *command)
{
    sigset_t blocked;

    sigemptyset(&blocked);
    for (int number = 1; number <= SIGNALS; number++) {
        uint64_t bit = (uint64_t)1 << (number - 1);

        if ((command->defaults & bit) != 0) {
            signal(number, SIG_DFL);
        }
        if ((command->ignored & bit) != 0) {
            signal(number, SIG_IGN);
        }
        if ((command->blocked & bit) != 0) {
            sigaddset(&blocked, number);
        }
    }
    sigprocmask(SIG_SETMASK, &blocked, NULL);
}

/* Execute the command, by the rules of shells; returns the error if that fails. */
static int
execute(const semlock_command *command)
{
    char **words = command->words;
    int refused = ENOENT;

    for (char **place = command->places; *place != NULL; place++) {
        execve(*place, words + 1, environ);
        if (errno == ENOEXEC) { /* a file of no known format is a script for sh */
            words[1] = *place;
            execve(words[0], words, environ);
            return errno;
        }
        if (errno == EACCES || errno == EPERM) {
            refused = errno;
        }
        else if (errno != ENOENT && errno != ENOTDIR) {
            return errno;
        }
    }
    return refused;
}

/* The new process: it writes the length of its record to the pipe, or an error, and ends. */
static void
be_command(const semlock_command *command, const semlock_lock *lock, int news)
{
    int fd = (int)lock->file.handle;
    int32_t word = become_holder(lock);

    if (word >= 0) {
        if (write(news, &word, sizeof word) == (ssize_t)sizeof word &&
            (fcntl(fd, F_DUPFD, command->number) >= 0 ||
             fcntl(fd, F_DUPFD, command->otherwise) >= 0)) {
            set_signals(command);
            word = -execute(command);
        }
        else {
            word = -EMFILE;
        }
    }
    if (write(news, &word, sizeof word) != (ssize_t)sizeof word) {
        _exit(126);
    }
    _exit(127);
}

/* The new process has put itself into the record: that is still the record of this lock. */
static void
follow(semlock_lock *lock, int64_t pid, int32_t length)
{
    char head[HEAD_ROOM];

    lock->head = snprintf(head, sizeof head, "pid=%lld\n", (long long)pid);
    semlock_written(lock, head, lock->head);
    if (lock->file.witness_at >= 0) {
        lock->file.witness_at += length - lock->file.length;
    }
    lock->file.length = length;
}

/* Start a command that gets the descriptor of a held lock, and is its holder then.  0, or why
 * it does not run.  `pid` is its process, which is to be waited for in any case; 0 if there is
 * none.
 */
int
semlock_spawn(const semlock_command *command, semlock_lock *lock, int64_t *pid)
{
    sigset_t all, before;
    int outcome = 0;
    int32_t word;
    int news[2];
    ssize_t n;

    *pid = 0;
    if (pipe2(news, O_CLOEXEC) != 0) {
        return -errno;
    }
    /* The handlers of this process must not run in the new one, nor a stop there keep this one
     * from being stopped. */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    *pid = vfork();
    if (*pid == 0) {
        be_command(command, lock, news[1]);
    }
    outcome = *pid < 0 ? -errno : 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(news[1]);
    while ((n = read(news[0], &word, sizeof word)) != 0) {
        if (n == (ssize_t)sizeof word && word > 0) {
            follow(lock, *pid, word);
        }
        else if (n == (ssize_t)sizeof word) {
            outcome = word;
        }
        else if (errno != EINTR) {
            break;
        }
    }
    close(news[0]);
    if (*pid < 0) {
        *pid = 0;
    }
    return outcome;
}

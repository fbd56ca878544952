/* POSIX: the descriptors that stay open between calls (semlock.h, OUR DESCRIPTORS).
 *
 * The table records which descriptor numbers are ours and what is open under them.  A forked
 * child uses it to close its copies without a list of Python's objects.  Before a number is
 * used, the kernel is asked whether it still is what the table says: the program may have
 * closed it and opened another file under the same number.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

#define ROWS 4096 /* 4096 rows of 4096: all descriptor numbers that a process can have */
#define ROW 4096
#define FIRST_NUMBER 3 /* 0 to 2 are the program's stdin, stdout and stderr */

#define OTHER 0
#define A_FILE 1 /* identified by device and inode */
#define SIGNED 2 /* has no inode of its own; identified by our signature */

/* What is known of one descriptor number.
 *
 *   kind     dev, ino    state
 *   OTHER    not valid   the program's, or not in use
 *   A_FILE   valid       ours, if fstat or the file position says the same
 *   SIGNED   0           ours, if it has our signature
 *
 * The turn is another one each time that the number is kept.
 *
 *     OTHER --keep--> A_FILE, SIGNED   a descriptor that stays open beyond a call
 *     A_FILE, SIGNED --> OTHER         before it is closed; if it is found not to be ours,
 *                                      without a close; in a forked child, all of them
 *     A_FILE <--keep--> SIGNED         the program closed it, and the number came again
 */
typedef struct {
    uint64_t dev;
    uint64_t ino;
    int64_t kind;
    int64_t turn;
} entry;

/* The first row is static, so most processes never allocate one. */
static entry first_row[ROW];
static entry *rows[ROWS] = {first_row};
static int64_t highest; /* the highest number that was ever kept */
static int64_t turns;

static entry *
entry_of(int64_t fd, int make)
{
    entry **row;

    if (fd < 0 || fd >= (int64_t)ROWS * ROW) {
        return NULL;
    }
    row = &rows[fd / ROW];
    if (__atomic_load_n(row, __ATOMIC_ACQUIRE) == NULL && make) {
        entry *made = calloc(ROW, sizeof *made);

        if (made != NULL && !__sync_bool_compare_and_swap(row, NULL, made)) {
            free(made);
        }
    }
    return *row == NULL ? NULL : *row + fd % ROW;
}

static int
keep(int64_t fd, int64_t kind, uint64_t dev, uint64_t ino)
{
    entry *kept = entry_of(fd, 1);
    int64_t top = semlock_load64(&highest);

    if (kept == NULL) {
        return -ENOMEM;
    }
    semlock_store64(&kept->dev, dev);
    semlock_store64(&kept->ino, ino);
    semlock_store64(&kept->turn, semlock_add64(&turns, 1) + 1);
    semlock_store64(&kept->kind, kind);
    while (fd > top && !semlock_swap_if64(&highest, top, fd)) {
        top = semlock_load64(&highest);
    }
    return 0;
}

/* Record that this descriptor stays open beyond the call, and its device and inode. */
int
semlock_descriptor_keep(int64_t fd, uint64_t dev, uint64_t ino)
{
    return keep(fd, A_FILE, dev, ino);
}

/* The same for descriptors without an inode of their own: event sources, process handles. */
int
semlock_descriptor_keep_signed(int64_t fd)
{
    int error = semlock_system_sign((int)fd);

    return error != 0 ? error : keep(fd, SIGNED, 0, 0);
}

int
semlock_descriptor_kept(int64_t fd)
{
    entry *kept = entry_of(fd, 0);

    return kept != NULL && semlock_load64(&kept->kind) != OTHER;
}

/* The number is no longer ours.  The table is updated before the close. */
static void
forget(int64_t fd, int64_t kind, uint64_t dev, uint64_t ino)
{
    entry *kept = entry_of(fd, 0);

    /* If the program closed it, the number may belong to another file of ours by now. */
    if (kept != NULL && semlock_load64(&kept->kind) == kind &&
        semlock_load64(&kept->dev) == dev && semlock_load64(&kept->ino) == ino) {
        semlock_store64(&kept->kind, OTHER);
    }
}

/* Is this file still open under this number?  Then `seen` is its fstat.  Tried twice: a
 * descriptor that is wrongly taken for lost stays open, and so do its kernel locks. */
int
semlock_descriptor_ours(int64_t fd, uint64_t dev, uint64_t ino, struct stat *seen)
{
    if (fd < 0 ||
        (fstat((int)fd, seen) != 0 && (errno == EBADF || fstat((int)fd, seen) != 0))) {
        return 0;
    }
    return seen->st_ino == (ino_t)ino && seen->st_dev == (dev_t)dev;
}

int
semlock_events_ours(int64_t fd)
{
    return fd >= 0 && semlock_system_signed((int)fd);
}

/* Close it if it is still ours.  Else the program reused the number, and it stays open. */
void
semlock_descriptor_close(int64_t fd, uint64_t dev, uint64_t ino)
{
    struct stat seen;
    int ours = semlock_descriptor_ours(fd, dev, ino, &seen);

    forget(fd, A_FILE, dev, ino);
    if (ours) {
        close((int)fd);
    }
}

/* The same for a file whose device and inode are in the table only. */
void
semlock_descriptor_close_kept(int64_t fd)
{
    entry *kept = entry_of(fd, 0);

    if (kept != NULL && semlock_load64(&kept->kind) == A_FILE) {
        semlock_descriptor_close(fd, semlock_load64(&kept->dev), semlock_load64(&kept->ino));
    }
}

void
semlock_descriptor_close_signed(int64_t fd)
{
    int ours = semlock_events_ours(fd);

    forget(fd, SIGNED, 0, 0);
    if (ours) {
        close((int)fd);
    }
}

/* Close one that was verified a moment ago. */
void
semlock_descriptor_close_ours(int64_t fd)
{
    entry *kept = entry_of(fd, 0);

    if (kept != NULL) {
        semlock_store64(&kept->kind, OTHER);
    }
    close((int)fd);
}

/* Keep a file's descriptor, and mark its open file description with a random file position far
 * behind the end.  No other program's file has it.  Nothing here reads or writes at the
 * current position, so it stays.  Checking it takes a third of the time of an fstat. */
int
semlock_file_keep(semlock_file *file, semlock_pool *pool)
{
    uint64_t word = pool->seed[1] + (uint64_t)semlock_add64(&pool->count, 1);
    int64_t place;

    word = (word ^ word >> 29 ^ file->ino) * 11400714819323198485u;
    place = (int64_t)(word >> 25 | (uint64_t)1 << 39);
    file->place = lseek((int)file->handle, (off_t)place, SEEK_SET) == (off_t)place ? place : 0;
    return semlock_descriptor_keep(file->handle, file->dev, file->ino);
}

/* Keep the descriptor of a file whose position is not ours to set, since the caller may read
 * and write at it.  A signature tells it from what the program opens under its number, where
 * the system can sign files, and the turn from what another object of this process opens. */
int
semlock_file_keep_signed(semlock_file *file)
{
    int error = semlock_descriptor_keep(file->handle, file->dev, file->ino);

    if (error == 0) {
        semlock_file_borrow(file);
        file->signature = semlock_system_sign((int)file->handle) == 0;
    }
    return error;
}

/* The same for a descriptor of the caller, which is not signed: note the number's turn. */
void
semlock_file_borrow(semlock_file *file)
{
    entry *kept = entry_of(file->handle, 1);

    if (kept != NULL) {
        semlock_swap_if64(&kept->turn, 0, semlock_add64(&turns, 1) + 1);
        file->turn = semlock_load64(&kept->turn);
    }
}

/* Is the table's entry of its number that of this file? */
static int
is_entered(const semlock_file *file)
{
    entry *kept = entry_of(file->handle, 0);

    return file->turn == 0 || (kept != NULL && semlock_load64(&kept->turn) == file->turn);
}

static int
is_ours(const semlock_file *file)
{
    struct stat seen;

    if (file->place != 0) {
        return lseek((int)file->handle, 0, SEEK_CUR) == (off_t)file->place;
    }
    return is_entered(file) &&
           semlock_descriptor_ours(file->handle, file->dev, file->ino, &seen) &&
           (!file->signature || semlock_system_signed((int)file->handle));
}

/* The descriptor of a lock object's file if it is still ours, else -1.  The program may have
 * closed all descriptors and opened another file under the number; then it is dropped. */
int
semlock_file_descriptor(semlock_file *file)
{
    if (file->handle >= 0 && is_ours(file)) {
        return (int)file->handle;
    }
    if (is_entered(file)) {
        forget(file->handle, A_FILE, file->dev, file->ino);
    }
    file->handle = -1;
    return -1;
}

int
semlock_file_is_open(semlock_file *file)
{
    return semlock_file_descriptor(file) >= 0;
}

/* Close a descriptor that was verified a moment ago. */
void
semlock_file_close(semlock_file *file)
{
    if (file->handle >= 0) {
        forget(file->handle, A_FILE, file->dev, file->ino);
        close((int)file->handle);
        file->handle = -1;
    }
}

/* In a forked child: close the copies of all descriptors that the parent keeps. */
void
semlock_descriptors_close_copies(void)
{
    struct stat seen;

    for (int64_t fd = FIRST_NUMBER; fd <= highest; fd++) {
        entry *kept = entry_of(fd, 0);

        if (kept == NULL) {
            fd |= ROW - 1; /* the whole row is missing */
            continue;
        }
        if ((kept->kind == A_FILE &&
             semlock_descriptor_ours(fd, kept->dev, kept->ino, &seen)) ||
            (kept->kind == SIGNED && semlock_events_ours(fd))) {
            close((int)fd);
        }
        kept->kind = OTHER;
    }
}

/* Move a new descriptor above the first three numbers.  A daemon that has closed those would
 * soon open its own files there, or print into ours. */
int
semlock_descriptor_raise(int fd)
{
    int raised, error;

    if (fd < 0 || fd >= FIRST_NUMBER) {
        return fd;
    }
    raised = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_NUMBER);
    error = errno;
    close(fd);
    errno = error;
    return raised;
}

int
semlock_open(const char *path, int flags, mode_t mode)
{
    return semlock_descriptor_raise(open(path, flags | O_CLOEXEC, mode));
}

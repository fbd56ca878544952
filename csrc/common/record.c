/* Records: reading and writing all bytes of one, composing one, and whether the record in a
 * held file is still the one that this process wrote. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define TOKEN 32
#define FIRST 4    /* bytes by which a record begins: "pid=" of a text record */
#define SMALL 1024 /* bytes that are not worth an allocation */

int
semlock_write_all(semlock_os_file file, const char *bytes, int32_t length)
{
    for (int32_t done = 0; done < length;) {
        int n = semlock_write_at(file, bytes + done, length - done, done);

        if (n <= 0) {
            return n < 0 ? n : SEMLOCK_NO_SPACE;
        }
        done += n;
    }
    return 0;
}

/* Read up to `capacity` bytes from the beginning: the number of bytes, or an error. */
int
semlock_read_all(semlock_os_file file, char *bytes, int32_t capacity)
{
    int32_t done = 0;

    while (done < capacity) {
        int n = semlock_read_at(file, bytes + done, capacity - done, done);

        if (n < 0) {
            return n;
        }
        if (n == 0) {
            break;
        }
        done += n;
    }
    return done;
}

/* Write a time into a record, if its format has one. */
void
semlock_put_time(const semlock_record *record, char *bytes, int64_t seconds)
{
    for (int i = 9; i >= 0 && record->stamp_at >= 0; i--, seconds /= 10) {
        bytes[record->stamp_at + i] = (char)('0' + (seconds < 0 ? 0 : seconds % 10));
    }
}

/* Remember what is written, and when.  If the file still has these bytes, no other program has
 * written its record over ours. */
void
semlock_written(semlock_lock *lock, const char *bytes, int32_t length)
{
    lock->written = semlock_wall_ns();
    lock->content = semlock_hash(SEMLOCK_NO_HASH, bytes,
                                 (size_t)(lock->head < length ? lock->head : length));
}

/* The bytes of one acquisition: the caller's record with token, time and witness filled in. */
static void
compose(const semlock_record *record, const semlock_file *file, semlock_lock *lock,
        semlock_pool *pool, char *bytes)
{
    lock->written = semlock_wall_ns();
    lock->stamp = lock->written / 1000000000;
    semlock_new_token(pool, lock->token);
    memcpy(bytes, record->text, (size_t)record->length);
    semlock_put_time(record, bytes, lock->stamp);
    if (record->token_at >= 0) {
        memcpy(bytes + record->token_at, lock->token, TOKEN);
    }
    if (record->witness_at >= 0) {
        memcpy(bytes + record->witness_at,
               file->witness == SEMLOCK_WITNESSED ? "kept" : (file->local ? "left" : "none"),
               4);
    }
    lock->head = record->token_at < 0 ? record->length : record->head;
    lock->content = semlock_hash(SEMLOCK_NO_HASH, bytes, (size_t)lock->head);
}

/* Make the written file what its durability promises after a power cut.  A boot mark is set
 * once for each inode, and where it cannot be set the file is synced.  A synced file has the
 * mark too: btrfs syncs nothing of a file that has no name yet. */
static int
make_durable(semlock_file *file, semlock_pool *pool, int32_t durability, int overwritten)
{
    if (durability != SEMLOCK_SYNC_NONE && !file->marked) {
        file->marked = semlock_system_mark_boot(file, pool);
    }
    if (durability == SEMLOCK_SYNC_SAFE) {
        if (file->marked) {
            return 0;
        }
        durability = SEMLOCK_SYNC_FULL;
    }
    return semlock_system_sync(SEMLOCK_OPENED(file), durability, overwritten);
}

/* Write the record of one acquisition into the lock's file, and make it as durable as the
 * record asks. */
int
semlock_fill(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    char small[SMALL];
    char *bytes = small;
    semlock_file *file = &lock->file;
    semlock_os_file opened = SEMLOCK_OPENED(file);
    int32_t before = file->length;
    int error;

    if (record->length > (int32_t)sizeof small) {
        bytes = malloc((size_t)record->length);
        if (bytes == NULL) {
            return SEMLOCK_NO_MEMORY;
        }
    }
    compose(record, file, lock, pool, bytes);
    error = semlock_write_all(opened, bytes, record->length);
    if (bytes != small) {
        free(bytes);
    }
    if (error == 0 && record->length < before) {
        error = semlock_shorten(opened, record->length);
    }
    if (error != 0) {
        return error;
    }
    file->length = record->length;
    if (lock->prepared && before == record->length) {
        return 0; /* it was synced: a power cut leaves this record or the one before */
    }
    return make_durable(file, pool, record->durability, before == record->length);
}

/* Does a line behind `head` begin like the record itself?  Of a text record's key that comes
 * twice the last line counts, so a record that was appended to this one took the lock over. */
static int
is_appended_to(const char *bytes, int length, int head)
{
    int found = 0;

    for (int at = head; at >= FIRST && at + FIRST <= length && !found; at++) {
        found = bytes[at - 1] == '\n' && memcmp(bytes + at, bytes, FIRST) == 0;
    }
    return found;
}

/* Are these bytes the record of this object?  A program that parses and rewrites a record, to
 * change its time, may move the token; a format without a token is compared as a whole. */
static int
is_record_of(const semlock_lock *lock, const char *bytes, int length)
{
    int found = lock->token_at < 0 && length == lock->head;

    for (int at = 0; lock->token_at >= 0 && at + TOKEN <= length && !found; at++) {
        found = bytes[at] == lock->token[0] && memcmp(bytes + at, lock->token, TOKEN) == 0;
    }
    return found && length >= lock->head &&
           semlock_hash(SEMLOCK_NO_HASH, bytes, (size_t)lock->head) == lock->content &&
           (lock->token_at < 0 || !is_appended_to(bytes, length, lock->head));
}

/* Does the open file have the record of this object? 1, 0, or an error. */
int
semlock_has_record(semlock_os_file opened, const semlock_lock *lock)
{
    char small[SMALL];
    char *bytes = small;
    int length = semlock_read_all(opened, small, (int32_t)sizeof small);
    int own;

    if (length == (int)sizeof small) {
        bytes = malloc(SEMLOCK_RECORD_LIMIT);
        if (bytes == NULL) {
            return SEMLOCK_NO_MEMORY;
        }
        length = semlock_read_all(opened, bytes, SEMLOCK_RECORD_LIMIT);
    }
    own = length < 0 ? length : is_record_of(lock, bytes, length);
    if (bytes != small) {
        free(bytes);
    }
    return own;
}

/* Is the record in the held file still ours, or has another program taken the lock over by
 * writing its record into the file?  The file must be known to be ours. 1, 0, or an error.
 *
 * If length and mtime, which the check of the path returned, are unchanged, nothing was
 * written since.  This misses a record of the same length written within SEMLOCK_SAME_NS.  So
 * the record is always read for a `strict` lock, of a system in which others do this, and on a
 * network filesystem, whose times are those of another clock. */
int
semlock_still_own(semlock_lock *lock, semlock_os_file opened, const semlock_view *seen)
{
    int64_t later = seen->mtime_ns - lock->written;
    int own;

    if (!lock->strict && lock->file.local && seen->size == lock->file.length &&
        later > -SEMLOCK_SAME_NS && later < SEMLOCK_SAME_NS) {
        return 1;
    }
    own = semlock_has_record(opened, lock);
    if (own == 0) {
        lock->file.witness_at = -1; /* never write into another program's record */
    }
    return own;
}

/* Is the instance at the path, with our record in it?  `seen` gets length, times and links of
 * the file at the path. 1, 0, or an error. */
int
semlock_still_held(semlock_lock *lock, semlock_os_file opened, semlock_view *seen)
{
    int still = semlock_path_has(lock, opened, seen);

    return still == 1 ? semlock_still_own(lock, opened, seen) : still;
}

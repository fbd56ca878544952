/* Paths and names: the parts of a lock's path, and the names of our own files beside it. */
#include <stdio.h>
#include <string.h>

#include "core.h"

static int
is_separator(char c)
{
#if defined(_WIN32)
    return c == '/' || c == '\\';
#else
    return c == '/'; /* a backslash is part of a name */
#endif
}

/* How long the directory part of a path is, without the separator, except for the root. */
int32_t
semlock_directory_length(const char *path, int32_t length)
{
    while (length > 0 && !is_separator(path[length - 1])) {
        length--;
    }
    return length > 1 ? length - 1 : length;
}

/* The directory of a path. */
int
semlock_directory_of(semlock_os_char *room, const char *path)
{
    return semlock_join(room, path, semlock_directory_length(path, (int32_t)strlen(path)), "");
}

/* The hash of the last part of a path, which ends at `length`. */
uint64_t
semlock_name_hash(const char *path, int32_t length)
{
    uint64_t hash = SEMLOCK_NO_HASH;

    for (int32_t i = length; i > 0 && !is_separator(path[i - 1]); i--) {
        hash = semlock_hash(hash, path + i - 1, 1);
    }
    return hash;
}

void
semlock_set_path(semlock_lock *lock, const char *path, int32_t length)
{
    int32_t end = semlock_directory_length(path, length);

    lock->path = path;
    lock->path_length = length;
    lock->directory_length = end;
    lock->directory_hash = semlock_hash(SEMLOCK_NO_HASH, path, (size_t)end);
    lock->name_hash = semlock_name_hash(path, length);
    lock->ticket.handle = -1;
    semlock_file_reset(&lock->file);
}

/* The digits of a number in base 16, at least so many; returns their end.  (The way of
 * snprintf costs more than a system call when the processor's caches are cold, as after a
 * wait.) */
char *
semlock_put_hex(char *at, uint64_t number, int digits)
{
    while (digits < 16 && number >> (4 * digits) != 0) {
        digits++;
    }
    for (int i = digits - 1; i >= 0; i--, number >>= 4) {
        at[i] = "0123456789abcdef"[number & 15];
    }
    return at + digits;
}

/* The private path of a kept claim between acquisitions.  The file's number makes the name
 * unique in its directory, and a process that finds the instance at P can find this name by
 * it. */
int
semlock_private_path(semlock_os_char *room, const char *directory, int32_t length,
                     const semlock_file *file)
{
    uint64_t high = file->ino_high; /* Windows alone has it */
    char name[64] = SEMLOCK_OWN;
    char *end = name + sizeof SEMLOCK_OWN - 1;

    if (high != 0) {
        end = semlock_put_hex(end, high, 1);
    }
    end = semlock_put_hex(end, file->ino, high != 0 ? 16 : 1);
    memcpy(end, ".kept", sizeof ".kept");
    return semlock_join(room, directory, length, name);
}

int
semlock_temporary_path(semlock_os_char *room, const char *directory, int32_t length,
                       semlock_pool *pool)
{
    char token[33];
    char name[64];

    semlock_new_token(pool, token);
    snprintf(name, sizeof name, SEMLOCK_OWN "%s.tmp", token);
    return semlock_join(room, directory, length, name);
}

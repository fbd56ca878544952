/* Windows: another text over a record that was judged, as told in posix/rewrite.c. */
#include <string.h>

#include "windows/system.h"

/* Is the file still at the path, with exactly these bytes? */
static int
still_holds(HANDLE handle, const WCHAR *path, const semlock_view *judged, const char *bytes,
            int32_t length)
{
    semlock_file file = {
        .handle = -1, .dev = judged->dev, .ino = judged->ino, .ino_high = judged->ino_high};
    char now[SEMLOCK_REWRITE_LIMIT + 1];
    semlock_file opened;
    int outcome = semlock_identity(handle, &opened);

    if (outcome != 0) {
        return outcome;
    }
    outcome = semlock_same_file(&opened, &file) ? semlock_still_at(path, &file) : 0;
    if (outcome != 1) {
        return outcome == 0 ? SEMLOCK_LOST : outcome;
    }
    outcome = semlock_read_all(handle, now, length + 1);
    if (outcome < 0) {
        return outcome;
    }
    return outcome == length && memcmp(now, bytes, (size_t)length) == 0 ? SEMLOCK_OK
                                                                        : SEMLOCK_CHANGED;
}

/* First the new length, by blanks after the record, then all of it in one call;
 * posix/rewrite.c says why. */
static int
rewrite_guarded(HANDLE handle, const WCHAR *path, const semlock_view *judged,
                const char *bytes, const char *text, int32_t length)
{
    int32_t before = judged->length;
    char padded[SEMLOCK_REWRITE_LIMIT];
    OVERLAPPED end = {.Offset = 0xffffffff, .OffsetHigh = 0xffffffff};
    DWORD count;
    int outcome = still_holds(handle, path, judged, bytes, before);

    if (outcome == SEMLOCK_OK && semlock_witness(handle) == 1) {
        outcome = SEMLOCK_ALIVE;
    }
    memcpy(padded, bytes, (size_t)before);
    memset(padded + before, ' ', (size_t)(length - before));
    if (outcome == SEMLOCK_OK && length > before) {
        outcome = WriteFile(handle, padded + before, (DWORD)(length - before), &count, &end)
                      ? still_holds(handle, path, judged, padded, length)
                      : semlock_last_error();
    }
    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    outcome = semlock_write_all(handle, text, length);
    if (outcome != 0) {
        semlock_write_all(handle, padded, length); /* restore the old record */
        return outcome;
    }
    return FlushFileBuffers(handle) ? SEMLOCK_OK : semlock_last_error();
}

/* Replace the judged record by a text of at least the same length. */
int
semlock_rewrite(const char *path, semlock_pool *pool, const semlock_view *judged,
                const char *bytes, const char *text, int32_t length)
{
    WCHAR place[SEMLOCK_PATH_ROOM];
    HANDLE handle;
    int guard;
    int outcome = semlock_wide(place, path, (int32_t)strlen(path));

    (void)pool;
    if (outcome == 0 && (length < judged->length || length > SEMLOCK_REWRITE_LIMIT)) {
        outcome = -ERROR_INVALID_PARAMETER;
    }
    if (outcome != 0) {
        return outcome;
    }
    handle = CreateFileW(place, GENERIC_READ | GENERIC_WRITE, SEMLOCK_SHARE_ALL, NULL,
                         OPEN_EXISTING, FILE_FLAG_OPEN_REPARSE_POINT, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        outcome = semlock_last_error();
        return semlock_is_absent(outcome) ? SEMLOCK_LOST : outcome;
    }
    guard = semlock_guard(handle);
    outcome = semlock_is_kept_out(guard)
                  ? guard
                  : rewrite_guarded(handle, place, judged, bytes, text, length);
    CloseHandle(handle);
    return outcome;
}

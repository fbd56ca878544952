/* Windows: paths.
 *
 * A path arrives as the bytes of Python's os.fsencode: UTF-8 in which lone surrogates are
 * encoded like other characters, because Windows allows them in names.  The system's own
 * conversion would replace them, and so name another file.
 */
#include <string.h>

#include "windows/system.h"

/* Without the prefix Windows accepts up to 259 units, and 247 for a directory. */
#define PLAIN_LIMIT 248
#define PREFIX_LENGTH 8 /* of \\?\UNC\ */

/* Decode one character: its number of bytes, or 0 if they are not valid. */
static int
next_point(const char *bytes, int32_t left, uint32_t *point)
{
    static const uint32_t least[5] = {0, 0x01, 0x80, 0x800, 0x10000};
    uint32_t lead = (unsigned char)bytes[0];
    int count = lead < 0x80             ? 1
                : (lead & 0xe0) == 0xc0 ? 2
                : (lead & 0xf0) == 0xe0 ? 3
                : (lead & 0xf8) == 0xf0 ? 4
                                        : 0;

    if (count == 0 || count > left) {
        return 0;
    }
    *point = count == 1 ? lead : lead & (0x7fu >> count);
    for (int i = 1; i < count; i++) {
        uint32_t next = (unsigned char)bytes[i];

        if ((next & 0xc0) != 0x80) {
            return 0;
        }
        *point = *point << 6 | (next & 0x3f);
    }
    return *point < least[count] || *point > 0x10ffff ? 0 : count;
}

/* Convert the bytes to UTF-16 without a final zero: the number of units, or an error. */
static int
decode(WCHAR *room, int32_t capacity, const char *bytes, int32_t length)
{
    int32_t units = 0;
    uint32_t point;

    for (int32_t at = 0; at < length;) {
        int count = next_point(bytes + at, length - at, &point);

        if (count == 0) {
            return -ERROR_NO_UNICODE_TRANSLATION;
        }
        if (units + 2 > capacity) {
            return -ERROR_FILENAME_EXCED_RANGE;
        }
        if (point >= 0x10000) {
            point -= 0x10000;
            room[units++] = (WCHAR)(0xd800 + (point >> 10));
            point = 0xdc00 + (point & 0x3ff);
        }
        room[units++] = (WCHAR)point;
        at += count;
    }
    return units;
}

static int
is_separator(WCHAR unit)
{
    return unit == L'\\' || unit == L'/';
}

/* Windows uses \\?\ and \\.\ paths without resolving them. */
static int
is_prefixed(const WCHAR *path)
{
    return path[0] == L'\\' && path[1] == L'\\' && (path[2] == L'?' || path[2] == L'.') &&
           path[3] == L'\\';
}

/* Add the prefix for long paths.  Windows does not resolve a prefixed path, so dots, slashes
 * and trailing blanks are resolved first: the length of a path must not change which file it
 * names. */
static int
lengthen(WCHAR *room, int32_t units)
{
    WCHAR full[SEMLOCK_PATH_ROOM];
    const WCHAR *rest = full;
    DWORD count;

    if (units < PLAIN_LIMIT || is_prefixed(room)) {
        return 0;
    }
    count = GetFullPathNameW(room, SEMLOCK_PATH_ROOM - PREFIX_LENGTH, full, NULL);
    if (count == 0) {
        return semlock_last_error();
    }
    if (count >= SEMLOCK_PATH_ROOM - PREFIX_LENGTH) {
        return -ERROR_FILENAME_EXCED_RANGE;
    }
    if (is_prefixed(full)) {
        memcpy(room, full, (count + 1) * sizeof *room);
        return 0;
    }
    memcpy(room, L"\\\\?\\", 4 * sizeof *room);
    room += 4;
    if (is_separator(full[0]) && is_separator(full[1])) {
        memcpy(room, L"UNC\\", 4 * sizeof *room);
        room += 4;
        rest += 2;
        count -= 2;
    }
    memcpy(room, rest, (count + 1) * sizeof *room);
    return 0;
}

int
semlock_wide(WCHAR *room, const char *path, int32_t length)
{
    int units = decode(room, SEMLOCK_PATH_ROOM - 1, path, length);

    if (units < 0) {
        return units;
    }
    room[units] = 0;
    return lengthen(room, units);
}

/* Join the directory and a name of ours, which is plain ASCII. */
int
semlock_join(WCHAR *room, const char *directory, int32_t length, const char *name)
{
    int tail = (int)strlen(name);
    int units = decode(room, SEMLOCK_PATH_ROOM - 2 - tail, directory, length);

    if (units < 0) {
        return units;
    }
    if (units > 0 && !is_separator(room[units - 1])) {
        room[units++] = L'\\';
    }
    for (int i = 0; i <= tail; i++) {
        room[units + i] = (WCHAR)(unsigned char)name[i];
    }
    return lengthen(room, units + tail);
}

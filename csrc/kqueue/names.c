/* macOS and the BSDs: the names in a directory, by readdir(). */
#include <dirent.h>
#include <errno.h>
#include <unistd.h>

#include "posix/system.h"

void
semlock_names_start(semlock_names *names, int fd)
{
    names->fd = fd;
    names->stream = fdopendir(fd);
    names->error = names->stream == NULL ? -errno : 0;
}

const char *
semlock_names_next(semlock_names *names)
{
    struct dirent *entry;

    if (names->stream == NULL) {
        return NULL;
    }
    errno = 0;
    entry = readdir(names->stream);
    if (entry == NULL) {
        names->error = -errno;
        return NULL;
    }
    return entry->d_name;
}

void
semlock_names_end(semlock_names *names)
{
    if (names->stream != NULL) {
        closedir(names->stream);
    }
    else {
        close(names->fd);
    }
}

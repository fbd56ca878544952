/* What only Linux has: watching directories, which the caller looks at by the clock elsewhere,
 * and starting a command under a lock, which the caller does itself. */
#include "core.h"

int64_t
semlock_folder_watch(int64_t events, const char *directory)
{
    (void)events;
    (void)directory;
    return SEMLOCK_BAD_ARGUMENT;
}

void
semlock_folder_unwatch(int64_t events, int64_t mark)
{
    (void)events;
    (void)mark;
}

int
semlock_folder_changes(int64_t events, int64_t life, semlock_pool *pool, semlock_news *news)
{
    (void)events;
    (void)life;
    (void)pool;
    (void)news;
    return 0;
}

int
semlock_spawn(const semlock_command *command, semlock_lock *lock, int64_t *pid)
{
    (void)command;
    (void)lock;
    *pid = 0;
    return SEMLOCK_BAD_ARGUMENT;
}

/* POSIX: the descriptors of callers that this process has locked.  The kernel gives one open
 * file to each process that has a descriptor of it, so the objects and threads that use one
 * exclude each other by this table.  A forked child begins with an empty one. */
#include <errno.h>
#include <sys/stat.h>

#include "posix/system.h"

/* A row is one descriptor of the program.
 *
 *   count  kernel      state
 *   0      any         empty
 *   1      EXCLUSIVE   one object holds it; every other try is HELD
 *   n      SHARED      n readers hold it by this descriptor; other readers come in, by another
 *                      descriptor of the same file in a row of their own; a writer is HELD
 *
 *     0 --take--> 1 --take, as a reader--> 2 ...    each back by give; the last one unlocks
 */
#define LENT_ROOM 256
static struct {
    int64_t busy; /* the life of the process whose thread uses the table, 0: none */
    int64_t life;
    struct {
        uint64_t dev;
        uint64_t ino;
        int64_t fd;
        int32_t kernel;
        int32_t count; /* 0: the row is empty */
    } rows[LENT_ROOM];
} lent;

void
semlock_lent_enter(const semlock_pool *pool)
{
    int64_t user;

    /* In the child of a bare clone the thread of another life does not exist. */
    while ((user = semlock_load64(&lent.busy)) == pool->life ||
           !semlock_swap_if64(&lent.busy, user, pool->life)) {
        semlock_yield();
    }
    if (lent.life != pool->life) {
        for (int i = 0; i < LENT_ROOM; i++) {
            lent.rows[i].count = 0;
        }
        lent.life = pool->life;
    }
}

void
semlock_lent_leave(void)
{
    semlock_store64(&lent.busy, 0);
}

/* Note a lock on the caller's descriptor: SEMLOCK_OK; SEMLOCK_HELD if another object of this
 * process excludes it. */
int
semlock_lent_take(const struct stat *seen, int64_t fd, int32_t kernel)
{
    int empty = -1, own = -1;

    for (int i = 0; i < LENT_ROOM; i++) {
        if (lent.rows[i].count == 0) {
            empty = empty < 0 ? i : empty;
        }
        else if (lent.rows[i].ino == (uint64_t)seen->st_ino &&
                 lent.rows[i].dev == (uint64_t)seen->st_dev) {
            if (kernel != SEMLOCK_SHARED || lent.rows[i].kernel != SEMLOCK_SHARED) {
                return SEMLOCK_HELD;
            }
            own = lent.rows[i].fd == fd ? i : own;
        }
    }
    own = own < 0 ? empty : own;
    if (own < 0) {
        return -ENOLCK;
    }
    lent.rows[own].dev = (uint64_t)seen->st_dev;
    lent.rows[own].ino = (uint64_t)seen->st_ino;
    lent.rows[own].fd = fd;
    lent.rows[own].kernel = kernel;
    lent.rows[own].count++;
    return SEMLOCK_OK;
}

/* It is given up: 1 if no other object shares it. */
int
semlock_lent_give(const semlock_file *file)
{
    for (int i = 0; i < LENT_ROOM; i++) {
        if (lent.rows[i].count > 0 && lent.rows[i].fd == file->handle &&
            lent.rows[i].ino == file->ino && lent.rows[i].dev == file->dev) {
            return --lent.rows[i].count == 0;
        }
    }
    return 1;
}

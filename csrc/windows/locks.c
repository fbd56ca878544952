/* Windows: the guard and the witness, each a lock on one byte. */
#include <string.h>

#include "windows/system.h"

/* Far behind anything that a record or a foreign lock on a file's content reaches, and not at
 * the position of the witness on Linux: a file server may pass these locks on to its own
 * kernel. */
#define WITNESS_BYTE ((uint64_t)1 << 62)
#define GUARD_BYTE (((uint64_t)1 << 62) + 1)

/* Lock one byte without waiting: 0, 1 if another handle has it, or an error. */
static int
lock_byte(HANDLE handle, uint64_t at, DWORD kind)
{
    OVERLAPPED place;
    int error;

    memset(&place, 0, sizeof place);
    place.Offset = (DWORD)at;
    place.OffsetHigh = (DWORD)(at >> 32);
    if (LockFileEx(handle, kind | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &place)) {
        return 0;
    }
    error = semlock_last_error();
    return error == -ERROR_LOCK_VIOLATION || error == -ERROR_IO_PENDING ? 1 : error;
}

static void
unlock_byte(HANDLE handle, uint64_t at)
{
    OVERLAPPED place;

    memset(&place, 0, sizeof place);
    place.Offset = (DWORD)at;
    place.OffsetHigh = (DWORD)(at >> 32);
    UnlockFileEx(handle, 0, 1, 0, &place);
}

/* Lock one byte that others hold for a moment only: 0, SEMLOCK_GUARDED, or an error. */
static int
take_byte(HANDLE handle, uint64_t at)
{
    for (int tries = 0;; tries++) {
        int outcome = lock_byte(handle, at, LOCKFILE_EXCLUSIVE_LOCK);

        if (outcome != 1) {
            return outcome;
        }
        if (tries == SEMLOCK_GUARD_TRIES) {
            return SEMLOCK_GUARDED;
        }
        if (tries == 0) {
            /* If an earlier unlock failed, this handle blocks itself.  This releases the
             * handle's own lock, and no other. */
            unlock_byte(handle, at);
        }
        else {
            semlock_yield();
        }
    }
}

/* Take the guard: 0, SEMLOCK_GUARDED, or the error of a filesystem without byte locks. */
int
semlock_guard(HANDLE handle)
{
    return take_byte(handle, GUARD_BYTE);
}

/* Does this outcome of taking the guard forbid a change?  Where byte locks are not supported,
 * the change is made without the guard.  After any other error another process may have the
 * guard. */
int
semlock_is_kept_out(int guard)
{
    return guard == SEMLOCK_GUARDED || (guard < 0 && !semlock_is_unsupported(guard));
}

void
semlock_unguard(HANDLE handle)
{
    unlock_byte(handle, GUARD_BYTE);
}

/* Take the witness of a new file: 0, SEMLOCK_GUARDED if another process is about to remove the
 * file, or an error. */
int
semlock_take_witness(HANDLE handle)
{
    return take_byte(handle, WITNESS_BYTE);
}

/* Like semlock_system_witness, but a free witness is kept locked (shared) until the handle is
 * closed: no other process can come to hold the file meanwhile. */
int
semlock_hold_off(HANDLE handle)
{
    int outcome = lock_byte(handle, WITNESS_BYTE, 0);

    return outcome < 0 ? -1 : outcome;
}

/* 1 taken, 0 free, -1 not known here.  Windows can only query a lock by taking it; a shared
 * lock does not change the answer for other queries. */
int
semlock_system_witness(HANDLE handle)
{
    int outcome = lock_byte(handle, WITNESS_BYTE, 0);

    if (outcome == 0) {
        unlock_byte(handle, WITNESS_BYTE);
    }
    return outcome < 0 ? -1 : outcome;
}

/* The queue of the waiters for a lock, as far as it is alike everywhere: its names, reading
 * it, joining it, and passing by tickets (semlock.h, THE QUEUE). */
#include <string.h>

#include "core.h"

#define TICKET_DIGITS 16
#define JOIN_TRIES 100

semlock_queue
semlock_queue_of(const semlock_lock *lock)
{
    semlock_queue queue = {lock->path, lock->directory_length, lock->name_hash};

    return queue;
}

semlock_queue
semlock_queue_of_place(const semlock_place *place)
{
    semlock_queue queue = {place->path, place->directory_length, place->name_hash};

    return queue;
}

/* The queue's name, with a final NUL; returns its end. */
static char *
put_name(char *name, const semlock_queue *queue)
{
    char *end = semlock_put_hex(name + sizeof SEMLOCK_OWN - 1, queue->name_hash, 16);

    memcpy(name, SEMLOCK_OWN, sizeof SEMLOCK_OWN - 1);
    memcpy(end, ".queue", sizeof ".queue");
    return end + sizeof ".queue" - 1;
}

int
semlock_queue_path(semlock_os_char *room, const semlock_queue *queue)
{
    char name[48];

    put_name(name, queue);
    return semlock_join(room, queue->path, queue->directory_length, name);
}

/* The path of a ticket in a queue, or of a file beside it. */
int
semlock_ticket_path(semlock_os_char *room, const semlock_queue *queue, uint64_t number,
                    const char *suffix)
{
    char name[80];
    char *end = put_name(name, queue);

    *end++ = SEMLOCK_SEPARATOR[0];
    memcpy(semlock_put_hex(end, number, TICKET_DIGITS), suffix, strlen(suffix) + 1);
    return semlock_join(room, queue->path, queue->directory_length, name);
}

/* Does the lock have a queue?  A queue that cannot be seen prevents no try. */
int
semlock_queue_exists(const semlock_lock *lock)
{
    semlock_os_char room[SEMLOCK_PATH_ROOM];
    semlock_queue queue = semlock_queue_of(lock);

    return semlock_queue_path(room, &queue) == 0 && semlock_os_exists(room);
}

/* Take a name of the queue's directory into the result of reading it. */
void
semlock_survey_note(semlock_survey *seen, const char *name)
{
    const char *end = name;
    uint64_t number = 0;
    int32_t at;

    for (; end < name + TICKET_DIGITS; end++) {
        if (*end >= '0' && *end <= '9') {
            number = number << 4 | (uint64_t)(*end - '0');
        }
        else if (*end >= 'a' && *end <= 'f') {
            number = number << 4 | (uint64_t)(*end - 'a' + 10);
        }
        else {
            return;
        }
    }
    if (number == 0) {
        return;
    }
    if (strcmp(end, SEMLOCK_LATE) == 0) {
        seen->late_ones[seen->late++ % SEMLOCK_ASKED_LATE] = number;
        return;
    }
    if (*end != 0) {
        return;
    }
    if (number == seen->own) {
        seen->there = 1;
        return;
    }
    if (number <= seen->above || number >= seen->below) {
        return;
    }
    seen->count++;
    if (seen->kept < SEMLOCK_NEAREST) {
        at = seen->kept++;
    }
    else if (seen->downwards ? number > seen->nearest[SEMLOCK_NEAREST - 1]
                             : number < seen->nearest[SEMLOCK_NEAREST - 1]) {
        at = SEMLOCK_NEAREST - 1;
    }
    else {
        return;
    }
    for (; at > 0 &&
           (seen->downwards ? seen->nearest[at - 1] < number : seen->nearest[at - 1] > number);
         at--) {
        seen->nearest[at] = seen->nearest[at - 1];
    }
    seen->nearest[at] = number;
}

/* Read the queue: 0, or an error. */
int
semlock_survey_read(const semlock_queue *queue, semlock_survey *seen)
{
    seen->kept = seen->count = seen->there = seen->late = 0;
    return semlock_queue_read(queue, seen);
}

/* Remove the tickets of dead owners among those that were passed by: returns how many. */
int
semlock_queue_clear_late(const semlock_queue *queue, const semlock_survey *seen)
{
    semlock_os_char name[SEMLOCK_PATH_ROOM];
    int removed = 0;

    for (int32_t i = 0; i < seen->late && i < SEMLOCK_ASKED_LATE; i++) {
        removed += semlock_ticket_path(name, queue, seen->late_ones[i], SEMLOCK_LATE) == 0 &&
                   semlock_ticket_sort_out(name) == SEMLOCK_TICKET_DEAD;
    }
    return removed;
}

/* The first ticket between two numbers whose owner waits, 0 if there is none.  Tickets of dead
 * owners are removed on the way, or skipped if that fails. */
uint64_t
semlock_queue_head(const semlock_queue *queue, uint64_t above, uint64_t below)
{
    semlock_os_char name[SEMLOCK_PATH_ROOM];
    semlock_survey seen = {.above = above, .below = below};
    int removed = 0;

    do {
        if (semlock_survey_read(queue, &seen) != 0) {
            return 0;
        }
        for (int32_t i = 0; i < seen.kept; i++) {
            int state = semlock_ticket_path(name, queue, seen.nearest[i], "") != 0
                            ? SEMLOCK_TICKET_NONE
                            : semlock_ticket_sort_out(name);

            if (state == SEMLOCK_TICKET_WAITS) {
                return seen.nearest[i];
            }
            removed += state == SEMLOCK_TICKET_DEAD;
            seen.above = seen.nearest[i];
        }
    } while (seen.count > seen.kept);
    removed += semlock_queue_clear_late(queue, &seen);
    if (removed > 0) {
        semlock_queue_remove(queue); /* it may have been the last */
    }
    return 0;
}

/* Pass by all tickets up to a number, whose owners did not use a free lock.  They hold
 * nothing, and have their old places again when they run on.  The tickets of dead owners are
 * removed. Returns the highest that could not be passed by, or 0. */
uint64_t
semlock_queue_pass(const semlock_queue *queue, uint64_t upto)
{
    semlock_os_char name[SEMLOCK_PATH_ROOM];
    semlock_survey seen = {.below = upto == UINT64_MAX ? upto : upto + 1};
    uint64_t left = 0;

    do {
        if (semlock_survey_read(queue, &seen) != 0) {
            return left;
        }
        for (int32_t i = 0; i < seen.kept; i++) {
            uint64_t number = seen.above = seen.nearest[i];

            if (semlock_ticket_path(name, queue, number, "") == 0 &&
                semlock_ticket_sort_out(name) != SEMLOCK_TICKET_DEAD &&
                semlock_ticket_pass(queue, number) != 0) {
                left = number;
            }
        }
    } while (seen.count > seen.kept);
    return left;
}

/* The lock was acquired out of turn: pass by the tickets of the waiters that did not use it.
 */
void
semlock_place_pass_by(semlock_place *place, semlock_pool *pool)
{
    semlock_queue queue = semlock_queue_of_place(place);
    uint64_t left = semlock_queue_pass(&queue, place->ticket.number - 1);

    place->out_of_turn = 0;
    if (left != 0) {
        semlock_remember_passed(pool, place->name_hash ^ place->directory_hash, left);
    }
}

/* Join the queue with the time of asking, or with the old number. 0 or an error. */
int
semlock_place_join(semlock_place *place)
{
    semlock_os_char name[SEMLOCK_PATH_ROOM];
    semlock_queue queue = semlock_queue_of_place(place);
    uint64_t number = place->ticket.number;

    if (number == 0) {
        if (place->asked == 0) {
            place->asked = semlock_now_ns();
        }
        number = (uint64_t)place->asked;
    }
    for (int tries = 0; tries < JOIN_TRIES; tries++) {
        int error = semlock_ticket_path(name, &queue, number, "");

        if (error == 0) {
            place->ticket.ctime_ns = 0;
            error = semlock_ticket_make(name, &place->ticket);
        }
        if (error == 0) {
            place->ticket.number = number;
            place->joined_at = semlock_now_ns();
            place->ticket.name_hash = place->name_hash;
            place->ticket.told = 0;
            if (place->ticket.ctime_ns == 0) {
                semlock_ticket_made(place);
            }
            return 0;
        }
        if (error == SEMLOCK_TAKEN) {
            number++; /* another waiter asked at the same moment */
        }
        else if (semlock_is_gone(error)) {
            error = semlock_queue_make(&queue);
            if (error != 0) {
                semlock_queue_remove(&queue); /* it may exist despite the error */
                return error;
            }
        }
        else if (error != SEMLOCK_CHANGED) {
            semlock_queue_remove(&queue); /* it is empty if it was created for us */
            return error;
        }
    }
    semlock_queue_remove(&queue); /* a ticket in it may never have come to be */
    return SEMLOCK_BUSY;
}

/* What a ticket shows people: the record that its owner would write into the lock, with the
 * time since which it waits.  The number of bytes, 0 if there are none to show. */
int32_t
semlock_place_text(const semlock_place *place, char text[SEMLOCK_TICKET_ROOM])
{
    const semlock_record *record = place->record;

    if (record == NULL || record->length > SEMLOCK_TICKET_ROOM) {
        return 0;
    }
    memcpy(text, record->text, (size_t)record->length);
    semlock_put_time(record, text,
                     semlock_wall_ns() / 1000000000 -
                         (semlock_now_ns() - place->asked) / 1000000000);
    return record->length;
}

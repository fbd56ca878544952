/* As much of kqueue as csrc/kqueue/events.c asks for; see ../event.c. */
#ifndef EMULATED_SYS_EVENT_H
#define EMULATED_SYS_EVENT_H

#include <stdint.h>
#include <time.h>

struct kevent {
    uintptr_t ident;
    short filter;
    unsigned short flags;
    unsigned int fflags;
    intptr_t data;
    void *udata;
};

#define EVFILT_VNODE (-4)
#define EVFILT_PROC (-5)
#define EVFILT_TIMER (-7)
/* NetBSD has it since 10, and OpenBSD in its later ones: they stand for those without it. */
#if defined(__APPLE__) || defined(__FreeBSD__)
#define EVFILT_USER (-10)
#endif
#define EV_ADD 0x0001
#define EV_DELETE 0x0002
#define EV_DISABLE 0x0008
#define EV_ONESHOT 0x0010
#define EV_CLEAR 0x0020
#define EV_ERROR 0x4000
#define NOTE_DELETE 0x0001
#define NOTE_ATTRIB 0x0008
#define NOTE_LINK 0x0010
#define NOTE_RENAME 0x0020
#define NOTE_REVOKE 0x0040
#define NOTE_EXIT 0x80000000u
#if defined(__FreeBSD__) || defined(__NetBSD__)
#define NOTE_CLOSE_WRITE 0x0200
#endif

#define EV_SET(event, a, b, c, d, e, f)                                                       \
    (*(event) = (struct kevent){.ident = (a),                                                 \
                                .filter = (b),                                                \
                                .flags = (c),                                                 \
                                .fflags = (d),                                                \
                                .data = (e),                                                  \
                                .udata = (f)})

int kqueue(void);
int kevent(int queue, const struct kevent *changes, int count, struct kevent *events, int room,
           const struct timespec *timeout);

#endif

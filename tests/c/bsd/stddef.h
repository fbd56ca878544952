/* The compiler's own header has ways of its own for the systems that the sources are told this
 * is, so it isn't told. */
#if defined(__FreeBSD__)
#undef __FreeBSD__
#include_next <stddef.h>
#define __FreeBSD__ 14
#elif defined(__NetBSD__)
#undef __NetBSD__
#include_next <stddef.h>
#define __NetBSD__ 1
#else
#include_next <stddef.h>
#endif

/* Preloaded into a process, this moves its wall clock by CLOCK_AHEAD_S seconds. Its monotonic clock stays as it is.

   No header is included, so that a compiler alone can build it. */

struct timespec { long tv_sec, tv_nsec; };
struct timeval { long tv_sec, tv_usec; };

extern long syscall(long number, ...);
extern char *getenv(const char *name);
extern long atol(const char *text);
extern void *dlvsym(void *handle, const char *name, const char *version);
extern void *dlsym(void *handle, const char *name);

#define NEXT ((void *)-1L)
#define TIME_UTC 1
#define REALTIME 0
#define REALTIME_COARSE 5
#ifdef __aarch64__
#define CLOCK_GETTIME 113
#define FIRST_VERSION "GLIBC_2.17"
#else
#define CLOCK_GETTIME 228
#define FIRST_VERSION "GLIBC_2.3.2"
#endif

static long ahead_s(void) {
    static const char *text;
    if (!text) text = getenv("CLOCK_AHEAD_S");
    return text ? atol(text) : 0;
}

int clock_gettime(int clock, struct timespec *now) {
    int failed = (int)syscall(CLOCK_GETTIME, (long)clock, now);
    if (!failed && (clock == REALTIME || clock == REALTIME_COARSE)) now->tv_sec += ahead_s();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    if (clock_gettime(REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

long time(long *now) {
    struct timespec found;
    if (clock_gettime(REALTIME, &found)) return -1;
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    return base == TIME_UTC && !clock_gettime(REALTIME, now) ? base : 0;
}

/* The kernel knows the true time alone. A time of the wall clock is larger than any of the monotonic one. */
static struct timespec true_time(const struct timespec *until) {
    struct timespec found = *until;
    if (found.tv_sec > 1000000000L) found.tv_sec -= ahead_s();
    return found;
}

int pthread_cond_timedwait(void *condition, void *mutex, const struct timespec *until) {
    static int (*next)(void *, void *, const struct timespec *);
    struct timespec found = true_time(until);
    /* an older function has the same name */
    if (!next) next = dlvsym(NEXT, "pthread_cond_timedwait", FIRST_VERSION);
    return next(condition, mutex, &found);
}

int cnd_timedwait(void *condition, void *mutex, const struct timespec *until) {
    static int (*next)(void *, void *, const struct timespec *);
    struct timespec found = true_time(until);
    if (!next) next = dlsym(NEXT, "cnd_timedwait");
    return next(condition, mutex, &found);
}

int sem_timedwait(void *semaphore, const struct timespec *until) {
    static int (*next)(void *, const struct timespec *);
    struct timespec found = true_time(until);
    if (!next) next = dlsym(NEXT, "sem_timedwait");
    return next(semaphore, &found);
}

int pthread_mutex_timedlock(void *mutex, const struct timespec *until) {
    static int (*next)(void *, const struct timespec *);
    struct timespec found = true_time(until);
    if (!next) next = dlsym(NEXT, "pthread_mutex_timedlock");
    return next(mutex, &found);
}

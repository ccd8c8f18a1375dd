/* Loaded before a program: its time of day is off by the seconds that the file $CLOCK_OFF says. Nothing else is:
   libfaketime also changes waits by the monotonic clock, with which Python's sleep fails. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off(void)
{
    char text[32] = "";
    int file = open(getenv("CLOCK_OFF"), O_RDONLY | O_CLOEXEC);

    if (file < 0 || read(file, text, sizeof text - 1) < 0)
        abort();
    close(file);
    return strtol(text, NULL, 10);
}

int clock_gettime(clockid_t which, struct timespec *now)
{
    long failed = syscall(SYS_clock_gettime, which, now);

    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        now->tv_sec += off();
    return failed;
}

time_t time(time_t *seconds)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds)
        *seconds = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *told, void *zone)
{
    struct timespec now;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    told->tv_sec = now.tv_sec;
    told->tv_usec = now.tv_nsec / 1000;
    return 0;
}

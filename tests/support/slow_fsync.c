/* Preloaded, it makes every fsync and fdatasync take AJET_FSYNC_MS longer, as on a slow disk. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void delay(void) {
    const char *given = getenv("AJET_FSYNC_MS");
    long ms = given ? atol(given) : 0;
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    if (ms > 0) nanosleep(&time, NULL);
}

int fsync(int fd) {
    delay();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    delay();
    return (int)syscall(SYS_fdatasync, fd);
}

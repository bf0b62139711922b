/* Comes between a node and its C library: syncs that fail or take long, and a wall clock that has jumped.
   What to do is read from a file that the run has mapped, too. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct orders {
    volatile int64_t sync_fails;
    volatile int64_t sync_ms;
    volatile int64_t clock_ms;
};

static struct orders *orders;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_SHIM");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *page = mmap(NULL, sizeof(struct orders), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) orders = page;
}

static int synced(const char *name, int descriptor) {
    if (orders != NULL && orders->sync_ms > 0) usleep(orders->sync_ms * 1000);
    if (orders != NULL && orders->sync_fails) {
        errno = EIO;
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(descriptor);
}

int fsync(int descriptor) { return synced("fsync", descriptor); }

int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && orders != NULL) now->tv_sec += orders->clock_ms / 1000;
    return result;
}

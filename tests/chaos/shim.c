/* Preloaded before the C library: makes fsync fail or slow, and shifts the wall clock.
   The settings are in a file that the fault injector maps as well. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct settings {
    volatile int64_t sync_fails;
    volatile int64_t sync_ms;
    volatile int64_t clock_ms;
};

static struct settings *settings;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_SHIM");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *page = mmap(NULL, sizeof(struct settings), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) settings = page;
}

static int synced(const char *name, int descriptor) {
    if (settings != NULL && settings->sync_ms > 0) usleep(settings->sync_ms * 1000);
    if (settings != NULL && settings->sync_fails) {
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
    if (result == 0 && clock == CLOCK_REALTIME && settings != NULL) now->tv_sec += settings->clock_ms / 1000;
    return result;
}

// For LD_PRELOAD: one rank's call of FAIL_FUNCTION fails, the FAIL_CALL-th (0: each) of those that
// libsmddp.so makes itself or, for threads, through the C++ library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int number(const char* name) {
  const char* text = getenv(name);
  return text == NULL ? -1 : atoi(text);
}

static int fails(const char* function, const void* caller) {
  static int calls = 0;
  const char* wanted = getenv("FAIL_FUNCTION");
  Dl_info info;
  if (wanted == NULL || strcmp(function, wanted) != 0) return 0;
  if (number("OMPI_COMM_WORLD_RANK") != number("FAIL_RANK")) return 0;
  if (dladdr(caller, &info) == 0 || info.dli_fname == NULL) return 0;
  if (strstr(info.dli_fname, "libsmddp.so") == NULL &&
      (strstr(info.dli_fname, "libstdc++") == NULL || strcmp(function, "pthread_create") != 0)) {
    return 0;
  }
  ++calls;
  return number("FAIL_CALL") == 0 || calls == number("FAIL_CALL");
}

#define REAL(function) ((__typeof__(&function))dlsym(RTLD_NEXT, #function))
#define FAILS(function) fails(#function, __builtin_return_address(0))

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  if (FAILS(pthread_create)) return EAGAIN;
  return REAL(pthread_create)(thread, attributes, run, argument);
}

void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
  typedef void* (*Map)(void*, size_t, int, int, int, off_t);
  if (FAILS(mmap)) return errno = ENOMEM, (void*)-1;
  return ((Map)dlsym(RTLD_NEXT, "mmap"))(at, bytes, protection, flags, file, offset);
}

int memfd_create(const char* name, unsigned flags) {
  typedef int (*Create)(const char*, unsigned);
  if (FAILS(memfd_create)) return errno = EMFILE, -1;
  return ((Create)dlsym(RTLD_NEXT, "memfd_create"))(name, flags);
}

int ftruncate(int file, off_t bytes) {
  if (FAILS(ftruncate)) return errno = ENOSPC, -1;
  return REAL(ftruncate)(file, bytes);
}

int posix_fallocate(int file, off_t from, off_t bytes) {
  typedef int (*Allocate)(int, off_t, off_t);
  if (FAILS(posix_fallocate)) return ENOSPC;
  return ((Allocate)dlsym(RTLD_NEXT, "posix_fallocate"))(file, from, bytes);
}

int open(const char* path, int flags, ...) {
  typedef int (*Open)(const char*, int, ...);
  va_list more;
  va_start(more, flags);
  const int mode = va_arg(more, int);
  va_end(more);
  if (FAILS(open)) return errno = EACCES, -1;
  return ((Open)dlsym(RTLD_NEXT, "open"))(path, flags, mode);
}

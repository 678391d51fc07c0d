/* A cache-line ping-pong between ranks 0 and 1, which tells how far apart their cores are: about 50
 * ns there and back between hyperthreads of a core, 120 on one socket, 500 between two. A virtual
 * machine's cores move, so a sample has a distance only if it is the same before and after it. C
 * and C++, for processes that one launcher started on one machine. */
#ifndef SMDDP_BENCHMARKS_PING_PONG_H_
#define SMDDP_BENCHMARKS_PING_PONG_H_

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { kPingPongs = 50, kPingPongBursts = 3, kPingPongSpins = 20000 };

struct PingPong {
  uint64_t* lines; /* of each of the two ranks; NULL on all others */
  int rank;
  uint64_t sent;
};

static inline double PingPongNow(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The file's name is the same for ranks of one launcher; it goes once both ranks have it open. */
static inline void PingPongName(char* path, size_t bytes) {
  const char* folder = getenv("TMPDIR");
  snprintf(path, bytes, "%s/smddp-ping-pong-%d", folder != NULL ? folder : "/tmp", (int)getppid());
}

static inline struct PingPong PingPongOpen(int rank, int size) {
  struct PingPong own = {NULL, rank, 0};
  if (size < 2 || rank > 1) return own;
  char path[4096];
  PingPongName(path, sizeof(path));
  const int file = open(path, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, 4096) != 0) {
    perror(path);
    exit(1);
  }
  own.lines = (uint64_t*)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (own.lines == MAP_FAILED) {
    perror(path);
    exit(1);
  }
  return own;
}

static inline void PingPongAwait(const struct PingPong* own, uint64_t value) {
  const uint64_t* line = own->lines + 64 * (1 - own->rank);
  double start = 0;
  for (long spins = 1; __atomic_load_n(line, __ATOMIC_ACQUIRE) < value; ++spins) {
    if (spins % kPingPongSpins != 0) continue;
    sched_yield(); /* the other rank may be waiting for this core */
    if (start == 0) start = PingPongNow();
    if (PingPongNow() - start < 60) continue;
    fprintf(stderr, "rank %d: no ping-pong from rank %d within 60 s\n", own->rank, 1 - own->rank);
    exit(1);
  }
}

/* Nanoseconds there and back, the least of a few bursts; 0 on ranks that take no part. Ranks 0 and
 * 1 call it at the same time. */
static inline double PingPongMeasure(struct PingPong* own) {
  double least = 0;
  if (own->lines == NULL) return 0;
  for (int burst = 0; burst < kPingPongBursts; ++burst) {
    double start = 0;
    for (int i = 0; i <= kPingPongs; ++i) {
      if (i == 1) start = PingPongNow(); /* the first one waits for the other rank to come */
      ++own->sent;
      if (own->rank == 0) __atomic_store_n(own->lines, own->sent, __ATOMIC_RELEASE);
      PingPongAwait(own, own->sent);
      if (own->rank == 1) __atomic_store_n(own->lines + 64, own->sent, __ATOMIC_RELEASE);
    }
    const double nanoseconds = (PingPongNow() - start) / kPingPongs * 1e9;
    if (burst == 0 || nanoseconds < least) least = nanoseconds;
    if (own->sent == kPingPongs + 1 && own->rank == 0) {
      char path[4096];
      PingPongName(path, sizeof(path));
      unlink(path);
    }
  }
  return least;
}

/* The distances, from near to far. */
enum { kDistances = 3 };
static const char* const kDistanceNames[kDistances] = {"core", "socket", "sockets"};

static inline int PingPongDistance(double nanoseconds) {
  return nanoseconds < 85 ? 0 : nanoseconds < 280 ? 1 : 2;
}

#endif /* SMDDP_BENCHMARKS_PING_PONG_H_ */

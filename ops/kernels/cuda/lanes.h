// The threads of a kernel that work together, so that one body serves GPUs and, in the tests, the
// CPU.
//
// On a GPU every thread runs the body. On the CPU one thread runs it for all of them: what is
// inside ForLanes() or ForThreads() is done for one lane, or thread, after the other, and each lane
// has a place of its own in what is declared OfLanes. So what lies outside must be the same for all
// of them, and none may need what another one makes in the same ForLanes() or ForThreads().
#pragma once

#include <cstdint>

#include "kernels/half.h"

namespace smddp {

constexpr unsigned kLanes = 32;  // of a warp, whose threads run in step

#if defined(__CUDA_ARCH__)
constexpr unsigned kHeldLanes = 1;
#else
constexpr unsigned kHeldLanes = kLanes;
#endif

#if !defined(__CUDA_ARCH__)
// The order in which loops take threads. No result depends on it, or what a thread makes is used by
// another one in the same loop; so the tests take both.
inline thread_local bool threads_backwards = false;

template <typename Fn>
SMDDP_INLINE void ForEach(unsigned threads, Fn&& fn) {
  for (unsigned i = 0; i < threads; ++i) fn(threads_backwards ? threads - 1 - i : i);
}
#endif

template <typename T>
struct OfLanes {
  T held[kHeldLanes];
};

template <typename T>
SMDDP_INLINE T& Of(OfLanes<T>& all, unsigned lane) {
  return all.held[lane % kHeldLanes];
}

template <typename Fn>
SMDDP_INLINE void ForLanes(Fn&& fn) {
#if defined(__CUDA_ARCH__)
  fn(threadIdx.x % kLanes);
#else
  ForEach(kLanes, fn);
#endif
}

// Of all lanes, the same for each.
SMDDP_INLINE int32_t LargestOf(const OfLanes<int32_t>& all) {
  int32_t largest = all.held[0];
#if defined(__CUDA_ARCH__)
  for (unsigned far = kLanes / 2; far > 0; far /= 2) {
    int32_t other = __shfl_xor_sync(~0u, largest, far);
    largest = other > largest ? other : largest;
  }
#else
  for (int32_t one : all.held) largest = one > largest ? one : largest;
#endif
  return largest;
}

SMDDP_INLINE uint32_t SumOf(const OfLanes<uint32_t>& all) {
  uint32_t sum = all.held[0];
#if defined(__CUDA_ARCH__)
  for (unsigned far = kLanes / 2; far > 0; far /= 2) sum += __shfl_xor_sync(~0u, sum, far);
#else
  for (unsigned lane = 1; lane < kLanes; ++lane) sum += all.held[lane];
#endif
  return sum;
}

// A bit for each lane: predicate(lane), which the lane evaluates for itself.
template <typename Fn>
SMDDP_INLINE uint32_t Ballot(Fn&& predicate) {
#if defined(__CUDA_ARCH__)
  return __ballot_sync(~0u, predicate(threadIdx.x % kLanes));
#else
  uint32_t bits = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) bits |= predicate(lane) ? 1u << lane : 0u;
  return bits;
#endif
}

SMDDP_INLINE unsigned CountBits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return static_cast<unsigned>(__popc(bits));
#else
  return static_cast<unsigned>(__builtin_popcount(bits));
#endif
}

// ---- a block of kThreads threads, which share memory --------------------------------------------

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / kLanes;

template <typename Fn>
SMDDP_INLINE void ForThreads(Fn&& fn) {
#if defined(__CUDA_ARCH__)
  fn(threadIdx.x);
#else
  ForEach(kThreads, fn);
#endif
}

// What all threads have written is there for each of them.
SMDDP_INLINE void Sync() {
#if defined(__CUDA_ARCH__)
  __syncthreads();
#endif
}

// On the CPU blocks run one after the other, so nothing can come between.
SMDDP_INLINE void AddAtomically(uint32_t* to, uint32_t number) {
#if defined(__CUDA_ARCH__)
  atomicAdd(to, number);
#else
  *to += number;
#endif
}

// Turns a number of each thread into the sum of those up to and including its own. `space` has room
// for as many. Ends with a Sync().
template <typename T>
SMDDP_INLINE void SumUp(T* numbers, T* space) {
  static_assert(kThreads == 256, "an even number of steps, so that the sums end in `numbers`");
  Sync();
  for (unsigned far = 1; far < kThreads; far *= 2) {
    ForThreads([&](unsigned thread) {
      space[thread] = numbers[thread] + (thread >= far ? numbers[thread - far] : T{});
    });
    Sync();
    T* swapped = numbers;
    numbers = space;
    space = swapped;
  }
}

}  // namespace smddp

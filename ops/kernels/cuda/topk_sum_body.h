// Bodies of the kernels that add up what the ranks selected: the sums are cleared, one launch for
// each rank adds what that one has, so that sums are made in the order of ranks, and the last one
// divides and casts. No index occurs twice within a rank, so no two threads add to one sum.
//
// An index that is out of range, of a rank whose gradient has another shape, makes all of the
// result NaN: that an error could be reported, the host would have to wait for the GPU.
#pragma once

#include <cstdint>

#include "kernels/cuda/topk_select_body.h"

namespace smddp {

SMDDP_INLINE void ClearSums(const TopkSumArgs& args, unsigned block, unsigned, void*) {
  ForThreads([&](unsigned thread) {
    uint64_t first = (uint64_t{block} * kThreads + thread) * kFour;
    if (first == 0) *args.misplaced = 0;
    if (first < args.count) StoreFour(args.sums, static_cast<uint32_t>(first), args.count, Four{});
  });
}

SMDDP_INLINE void AddRank(const TopkSumArgs& args, unsigned block, unsigned, void*) {
  ForThreads([&](unsigned thread) {
    uint64_t i = uint64_t{block} * kThreads + thread;
    if (i >= args.k) return;
    auto index = static_cast<uint32_t>(args.indices[i]);  // a negative one is beyond the end too
    if (index < args.count) {
      args.sums[index] += args.values[i];
    } else {
      *args.misplaced = 1;
    }
  });
}

template <typename T>
SMDDP_INLINE void StoreFourAs(void* to, uint32_t first, uint32_t count, const Four& four) {
  constexpr unsigned kBytes = kFour * sizeof(T);
  auto* at = static_cast<char*>(to) + uint64_t{first} * sizeof(T);
  T out[kFour];
  SMDDP_UNROLL
  for (uint32_t i = 0; i < kFour; ++i) out[i] = Narrow<T>(four.at[i]);
  if (first + kFour > count) {
    SMDDP_UNROLL
    for (uint32_t i = 0; i < kFour; ++i) {
      if (first + i < count) StoreOne(at + i * sizeof(T), out[i]);
    }
  } else if constexpr (kBytes < kWord) {
    uint64_t half_word;
    std::memcpy(&half_word, out, kBytes);
    StoreOne(at, half_word);
  } else {
    Word words[kBytes / kWord];
    std::memcpy(words, out, kBytes);
    SMDDP_UNROLL
    for (unsigned w = 0; w < kBytes / kWord; ++w) StoreWord(at + w * kWord, words[w]);
  }
}

template <typename T>
SMDDP_INLINE void FinishSums(const TopkSumArgs& args, unsigned block, unsigned, void*) {
  bool misplaced = *args.misplaced != 0;
  if (args.sums == args.out && args.divisor == 1.0f && !misplaced) return;
  ForThreads([&](unsigned thread) {
    uint64_t begin = (uint64_t{block} * kThreads + thread) * kFour;
    if (begin >= args.count) return;
    auto first = static_cast<uint32_t>(begin);
    Four sums = LoadFour<float>(args.sums, first, args.count);
    SMDDP_UNROLL
    for (float& sum : sums.at) {
      if (args.divisor != 1.0f) sum /= args.divisor;
      if (misplaced) sum = FromBits(0x7fc00000u);
    }
    StoreFourAs<T>(args.out, first, args.count, sums);
  });
}

}  // namespace smddp

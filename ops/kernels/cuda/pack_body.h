// The body of pack and unpack: what one lane does for one tile. pack.cu compiles it for GPUs, the
// tests for the CPU, where a loop calls it for each tile and lane.
//
// All but the edges of a tensor is loaded and stored as aligned words of 16 bytes, whatever the
// alignment of the tensor: a group of elements whose destination is aligned is cut out of the
// aligned words around its source. The tensors need the alignment of their elements only.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/pack.h"
#include "kernels/cuda/words.h"

namespace smddp {

// A pointer that was loaded from memory may point anywhere, as far as the compiler knows; loads and
// stores of the GPU's own memory are cheaper.
template <typename T>
SMDDP_INLINE T* InGlobalMemory(T* pointer) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(pointer));
#endif
  return pointer;
}

// 16 bytes, of which the first is byte `past` of a, where past < 16, and the last one is in b.
SMDDP_INLINE Word Cut(Word a, Word b, unsigned past) {
  bool far = past >= kWord / 2;
  uint64_t first = far ? a.high : a.low, second = far ? b.low : a.high,
           third = far ? b.high : b.low;
  unsigned shift = past % 8 * 8;
  if (shift == 0) return {first, second};
  return {first >> shift | second << (64 - shift), second >> shift | third << (64 - shift)};
}

// The elements that are converted together: whole words on both sides.
template <typename T, unsigned kCount>
struct alignas(kWord) Group {
  T at[kCount];
};

// `from` is `past` bytes behind an aligned address.
template <typename T, unsigned kCount>
SMDDP_INLINE Group<T, kCount> LoadGroup(const char* from, unsigned past) {
  constexpr unsigned kWords = sizeof(Group<T, kCount>) / kWord;
  Word words[kWords];
  Word next = LoadWord(from - past);
  SMDDP_UNROLL
  for (unsigned w = 0; w < kWords; ++w) {
    words[w] = next;
    // An aligned group ends with its last word; the one behind it may not be ours to read.
    if (past != 0 || w + 1 < kWords) next = LoadWord(from - past + (w + 1) * kWord);
    if (past != 0) words[w] = Cut(words[w], next, past);
  }
  Group<T, kCount> group;
  std::memcpy(&group, words, sizeof group);
  return group;
}

template <typename T, unsigned kCount>
SMDDP_INLINE void StoreGroup(char* to, const Group<T, kCount>& group) {
  constexpr unsigned kWords = sizeof group / kWord;
  Word words[kWords];
  std::memcpy(words, &group, sizeof group);
  SMDDP_UNROLL
  for (unsigned w = 0; w < kWords; ++w) StoreWord(to + w * kWord, words[w]);
}

// What an element is multiplied in, and its cast to and from that.
template <typename From, typename To>
using Accumulator = std::conditional_t<std::is_same_v<From, double>, double, float>;

template <typename To, typename From, typename Acc>
SMDDP_INLINE To Converted(From x, Acc factor) {
  if constexpr (std::is_same_v<From, Byte>) {
    return x;
  } else {
    return Narrow<To>(Wide(x) * factor);
  }
}

// The part of `lane` in moving `count` elements, which are few enough for 32 bits.
template <typename From, typename To>
SMDDP_INLINE void Move(const char* from, char* to, uint32_t count, double factor, uint32_t lane) {
  constexpr uint32_t kGroup = kWord / (sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To));
  constexpr uint32_t kGroupBytes = kGroup * sizeof(From), kAtOnce = 4;
  auto scale = static_cast<Accumulator<From, To>>(factor);

  // Groups begin where the destination is aligned. One that is cut out of the words around it
  // reads whole ones, which must not reach out of what is moved: so not at either end.
  uint32_t head = (kWord - reinterpret_cast<uintptr_t>(to) % kWord) % kWord / sizeof(To);
  if (head > count) head = count;
  uint32_t before = head * sizeof(From), bytes = (count - head) * sizeof(From);
  uint32_t past = (reinterpret_cast<uintptr_t>(from) + before) % kWord;
  uint32_t lost = past == 0 ? 0 : kWord - past;
  uint32_t first = past > before ? 1 : 0;
  uint32_t groups = bytes > lost ? (bytes - lost) / kGroupBytes : 0;
  if (groups < first) groups = first = 0;

  for (uint32_t g = first + lane; g < groups; g += kAtOnce * kPackLanes) {
    // All loads come before the stores, so that they are in flight together.
    Group<From, kGroup> loaded[kAtOnce];
    SMDDP_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      uint32_t at = g + i * kPackLanes;
      if (at < groups) loaded[i] = LoadGroup<From, kGroup>(from + before + at * kGroupBytes, past);
    }
    SMDDP_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      uint32_t at = g + i * kPackLanes;
      if (at >= groups) continue;
      Group<To, kGroup> made;
      SMDDP_UNROLL
      for (uint32_t e = 0; e < kGroup; ++e) made.at[e] = Converted<To>(loaded[i].at[e], scale);
      StoreGroup(to + (head + at * kGroup) * sizeof(To), made);
    }
  }

  uint32_t lead = head + first * kGroup, tail = head + groups * kGroup;
  for (uint32_t i = lane; i < lead + count - tail; i += kPackLanes) {
    uint32_t at = i < lead ? i : tail + (i - lead);
    From one = LoadOne<From>(from + at * sizeof(From));
    StoreOne(to + at * sizeof(To), Converted<To>(one, scale));
  }
}

// The last tensor that begins at or before `at`.
SMDDP_INLINE uint64_t FindEntry(const PackArgs& args, uint64_t at) {
  uint64_t low = 0, high = args.num_entries;
  while (high - low > 1) {
    uint64_t middle = (low + high) / 2;
    (args.entries[middle].begin <= at ? low : high) = middle;
  }
  return low;
}

template <typename Tensor, typename Wire, bool kPack>
SMDDP_INLINE void RunTile(const PackArgs& args, uint64_t tile, uint32_t lane) {
  constexpr uint64_t kElements = kPackTile / sizeof(Wire), kAlign = kPackAlign / sizeof(Wire);
  uint64_t begin = args.begin + tile * kElements;
  uint64_t end = begin + kElements < args.end ? begin + kElements : args.end;
  if (begin >= end) return;

  for (uint64_t i = FindEntry(args, begin); i < args.num_entries; ++i) {
    PackEntry entry = args.entries[i];
    if (entry.begin >= end) return;
    uint64_t first = begin > entry.begin ? begin : entry.begin, stop = entry.begin + entry.count;
    uint64_t last = stop < end ? stop : end;
    if (first >= last) continue;  // the tile begins where the tensor and its padding end
    auto count = static_cast<uint32_t>(last - first);
    uint64_t skip = (first - entry.begin) * sizeof(Tensor);
    char* wire = static_cast<char*>(args.wire) + (first - args.begin) * sizeof(Wire);
    if constexpr (!kPack) {
      char* out = static_cast<char*>(InGlobalMemory(entry.out)) + skip;
      Move<Wire, Tensor>(wire, out, count, args.factor, lane);
    } else {
      const char* in = static_cast<const char*>(InGlobalMemory(entry.in)) + skip;
      Move<Tensor, Wire>(in, wire, count, args.factor, lane);
      uint64_t padding = last == stop ? (kAlign - entry.count % kAlign) % kAlign : 0;
      for (uint64_t p = lane; p < padding; p += kPackLanes) {
        StoreOne(wire + (count + p) * sizeof(Wire), Wire{});
      }
    }
  }
}

template <typename Tensor, typename Wire>
SMDDP_INLINE void Pack(const PackArgs& args, uint64_t tile, uint32_t lane) {
  RunTile<Tensor, Wire, true>(args, tile, lane);
}

template <typename Tensor, typename Wire>
SMDDP_INLINE void Unpack(const PackArgs& args, uint64_t tile, uint32_t lane) {
  RunTile<Tensor, Wire, false>(args, tile, lane);
}

}  // namespace smddp

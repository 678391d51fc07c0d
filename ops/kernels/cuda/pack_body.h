// The body of pack and unpack: what one lane does for one tile. pack.cu compiles it for GPUs, the
// tests for the CPU, where a loop calls it for each tile and lane.
//
// All but the edges of a tensor is loaded and stored as aligned words of 16 bytes, or of 8 on the
// side of a narrower type, whatever the
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

// The same of 8 bytes, where 0 < past < 8.
SMDDP_INLINE HalfWord Cut(HalfWord a, HalfWord b, unsigned past) {
  return {a.bits >> (8 * past) | b.bits << (64 - 8 * past)};
}

// What a lane moves at a time: as many elements as a word has of the wider type, so that lanes side
// by side load and store what lies side by side.
template <typename From, typename To>
constexpr unsigned kGroup = kWord / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));

// A group of T is a word, or half of one.
template <unsigned kBytes>
using WordOf = std::conditional_t<kBytes == kWord, Word, HalfWord>;

// A word whose first byte is `past` bytes behind an aligned address.
template <typename W, bool kAligned>
SMDDP_INLINE W LoadAcross(const char* from, unsigned past) {
  // An aligned one is all there is to load: what lies behind it may not be ours to read.
  if constexpr (kAligned) return LoadWord<W>(from);
  return Cut(LoadWord<W>(from - past), LoadWord<W>(from - past + sizeof(W)), past);
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

// The elements of a word, converted.
template <typename From, typename To, typename Acc>
SMDDP_INLINE auto ConvertedWord(WordOf<kGroup<From, To> * sizeof(From)> word, Acc factor) {
  if constexpr (std::is_same_v<From, Byte>) {
    return word;
  } else {
    constexpr unsigned kCount = kGroup<From, To>;
    From from[kCount];
    To to[kCount];
    WordOf<sizeof to> made;
    std::memcpy(from, &word, sizeof from);
    SMDDP_UNROLL
    for (unsigned e = 0; e < kCount; ++e) to[e] = Narrow<To>(Wide(from[e]) * factor);
    std::memcpy(&made, to, sizeof made);
    return made;
  }
}

// Moves the groups [first, groups), of which `from` has the first byte of group 0.
template <typename From, typename To, bool kAligned, typename Acc>
SMDDP_INLINE void MoveGroups(const char* from, char* to, uint32_t first, uint32_t groups,
                             uint32_t past, Acc factor, uint32_t lane) {
  using FromWord = WordOf<kGroup<From, To> * sizeof(From)>;
  using ToWord = WordOf<kGroup<From, To> * sizeof(To)>;
  for (uint32_t g = first + lane; g < groups; g += kPackAtOnce * kPackLanes) {
    // All loads come before the stores, so that they are in flight together.
    FromWord loaded[kPackAtOnce] = {};
    SMDDP_UNROLL
    for (uint32_t i = 0; i < kPackAtOnce; ++i) {
      uint32_t at = g + i * kPackLanes;
      if (at < groups) {
        loaded[i] = LoadAcross<FromWord, kAligned>(from + at * sizeof(FromWord), past);
      }
    }
    SMDDP_UNROLL
    for (uint32_t i = 0; i < kPackAtOnce; ++i) {
      uint32_t at = g + i * kPackLanes;
      if (at < groups) {
        StoreWord<ToWord>(to + at * sizeof(ToWord), ConvertedWord<From, To>(loaded[i], factor));
      }
    }
  }
}

// The part of `lane` in moving `count` elements, which are few enough for 32 bits.
template <typename From, typename To>
SMDDP_INLINE void Move(const char* from, char* to, uint32_t count, double factor, uint32_t lane) {
  constexpr uint32_t kLoaded = kGroup<From, To> * sizeof(From);
  constexpr uint32_t kStored = kGroup<From, To> * sizeof(To);
  auto scale = static_cast<Accumulator<From, To>>(factor);

  // Groups begin where the destination is aligned. One that is cut out of the words around it
  // reads whole ones, which must not reach out of what is moved: so not at either end.
  uint32_t head = (kStored - reinterpret_cast<uintptr_t>(to) % kStored) % kStored / sizeof(To);
  if (head > count) head = count;
  uint32_t before = head * sizeof(From), bytes = (count - head) * sizeof(From);
  uint32_t past = (reinterpret_cast<uintptr_t>(from) + before) % kLoaded;
  uint32_t lost = past == 0 ? 0 : kLoaded - past;
  uint32_t first = past > before ? 1 : 0;
  uint32_t groups = bytes > lost ? (bytes - lost) / kLoaded : 0;
  if (groups < first) groups = first = 0;

  const char* source = from + before;
  char* target = to + head * sizeof(To);
  if (past == 0) {
    MoveGroups<From, To, true>(source, target, first, groups, past, scale, lane);
  } else {
    MoveGroups<From, To, false>(source, target, first, groups, past, scale, lane);
  }

  uint32_t lead = head + first * kGroup<From, To>, tail = head + groups * kGroup<From, To>;
  for (uint32_t i = lane; i < lead + count - tail; i += kPackLanes) {
    uint32_t at = i < lead ? i : tail + (i - lead);
    From one = LoadOne<From>(from + at * sizeof(From));
    StoreOne(to + at * sizeof(To), Converted<To>(one, scale));
  }
}

// The last tensor that begins at or before `at`.
SMDDP_INLINE uint64_t FindEntry(const PackArgs& args, uint64_t at) {
  uint64_t low = 0, high = args.num_entries;
#if defined(__CUDA_ARCH__)
  // A warp's lanes, which all look for the same one, divide what is left into as many parts.
  uint32_t lane = threadIdx.x % kPackLanes;
  while (high - low > 1) {
    uint64_t part = (high - low + kPackLanes - 1) / kPackLanes, mine = low + lane * part;
    bool begun = mine < high && args.entries[mine].begin <= at;
    uint32_t last = 31 - __clz(static_cast<int>(__ballot_sync(~0u, begun)));
    low += last * part;
    high = low + part < high ? low + part : high;
  }
#else
  while (high - low > 1) {
    uint64_t middle = (low + high) / 2;
    (args.entries[middle].begin <= at ? low : high) = middle;
  }
#endif
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

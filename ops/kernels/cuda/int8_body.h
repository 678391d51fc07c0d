// Bodies of the kernels for int8 compression: what a warp does for one chunk of kInt8Chunk
// elements.
//
// Each lane has 8 of them, in words of 16 bytes of which the warp's lanes have consecutive ones, so
// that a warp loads and stores without gaps.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda/compress.h"
#include "kernels/cuda/lanes.h"
#include "kernels/cuda/words.h"
#include "kernels/int8.h"

namespace smddp {

// How a lane's elements of a chunk lie.
template <typename T>
struct ChunkOf {
  static constexpr unsigned kWords = kInt8Chunk * sizeof(T) / kWord / kLanes;  // of a lane
  static constexpr unsigned kEach = kWord / sizeof(T);                         // in a word
};
constexpr unsigned kOfLane = kInt8Chunk / kLanes;

struct LaneFloats {
  float at[kOfLane];
};

// The first element of word w of a lane.
template <typename T>
SMDDP_INLINE unsigned ElementOf(unsigned lane, unsigned w) {
  return (w * kLanes + lane) * ChunkOf<T>::kEach;
}

SMDDP_INLINE bool IsAligned(const void* address, unsigned to) {
  return reinterpret_cast<uintptr_t>(address) % to == 0;
}

// The first `n` elements of a chunk exist; the others are zero.
template <typename T>
SMDDP_INLINE void LoadChunk(const char* from, uint32_t n, unsigned lane, float (&to)[kOfLane]) {
  constexpr unsigned kEach = ChunkOf<T>::kEach;
  bool words = n == kInt8Chunk && IsAligned(from, kWord);
  Word word[ChunkOf<T>::kWords];
  SMDDP_UNROLL
  for (unsigned w = 0; w < ChunkOf<T>::kWords && words; ++w) {
    word[w] = LoadWord(from + ElementOf<T>(lane, w) * sizeof(T));
  }
  SMDDP_UNROLL
  for (unsigned w = 0; w < ChunkOf<T>::kWords; ++w) {
    T in[kEach];
    if (words) std::memcpy(in, &word[w], kWord);
    SMDDP_UNROLL
    for (unsigned e = 0; e < kEach; ++e) {
      unsigned i = ElementOf<T>(lane, w) + e;
      if (!words) in[e] = i < n ? LoadOne<T>(from + i * sizeof(T)) : T{};
      to[w * kEach + e] = static_cast<float>(Wide(in[e]));
    }
  }
}

template <typename T>
SMDDP_INLINE void StoreChunk(const float (&from)[kOfLane], uint32_t n, unsigned lane, char* to) {
  constexpr unsigned kEach = ChunkOf<T>::kEach;
  SMDDP_UNROLL
  for (unsigned w = 0; w < ChunkOf<T>::kWords; ++w) {
    unsigned first = ElementOf<T>(lane, w);
    T out[kEach];
    SMDDP_UNROLL
    for (unsigned e = 0; e < kEach; ++e) out[e] = Narrow<T>(from[w * kEach + e]);
    if (n == kInt8Chunk) {
      Word word;
      std::memcpy(&word, out, kWord);
      StoreWord(to + first * sizeof(T), word);
      continue;
    }
    SMDDP_UNROLL
    for (unsigned e = 0; e < kEach; ++e) {
      if (first + e < n) StoreOne(to + (first + e) * sizeof(T), out[e]);
    }
  }
}

// The codes of a lane's word of T are an integer.
template <unsigned kBytes>
struct CodesOf;
template <>
struct CodesOf<2> {
  using Type = uint16_t;
};
template <>
struct CodesOf<4> {
  using Type = uint32_t;
};
template <>
struct CodesOf<8> {
  using Type = uint64_t;
};

template <typename T>
SMDDP_INLINE void QuantizeChunk(const Int8QuantizeArgs& args, uint64_t chunk) {
  constexpr unsigned kEach = ChunkOf<T>::kEach;
  uint64_t begin = chunk * kInt8Chunk, left = args.count - begin;
  if (begin >= args.count) return;
  auto n = static_cast<uint32_t>(left < kInt8Chunk ? left : kInt8Chunk);
  const char* in = static_cast<const char*>(args.in) + begin * sizeof(T);

  OfLanes<LaneFloats> floats;
  OfLanes<int32_t> magnitudes;
  ForLanes([&](unsigned lane) {
    float (&x)[kOfLane] = Of(floats, lane).at;
    LoadChunk<T>(in, n, lane, x);
    int32_t largest = 0;
    SMDDP_UNROLL
    for (float one : x) {
      int32_t magnitude = Magnitude(one);
      largest = magnitude > largest ? magnitude : largest;
    }
    Of(magnitudes, lane) = largest;
  });
  float scale = Int8Scale(LargestOf(magnitudes));
  auto* codes = reinterpret_cast<char*>(args.codes + begin);
  ForLanes([&](unsigned lane) {
    if (lane == 0) args.scales[chunk] = scale;
    SMDDP_UNROLL
    for (unsigned w = 0; w < ChunkOf<T>::kWords; ++w) {
      int8_t part[kEach];
      SMDDP_UNROLL
      for (unsigned e = 0; e < kEach; ++e) {
        part[e] = Int8Code(Of(floats, lane).at[w * kEach + e], scale);
      }
      typename CodesOf<kEach>::Type packed;
      std::memcpy(&packed, part, kEach);
      StoreOne(codes + ElementOf<T>(lane, w), packed);
    }
  });
}

// Int8Value() of the e-th of four codes whose upper bits are flipped: byte e is the code + 128,
// which is put into the lowest bits of 2^23 and subtracted with it. GPUs convert integers at an
// eighth of the rate at which they add.
SMDDP_INLINE float ValueOfFlipped(uint32_t four, unsigned e, float scale) {
#if defined(__CUDA_ARCH__)
  uint32_t bits = __byte_perm(four, 0x4b000000u, 0x7440u + e);
#else
  uint32_t bits = 0x4b000000u | (four >> 8 * e & 0xff);
#endif
  return (FromBits(bits) - 8388736.0f) * scale;
}

// Adds one rank's codes, or, of the first rank, sets `sums`: 0 + -0 would be 0.
template <typename T, bool kFirst>
SMDDP_INLINE void AddCodes(const int8_t* codes, float scale, unsigned lane,
                           float (&sums)[kOfLane]) {
  constexpr unsigned kEach = ChunkOf<T>::kEach;
  using Codes = typename CodesOf<kEach>::Type;
  SMDDP_UNROLL
  for (unsigned w = 0; w < ChunkOf<T>::kWords; ++w) {
    const char* at = reinterpret_cast<const char*>(codes) + ElementOf<T>(lane, w);
    uint64_t flipped = LoadOne<Codes>(at) ^ static_cast<Codes>(0x8080808080808080u);
    const uint32_t fours[] = {static_cast<uint32_t>(flipped), static_cast<uint32_t>(flipped >> 32)};
    SMDDP_UNROLL
    for (unsigned e = 0; e < kEach; ++e) {
      float value = ValueOfFlipped(fours[e / 4], e % 4, scale), *sum = &sums[w * kEach + e];
      *sum = kFirst ? value : *sum + value;
    }
  }
}

template <typename T>
SMDDP_INLINE void SumChunk(const Int8SumArgs& args, uint64_t chunk) {
  uint64_t begin = chunk * kInt8Chunk, left = args.count - begin;
  if (begin >= args.count) return;
  auto n = static_cast<uint32_t>(left < kInt8Chunk ? left : kInt8Chunk);
  uint64_t chunks = (args.count + kInt8Chunk - 1) / kInt8Chunk;

  ForLanes([&](unsigned lane) {
    float sums[kOfLane];
    AddCodes<T, true>(args.codes + begin, args.scales[chunk], lane, sums);
    SMDDP_UNROLL_BY_4
    for (uint32_t r = 1; r < args.ranks; ++r) {
      uint64_t at = r * chunks + chunk;
      AddCodes<T, false>(args.codes + at * kInt8Chunk, args.scales[at], lane, sums);
    }
    if (args.divisor != 1.0f) {
      SMDDP_UNROLL
      for (float& sum : sums) sum /= args.divisor;
    }
    StoreChunk<T>(sums, n, lane, static_cast<char*>(args.out) + begin * sizeof(T));
  });
}

}  // namespace smddp

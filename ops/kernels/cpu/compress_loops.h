// The loops of the compressors, compiled once per SIMD level as reduce_loops.h is.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/compress.h"
#include "kernels/cpu/convert_loops.h"
#include "kernels/int8.h"

namespace smddp {
namespace SMDDP_ISA {

// A chunk or less as float32: itself, or `space` with what is missing filled with zeros.
template <typename T>
inline const float* Chunk(const T* in, size_t n, float* space) {
  if constexpr (std::is_same_v<T, float>) {
    if (n == kInt8Chunk) return in;
  }
  Load(in, space, n);
  for (size_t i = n; i < kInt8Chunk; ++i) space[i] = 0;
  return space;
}

template <typename T>
void Quantize(const void* in, size_t count, int8_t* codes, float* scales) {
  alignas(64) float space[kInt8Chunk];
  for (size_t at = 0; at < count; at += kInt8Chunk, codes += kInt8Chunk) {
    size_t n = count - at < kInt8Chunk ? count - at : kInt8Chunk;
    const float* chunk = Chunk(static_cast<const T*>(in) + at, n, space);
    int32_t largest = 0;
    for (size_t i = 0; i < kInt8Chunk; ++i) {
      int32_t magnitude = Magnitude(chunk[i]);
      largest = magnitude > largest ? magnitude : largest;
    }
    float scale = Int8Scale(largest);
    *scales++ = scale;
    for (size_t i = 0; i < kInt8Chunk; ++i) codes[i] = Int8Code(chunk[i], scale);
  }
}

template <typename T>
inline void Finished(const float* sums, float divisor, T* out, size_t n, float* space) {
  if (divisor == 1.0f) return Store(sums, out, n);
  for (size_t i = 0; i < n; ++i) space[i] = sums[i] / divisor;
  Store(static_cast<const float*>(space), out, n);
}

template <typename T>
void SumInt8(const int8_t* codes, const float* scales, size_t ranks, float divisor, void* out,
             size_t count) {
  size_t chunks = Int8Chunks(count);
  alignas(64) float sums[kInt8Chunk];
  for (size_t c = 0; c < chunks; ++c) {
    for (size_t r = 0; r < ranks; ++r) {
      const int8_t* part = codes + (r * chunks + c) * kInt8Chunk;
      float scale = scales[r * chunks + c];
      if (r == 0) {
        for (size_t i = 0; i < kInt8Chunk; ++i) sums[i] = Int8Value(part[i], scale);
      } else {
        for (size_t i = 0; i < kInt8Chunk; ++i) sums[i] += Int8Value(part[i], scale);
      }
    }
    size_t at = c * kInt8Chunk, n = count - at < kInt8Chunk ? count - at : kInt8Chunk;
    Finished(sums, divisor, static_cast<T*>(out) + at, n, sums);
  }
}

template <typename T>
void Add(const void* in, const float* kept, float* total, size_t count) {
  alignas(64) float space[kInt8Chunk];
  for (size_t at = 0; at < count; at += kInt8Chunk) {
    size_t n = count - at < kInt8Chunk ? count - at : kInt8Chunk;
    Load(static_cast<const T*>(in) + at, space, n);
    for (size_t i = 0; i < n; ++i) total[at + i] = space[i] + kept[at + i];
  }
}

// Few elements are large, so 32 at a time are looked at first.
size_t Above(const float* total, size_t count, int32_t threshold, int32_t first_index,
             int32_t* found_indices, int32_t* found_magnitudes) {
  constexpr size_t kAtOnce = 32;
  size_t found = 0;
  for (size_t at = 0; at < count; at += kAtOnce) {
    size_t n = count - at < kAtOnce ? count - at : kAtOnce;
    int32_t magnitudes[kAtOnce];
    int32_t largest = -1;
    for (size_t i = 0; i < n; ++i) {
      magnitudes[i] = Magnitude(total[at + i]);
      largest = magnitudes[i] > largest ? magnitudes[i] : largest;
    }
    if (largest <= threshold) continue;
    for (size_t i = 0; i < n; ++i) {
      found_indices[found] = first_index + static_cast<int32_t>(at + i);
      found_magnitudes[found] = magnitudes[i];
      found += magnitudes[i] > threshold ? 1 : 0;
    }
  }
  return found;
}

template <typename T>
void Finish(const float* sums, float divisor, void* out, size_t count) {
  alignas(64) float space[kInt8Chunk];
  for (size_t at = 0; at < count; at += kInt8Chunk) {
    size_t n = count - at < kInt8Chunk ? count - at : kInt8Chunk;
    Finished(sums + at, divisor, static_cast<T*>(out) + at, n, space);
  }
}

template <typename T>
inline constexpr CompressLoops kLoops = {Quantize<T>, SumInt8<T>, Add<T>, Above, Finish<T>};

const CompressLoops& CompressLoopsOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return kLoops<double>;
    case DType::kFloat16:
      return kLoops<Half>;
    case DType::kBfloat16:
      return kLoops<Bfloat16>;
    default:
      return kLoops<float>;
  }
}

}  // namespace SMDDP_ISA
}  // namespace smddp

// What the compressors that gather do with a gradient (smddp_tf/_src/compression/), on the host.
// All arithmetic is float32, whatever the gradient's dtype.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/status.h"

namespace smddp {

// Codes of whole chunks, the last one filled with zeros, and a scale for each.
void Int8Quantize(DType dtype, const void* in, size_t count, int8_t* codes, float* scales);

// Sums what `ranks` ranks made of `count` elements, one rank's behind the other's, in their order,
// and divides the sum.
void Int8Sum(const int8_t* codes, const float* scales, size_t ranks, float divisor, DType dtype,
             void* out, size_t count);

// Of in + kept, the k elements of the largest magnitude, 1 <= k <= count <= 2^31 - 1: their
// indices, ascending, and values. Of equal magnitudes the lower indices come first; NaNs count as
// infinities. residual: in + kept, with zeros where an element was taken.
void TopkSelect(DType dtype, const void* in, const float* kept, size_t count, size_t k,
                int32_t* indices, float* values, float* residual);

// Adds up, in the order of the ranks, what `ranks` ranks selected of `count` elements, k each, and
// divides the sum. Fails if an index is out of range.
[[nodiscard]] Status TopkSum(const int32_t* indices, const float* values, size_t ranks, size_t k,
                             float divisor, DType dtype, void* out, size_t count);

// The dtypes of gradients that are compressed.
inline bool IsFloating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 ||
         dtype == DType::kBfloat16;
}

// ---- the loops of one SIMD level (compress_loops.h), for a floating dtype -----------------------

struct CompressLoops {
  void (*quantize)(const void* in, size_t count, int8_t* codes, float* scales);
  void (*sum_int8)(const int8_t* codes, const float* scales, size_t ranks, float divisor, void* out,
                   size_t count);
  void (*add)(const void* in, const float* kept, float* total, size_t count);
  // Appends the elements above a magnitude, with the bits of their magnitudes, in order. `found`
  // has room for `count` more. Returns how many there are.
  size_t (*above)(const float* total, size_t count, int32_t threshold, int32_t first_index,
                  int32_t* found_indices, int32_t* found_magnitudes);
  void (*finish)(const float* sums, float divisor, void* out, size_t count);  // out may be sums
};

const CompressLoops& FindCompressLoops(DType dtype);

}  // namespace smddp

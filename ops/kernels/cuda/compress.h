// The kernels of compressors: what kernels/cpu/compress.h does with arrays in a GPU's memory, with
// the same results. Declarations; the bodies are in int8_body.h, topk_select_body.h and
// topk_sum_body.h.
//
// Codes, totals, sums and `out` begin at multiples of 16 bytes, as what TensorFlow allocates does;
// all other arrays need the alignment of their elements only. Each kernel's one parameter is a
// structure. Counts are in elements.
#pragma once

#include <cstdint>

#include "kernels/half.h"

namespace smddp {

struct Int8QuantizeArgs {
  const void* in;
  int8_t* codes;
  float* scales;
  uint64_t count;
};

struct Int8SumArgs {
  const int8_t* codes;
  const float* scales;
  void* out;
  uint64_t count;
  uint32_t ranks;
  float divisor;
};

inline constexpr unsigned kTopkBins = 2048;

// What the kernels of one selection leave for those that follow.
struct TopkState {
  uint32_t prefix;  // the upper bits of the k-th largest magnitude, as far as they are known
  uint32_t need;    // how many are selected of those elements whose magnitudes begin so
  uint32_t bins[kTopkBins];  // how many of these have which bits next
};

struct TopkSelectArgs {
  const void* in;
  const float* kept;
  float* total;  // in + kept, and at last the residual
  int32_t* indices;
  float* values;
  TopkState* state;
  uint64_t* tiles;  // of each tile: how many are above the threshold, in the upper half, and equal
  uint32_t count, k;
  uint32_t shift, bits;  // of the magnitudes' bits, those that bins are of
};

struct TopkSumArgs {
  const int32_t* indices;  // of one rank, as the values
  const float* values;
  float* sums;
  void* out;            // may be sums
  uint32_t* misplaced;  // not 0: some index is out of range
  uint32_t count, k;
  float divisor;
};

// Each warp has one of them.
inline constexpr uint32_t kTopkTile = 2048;
inline uint32_t TopkTiles(uint32_t count) { return (count - 1) / kTopkTile + 1; }

// The kernels smddp_NAME: NAME, body, parameter. A body of WARPS is what a warp does,
// body(args, warp); one of BLOCKS is what a block does, body(args, block, blocks, shared), with
// kSharedBytes that its threads share.
inline constexpr unsigned kSharedBytes = kTopkBins * sizeof(uint32_t);
#define SMDDP_GRADIENT_KERNELS(WARPS, BLOCKS, dtype, type)            \
  WARPS(int8_quantize_##dtype, QuantizeChunk<type>, Int8QuantizeArgs) \
  WARPS(int8_sum_##dtype, SumChunk<type>, Int8SumArgs)                \
  BLOCKS(topk_add_##dtype, AddAndCountBins<type>, TopkSelectArgs)     \
  BLOCKS(topk_finish_##dtype, FinishSums<type>, TopkSumArgs)

#define SMDDP_COMPRESS_KERNELS(WARPS, BLOCKS)               \
  SMDDP_GRADIENT_KERNELS(WARPS, BLOCKS, float32, float)     \
  SMDDP_GRADIENT_KERNELS(WARPS, BLOCKS, float64, double)    \
  SMDDP_GRADIENT_KERNELS(WARPS, BLOCKS, float16, Half)      \
  SMDDP_GRADIENT_KERNELS(WARPS, BLOCKS, bfloat16, Bfloat16) \
  BLOCKS(topk_begin, BeginSelecting, TopkSelectArgs)        \
  BLOCKS(topk_bins, CountBins, TopkSelectArgs)              \
  BLOCKS(topk_narrow, NarrowPrefix, TopkSelectArgs)         \
  WARPS(topk_count, CountTile, TopkSelectArgs)              \
  BLOCKS(topk_scan, SumUpTiles, TopkSelectArgs)             \
  WARPS(topk_take, TakeFromTile, TopkSelectArgs)            \
  BLOCKS(topk_clear, ClearSums, TopkSumArgs)                \
  BLOCKS(topk_scatter, AddRank, TopkSumArgs)

}  // namespace smddp

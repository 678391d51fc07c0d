// Pack and unpack: between the tensors of a bucket and one buffer, the wire, that NCCL reduces.
// Packing gathers the tensors, casts them to the type of the wire and multiplies by a factor;
// unpacking does the reverse. Declarations; the body is in pack_body.h.
//
// On the wire each tensor begins at a multiple of kPackAlign bytes; what is between the end
// of a tensor and the next such multiple is zero. A kernel gets the tensors as a table in the
// device's memory, so one launch does however many there are: parameters of a kernel are limited to
// 4 KiB, which is about a hundred tensors.
#pragma once

#include <cstdint>

#include "kernels/half.h"

namespace smddp {

// Offsets and counts are in elements. Aligned, so that a GPU loads it as two words.
struct alignas(16) PackEntry {
  const void* in;
  void* out;
  uint64_t begin;  // on the wire of the whole bucket
  uint64_t count;  // not 0
};

// The one parameter of each kernel.
struct PackArgs {
  const PackEntry* entries;  // by `begin`, the first of which is 0
  uint64_t num_entries;
  void* wire;           // holds [begin, end) of the bucket's wire; aligned like a tensor on it
  uint64_t begin, end;  // multiples of kPackAlign bytes
  double factor;        // in float32, or in float64 for float64
};

struct Byte {
  uint8_t bits;
};

// The kernels smddp_pack_NAME and smddp_unpack_NAME: name, type of the tensors, type of the wire.
// `bytes` moves any dtype as it is, so counts are bytes there and the factor is ignored.
#define SMDDP_PACK_KERNELS(KERNEL) \
  KERNEL(bytes, Byte, Byte)        \
  KERNEL(float32, float, float)    \
  KERNEL(float64, double, double)  \
  KERNEL(float16, Half, float)     \
  KERNEL(bfloat16, Bfloat16, float)

enum class PackType {
#define SMDDP_PACK_NAME(name, tensor, wire) name,
  SMDDP_PACK_KERNELS(SMDDP_PACK_NAME)
#undef SMDDP_PACK_NAME
};

inline constexpr uint64_t kPackAlign = 128;  // a line of the GPU's cache
// Each group of kPackLanes threads, which run in step (a warp), moves one tile of the wire.
inline constexpr uint64_t kPackTile = 4096;  // bytes
inline constexpr unsigned kPackLanes = 32;
inline constexpr unsigned kPackAtOnce = 8;     // words that a lane loads before it stores any
inline constexpr unsigned kPackThreads = 256;  // of a block

inline uint64_t PackAligned(uint64_t bytes) {
  return (bytes + kPackAlign - 1) / kPackAlign * kPackAlign;
}
// For `bytes` of the wire.
inline unsigned PackBlocks(uint64_t bytes) {
  constexpr uint64_t kOfBlock = kPackTile * (kPackThreads / kPackLanes);
  return static_cast<unsigned>((bytes + kOfBlock - 1) / kOfBlock);
}

}  // namespace smddp

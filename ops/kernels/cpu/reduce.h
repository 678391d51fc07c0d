// Element-wise reduction of several buffers into one: pure loops, independent of ranks.
//
// Three stages exist so that partial sums can travel between nodes in a wider type than the
// tensor's own (float32 for 16-bit floats):
//   kFull:    tensor type  -> tensor type, scaled
//   kPartial: tensor type  -> accumulator type
//   kFinish:  accumulator type -> tensor type, scaled
// Sources are combined in the given order, so the result is bitwise the same wherever it is
// computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/dtype.h"

namespace smddp {

enum class Combine : int { kSum = 0, kMin = 1, kMax = 2, kProduct = 3 };
enum class ReduceStage : int { kFull = 0, kPartial = 1, kFinish = 2 };

struct ReduceArgs {
  const void* const* sources = nullptr;
  int num_sources = 0;
  size_t count = 0;      // elements
  void* out = nullptr;   // may be one of the sources
  void* copy = nullptr;  // a second copy of the result, unless nullptr
  double scale = 1.0;    // applied to the result
  int64_t divisor = 1;   // of integers, exact, truncated after both; floats divide by `scale`
  // The copy bypasses the caches; StreamFence() (kernels/cpu/copy.h) comes before it is published.
  bool stream_copy = false;
};

using ReduceFn = void (*)(const ReduceArgs&);

// Never nullptr for a dtype with accum_size > 0.
ReduceFn FindReduce(DType dtype, Combine combine, ReduceStage stage);

// Caps the SIMD level ("generic", "avx2", "avx512", "neon"; empty: the best available). Not
// thread-safe: called at init.
void SetIsa(const std::string& isa);
const char* IsaName();
// The levels that this library contains, with blanks between them.
std::string CompiledIsas();

}  // namespace smddp

// The reduction loops, compiled once per SIMD level: the including file defines SMDDP_ISA (a
// namespace) and is compiled with that level's flags. The compiler vectorizes the loops. No include
// guard: exactly one inclusion per translation unit.
//
// The levels give the same bits, in NaNs too: the conversions in C++ do what the instructions do.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/cpu/convert_loops.h"
#include "kernels/cpu/copy.h"
#include "kernels/cpu/reduce.h"
#include "kernels/half.h"

// Tells the compiler that no iteration of the next loop depends on another.
#if defined(__clang__)
#define SMDDP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define SMDDP_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace smddp {
namespace SMDDP_ISA {

// Elements per block: the accumulators stay in the L1 cache.
constexpr size_t kBlock = 1024;

// Integers wrap, as in TensorFlow; signed overflow would be undefined, so add as unsigned.
template <typename Acc>
inline Acc WrapAdd(Acc a, Acc b) {
  if constexpr (std::is_integral_v<Acc>) {
    using U = std::make_unsigned_t<Acc>;
    return static_cast<Acc>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}
template <typename Acc>
inline Acc WrapMultiply(Acc a, Acc b) {
  if constexpr (std::is_integral_v<Acc>) {
    using U = std::make_unsigned_t<Acc>;
    return static_cast<Acc>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    return a * b;
  }
}

// b if it is a NaN, which alone differs from itself. The comparisons for `picked` leave a NaN in a.
template <typename Acc>
inline Acc NaNOr(Acc b, Acc picked) {
  return b != b ? b : picked;
}

template <Combine kOp, typename Acc>
inline Acc Apply(Acc a, Acc b) {
  if constexpr (kOp == Combine::kSum) return WrapAdd(a, b);
  if constexpr (kOp == Combine::kMin) return NaNOr(b, b < a ? b : a);
  if constexpr (kOp == Combine::kMax) return NaNOr(b, a < b ? b : a);
  if constexpr (kOp == Combine::kProduct) return WrapMultiply(a, b);
}

template <typename Acc>
inline void Finish(Acc* acc, size_t n, const ReduceArgs& args) {
  if constexpr (std::is_integral_v<Acc>) {
    if (args.scale != 1.0) {
      // Truncated once, at the end; long double holds every int64 exactly.
      for (size_t i = 0; i < n; ++i) {
        acc[i] = static_cast<Acc>(static_cast<long double>(acc[i]) * args.scale / args.divisor);
      }
    } else if (args.divisor != 1) {
      for (size_t i = 0; i < n; ++i) acc[i] = static_cast<Acc>(acc[i] / args.divisor);
    }
  } else if (args.scale != 1.0) {
    Acc scale = static_cast<Acc>(args.scale);
    for (size_t i = 0; i < n; ++i) acc[i] *= scale;
  }
}

// Elements up to the last line boundary within a block from `at` on; kBlock if elements straddle
// lines.
template <typename T>
inline size_t BlockToLine(const T* at) {
  constexpr size_t kLine = 64;
  size_t past = reinterpret_cast<uintptr_t>(at) % kLine;
  return past % sizeof(T) == 0 ? kBlock - past / sizeof(T) : kBlock;
}

// The common case of two ranks and a floating type, in a single pass. `out` may alias a source:
// each iteration reads element i before it writes element i.
template <Combine kOp, typename T>
void ReduceTwo(const ReduceArgs& args) {
  const T* a = static_cast<const T*>(args.sources[0]);
  const T* b = static_cast<const T*>(args.sources[1]);
  T* out = static_cast<T*>(args.out);
  T* copy = static_cast<T*>(args.copy);
  T scale = static_cast<T>(args.scale);
  if (copy == nullptr) {
    SMDDP_INDEPENDENT
    for (size_t i = 0; i < args.count; ++i) out[i] = Apply<kOp>(a[i], b[i]) * scale;
    return;
  }
  if (args.stream_copy) {
    // The first block ends where a line of the copy does, so that every line is written at once.
    size_t n = BlockToLine(copy);
    for (size_t at = 0; at < args.count; at += n, n = kBlock) {
      n = n < args.count - at ? n : args.count - at;
      SMDDP_INDEPENDENT
      for (size_t i = at; i < at + n; ++i) out[i] = Apply<kOp>(a[i], b[i]) * scale;
      StreamBytes(copy + at, out + at, n * sizeof(T));
    }
    return;
  }
  SMDDP_INDEPENDENT
  for (size_t i = 0; i < args.count; ++i) {
    T value = Apply<kOp>(a[i], b[i]) * scale;
    out[i] = value;
    copy[i] = value;
  }
}

template <Combine kOp, typename In, typename Acc, typename Out, bool kScaled>
void Reduce(const ReduceArgs& args) {
  if constexpr (kScaled && std::is_floating_point_v<In> && std::is_same_v<In, Out>) {
    if (args.num_sources == 2) return ReduceTwo<kOp, In>(args);
  }
  alignas(64) Acc acc[kBlock];
  alignas(64) Acc other[kBlock];
  Out* copy = static_cast<Out*>(args.copy);
  bool stream = copy != nullptr && args.stream_copy;
  size_t n = stream ? BlockToLine(copy) : kBlock;
  for (size_t at = 0; at < args.count; at += n, n = kBlock) {
    n = args.count - at < n ? args.count - at : n;
    Load(static_cast<const In*>(args.sources[0]) + at, acc, n);
    for (int s = 1; s < args.num_sources; ++s) {
      const In* source = static_cast<const In*>(args.sources[s]) + at;
      if constexpr (std::is_same_v<In, Acc>) {
        for (size_t i = 0; i < n; ++i) acc[i] = Apply<kOp>(acc[i], source[i]);
      } else {
        Load(source, other, n);
        for (size_t i = 0; i < n; ++i) acc[i] = Apply<kOp>(acc[i], other[i]);
      }
    }
    if constexpr (kScaled) Finish(acc, n, args);
    Out* out = static_cast<Out*>(args.out) + at;
    Store(acc, out, n);
    if (stream) {
      StreamBytes(copy + at, out, n * sizeof(Out));
    } else if (copy != nullptr) {
      Store(acc, copy + at, n);
    }
  }
}

template <Combine kOp, typename T, typename Acc>
ReduceFn PickStage(ReduceStage stage) {
  switch (stage) {
    case ReduceStage::kFull:
      return Reduce<kOp, T, Acc, T, true>;
    case ReduceStage::kPartial:
      return Reduce<kOp, T, Acc, Acc, false>;
    case ReduceStage::kFinish:
      return Reduce<kOp, Acc, Acc, T, true>;
  }
  return nullptr;
}

template <typename T, typename Acc>
ReduceFn PickCombine(Combine combine, ReduceStage stage) {
  switch (combine) {
    case Combine::kSum:
      return PickStage<Combine::kSum, T, Acc>(stage);
    case Combine::kMin:
      return PickStage<Combine::kMin, T, Acc>(stage);
    case Combine::kMax:
      return PickStage<Combine::kMax, T, Acc>(stage);
    case Combine::kProduct:
      return PickStage<Combine::kProduct, T, Acc>(stage);
  }
  return nullptr;
}

ReduceFn Find(DType dtype, Combine combine, ReduceStage stage) {
  switch (dtype) {
    case DType::kFloat32:
      return PickCombine<float, float>(combine, stage);
    case DType::kFloat64:
      return PickCombine<double, double>(combine, stage);
    case DType::kFloat16:
      return PickCombine<Half, float>(combine, stage);
    case DType::kBfloat16:
      return PickCombine<Bfloat16, float>(combine, stage);
    case DType::kInt32:
      return PickCombine<int32_t, int64_t>(combine, stage);
    case DType::kInt64:
      return PickCombine<int64_t, int64_t>(combine, stage);
    case DType::kInt16:
      return PickCombine<int16_t, int32_t>(combine, stage);
    case DType::kUint8:
      return PickCombine<uint8_t, int32_t>(combine, stage);
    case DType::kInt8:
      return PickCombine<int8_t, int32_t>(combine, stage);
    default:
      return nullptr;
  }
}

}  // namespace SMDDP_ISA
}  // namespace smddp

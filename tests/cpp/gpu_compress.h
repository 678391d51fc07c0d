// What tests of compressors on a GPU have in common: the GPU of the fake driver, arrays in its
// memory, gradients of all kinds of bits, and comparisons of bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/dtype.h"
#include "kernels/half.h"
#include "memory.h"
#include "transport/cuda/compress_kernels.h"
#include "transport/cuda/cuda_device.h"

namespace smddp_test {

using namespace smddp;

using Bytes = std::vector<char>;

inline constexpr DType kGradientTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                           DType::kBfloat16};

template <typename T>
Bytes BytesOf(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// An array in the GPU's memory, behind which nobody may write.
class Array {
 public:
  explicit Array(size_t bytes)
      : bytes_(bytes), memory_(FakeAllocate(bytes + kGuard)), at_(memory_) {
    Clear();
    std::memset(Real() + bytes_, kMark, kGuard);
  }
  // Begins `shift` bytes behind an address that is a multiple of a page's size.
  explicit Array(const Bytes& content, size_t shift = 0)
      : bytes_(content.size()), memory_(FakeAllocate(shift + bytes_ + kGuard)) {
    at_ = static_cast<char*>(memory_) + shift;
    if (bytes_ != 0) std::memcpy(Real(), content.data(), bytes_);
    std::memset(Real() + bytes_, kMark, kGuard);
  }
  ~Array() { FakeFree(memory_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  void Clear() { std::memset(Real(), 0x77, bytes_); }
  void* at() const { return at_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(at_);
  }
  Bytes content() const { return Bytes(Real(), Real() + bytes_); }
  bool guarded() const {
    return std::all_of(Real() + bytes_, Real() + bytes_ + kGuard,
                       [](char c) { return c == kMark; });
  }

 private:
  char* Real() const { return FakeBytes(at_); }

  static constexpr size_t kGuard = 64;
  static constexpr char kMark = 0x5a;
  const size_t bytes_;
  void* const memory_;
  void* at_;
};

// The fake GPU with the kernels, whether or not the library was built with any.
class Gpu {
 public:
  Gpu() {
    static const uint64_t image = 0xba55ed50;  // what the fake driver takes for kernels
    Array array(1);
    Status status = CudaDevice::Find(array.at(), &device_);
    EXPECT(status.ok(), status.message());
    std::string why;
    kernels_ = CompressKernels::Find(device_, &image, &why);
    EXPECT(kernels_ != nullptr, why);
    status = device_->NewStream(&stream_);
    EXPECT(status.ok(), status.message());
  }
  CudaDevice* device() const { return device_; }
  const CompressKernels* kernels() const { return kernels_; }
  void* stream() const { return stream_; }
  void Wait() const {
    CudaDevice::Current current(device_);
    EXPECT_EQ(device_->driver().StreamSynchronize(stream_), kCudaSuccess);
  }
  // Calls enqueue(stream), and waits.
  template <typename Enqueue>
  void Run(Enqueue&& enqueue) const {
    Status status = enqueue(stream_);
    EXPECT(status.ok(), status.message());
    Wait();
  }

 private:
  CudaDevice* device_ = nullptr;
  const CompressKernels* kernels_ = nullptr;
  void* stream_ = nullptr;
};

// kFew: many of equal magnitude; kTiny: subnormals, or nearly; kAny: every pattern of bits, so that
// most are far apart, and NaNs and infinities; kSpecial: a few of these.
enum class Bits { kNormal, kFew, kTiny, kAny, kSpecial, kZero, kNan };
inline constexpr Bits kAllBits[] = {Bits::kNormal, Bits::kFew,     Bits::kTiny,
                                    Bits::kAny,    Bits::kSpecial, Bits::kZero};

inline float Number(Bits bits, std::mt19937* random) {
  std::normal_distribution<float> normal;
  float x = normal(*random);
  unsigned which = (*random)() % 200;
  switch (bits) {
    case Bits::kFew:
      return static_cast<float>(static_cast<int>(which % 7) - 3);
    case Bits::kTiny:
      return std::ldexp(x, -static_cast<int>(100 + which / 4));
    case Bits::kSpecial:
      return which == 0 ? std::nanf("") : which == 1 ? INFINITY : which == 2 ? -INFINITY : x;
    case Bits::kNan:
      return std::nanf("");
    case Bits::kZero:
      return which % 2 == 0 ? 0.0f : -0.0f;
    default:
      return x;
  }
}

inline Bytes Gradient(DType dtype, size_t count, Bits bits, unsigned seed) {
  std::mt19937 random(seed * 7 + static_cast<unsigned>(bits));
  size_t size = Info(dtype).size;
  Bytes gradient(count * size);
  if (bits == Bits::kAny) {
    for (char& byte : gradient) byte = static_cast<char>(random());
    return gradient;
  }
  for (size_t i = 0; i < count; ++i) {
    float x = Number(bits, &random);
    double wide = x;
    uint16_t half = dtype == DType::kFloat16 ? FloatToHalf(x) : FloatToBfloat16(x);
    const void* from = dtype == DType::kFloat32   ? static_cast<const void*>(&x)
                       : dtype == DType::kFloat64 ? static_cast<const void*>(&wide)
                                                  : &half;
    std::memcpy(&gradient[i * size], from, size);
  }
  return gradient;
}

template <typename T, typename IsNan>
bool SameBut(const Bytes& a, const Bytes& b, IsNan&& is_nan) {
  if (a.size() != b.size()) return false;
  for (size_t at = 0; at < a.size(); at += sizeof(T)) {
    T x, y;
    std::memcpy(&x, &a[at], sizeof x);
    std::memcpy(&y, &b[at], sizeof y);
    if (std::memcmp(&x, &y, sizeof x) != 0 && !(is_nan(x) && is_nan(y))) return false;
  }
  return true;
}

// The same bits, but for those of NaNs, which the CPU's instructions choose in other ways too.
inline bool Same(DType dtype, const Bytes& a, const Bytes& b) {
  auto floats = [](auto x) { return std::isnan(x); };
  auto half = [](uint16_t x) { return std::isnan(HalfToFloat(x)); };
  auto bfloat = [](uint16_t x) { return std::isnan(Bfloat16ToFloat(x)); };
  if (dtype == DType::kFloat32) return SameBut<float>(a, b, floats);
  if (dtype == DType::kFloat64) return SameBut<double>(a, b, floats);
  if (dtype == DType::kFloat16) return SameBut<uint16_t>(a, b, half);
  return SameBut<uint16_t>(a, b, bfloat);
}
inline bool SameFloats(const Bytes& a, const Bytes& b) { return Same(DType::kFloat32, a, b); }

inline std::string Note(DType dtype, size_t count, Bits bits) {
  return std::string(Info(dtype).name) + " " + std::to_string(count) + " of kind " +
         std::to_string(static_cast<int>(bits));
}

}  // namespace smddp_test

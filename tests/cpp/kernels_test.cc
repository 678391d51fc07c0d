// Every level of the reduction loops gives the bits of the generic one, in vectors and in their
// remainders, for all dtypes, operations and stages.
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "core/dtype.h"
#include "kernels/cpu/copy.h"
#include "kernels/cpu/reduce.h"

namespace {

using namespace smddp;
using Bytes = std::vector<char>;

// Values that are read as anything: small numbers of both signs, so that no sum is a NaN.
Bytes Numbers(DType dtype, size_t count, std::mt19937* random) {
  Bytes bytes(count * Info(dtype).size);
  for (size_t i = 0; i < count; ++i) {
    double number = std::uniform_real_distribution<double>(-100, 100)(*random);
    char* at = bytes.data() + i * Info(dtype).size;
    auto put = [&](auto value) { std::memcpy(at, &value, sizeof value); };
    switch (dtype) {
      case DType::kFloat32:
        put(static_cast<float>(number));
        break;
      case DType::kFloat64:
        put(number);
        break;
      case DType::kFloat16:  // any finite one, subnormals too
        put(static_cast<uint16_t>((*random)() % 0x7c00 | ((*random)() & 0x8000)));
        break;
      case DType::kBfloat16: {
        float value = static_cast<float>(number);
        std::memcpy(at, reinterpret_cast<char*>(&value) + 2, 2);
        break;
      }
      default:
        for (size_t b = 0; b < Info(dtype).size; ++b) at[b] = static_cast<char>((*random)());
    }
  }
  return bytes;
}

struct Case {
  DType dtype;
  Combine combine;
  ReduceStage stage;
  std::vector<Bytes> sources;
  size_t count;
  double scale;
};

// The copy past the cache begins `shift` elements into its memory, so that it meets every position
// in a line.
Bytes Run(const std::string& isa, const Case& one, size_t out_size, bool in_place, bool stream,
          size_t shift) {
  SetIsa(isa);
  std::vector<Bytes> memory = one.sources;
  std::vector<const void*> sources;
  for (const Bytes& bytes : memory) sources.push_back(bytes.data());
  constexpr char kUntouched = 0x5a;
  Bytes out(one.count * out_size), copy((one.count + shift + 1) * out_size, kUntouched);
  ReduceArgs args;
  args.sources = sources.data();
  args.num_sources = static_cast<int>(sources.size());
  args.count = one.count;
  args.out = in_place ? memory[0].data() : out.data();
  args.copy = copy.data() + shift * out_size;
  args.stream_copy = stream;
  args.scale = one.scale;
  FindReduce(one.dtype, one.combine, one.stage)(args);
  SetIsa("");
  StreamFence();
  Bytes result(static_cast<char*>(args.copy), static_cast<char*>(args.copy) + one.count * out_size);
  EXPECT(std::memcmp(args.out, result.data(), result.size()) == 0, "the result and its copy");
  for (size_t b = 0; b < shift * out_size; ++b) EXPECT_EQ(copy[b], kUntouched);
  for (size_t b = copy.size() - out_size; b < copy.size(); ++b) EXPECT_EQ(copy[b], kUntouched);
  return result;
}

void ExpectEqualOnAll(const Case& one, size_t out_size, bool in_place) {
  Bytes expected = Run("generic", one, out_size, in_place, false, 0);
  size_t shift = one.count % 64 / out_size;
  std::istringstream levels(CompiledIsas());
  for (std::string isa; levels >> isa;) {
    Bytes found = Run(isa, one, out_size, in_place, false, shift);
    Bytes streamed = Run(isa, one, out_size, in_place, true, shift);
    EXPECT(found == expected && streamed == expected,
           isa + " dtype " + std::to_string(static_cast<int>(one.dtype)) + " stage " +
               std::to_string(static_cast<int>(one.stage)) + " op " +
               std::to_string(static_cast<int>(one.combine)) + " count " +
               std::to_string(one.count));
  }
}

// What the kernel says of the processor, against what the library has found out by itself.
TEST(TheBestIsaIsChosen) {
  std::ifstream file("/proc/cpuinfo");
  std::stringstream text;
  text << file.rdbuf();
  auto has = [&](const std::string& flag) {
    return text.str().find(" " + flag + " ") != std::string::npos;
  };
  bool avx2 = has("avx2") && has("fma") && has("f16c");
  bool avx512 = has("avx512f") && has("avx512bw") && has("avx512vl") && has("avx512dq");
#if SMDDP_X86
  std::string best = avx2 && avx512 ? "avx512" : avx2 ? "avx2" : "generic";
#elif SMDDP_ARM64
  (void)avx2, (void)avx512;
  std::string best = "neon";
#else
  (void)avx2, (void)avx512;
  std::string best = "generic";
#endif
  SetIsa("");
  EXPECT_EQ(std::string(IsaName()), best);
  SetIsa("generic");
  EXPECT_EQ(std::string(IsaName()), std::string("generic"));
  SetIsa("");
}

TEST(EveryIsaReducesAlike) {
  std::mt19937 random(1);
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16,
                      DType::kInt16, DType::kInt32, DType::kInt64, DType::kUint8, DType::kInt8}) {
    for (Combine combine : {Combine::kSum, Combine::kMin, Combine::kMax, Combine::kProduct}) {
      for (size_t count : {1, 7, 8, 40, 1029}) {
        for (int n : {1, 2, 3}) {
          Case one{dtype, combine, ReduceStage::kFull, {}, count, n == 1 ? 1.0 : 1.0 / 3};
          for (int s = 0; s < n; ++s) one.sources.push_back(Numbers(dtype, count, &random));
          ExpectEqualOnAll(one, Info(dtype).size, false);
          ExpectEqualOnAll(one, Info(dtype).size, true);
          one.stage = ReduceStage::kPartial;
          ExpectEqualOnAll(one, Info(dtype).accum_size, false);
        }
      }
    }
  }
}

TEST(EveryIsaConvertsAlike) {
  // All values of 16 bits, infinities and NaNs too, and an odd number of them.
  Bytes halves(65537 * 2);
  for (uint32_t i = 0; i < 65537; ++i) std::memcpy(halves.data() + 2 * i, &i, 2);
  // Floats of every exponent, and those halfway between two values of 16 bits or beside halfway.
  std::vector<uint32_t> floats;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000,
                         0x8001, 0xf000, 0xffff}) {
      floats.push_back(high << 16 | low);
    }
  }
  Bytes wide(floats.size() * 4);
  std::memcpy(wide.data(), floats.data(), wide.size());
  for (DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    ExpectEqualOnAll({dtype, Combine::kSum, ReduceStage::kPartial, {halves}, 65537, 1}, 4, false);
    ExpectEqualOnAll({dtype, Combine::kSum, ReduceStage::kFinish, {wide}, floats.size(), 1}, 2,
                     false);
  }
}

TEST(StreamedBytesArriveAtEveryAlignment) {
  constexpr size_t kLine = 64;
  Bytes in(3 * kLine + 5000), out(in.size());
  for (size_t b = 0; b < in.size(); ++b) in[b] = static_cast<char>(b * 7 + b / 251);
  std::vector<size_t> lengths = {255, 256, 257, 4096, 4999};
  for (size_t n = 0; n <= 2 * kLine + 2; ++n) lengths.push_back(n);
  for (size_t to = 0; to < kLine; ++to) {
    for (size_t from : {size_t{0}, size_t{1}, to, size_t{63}}) {
      for (size_t n : lengths) {
        std::memset(out.data(), 0x5a, out.size());
        StreamBytes(out.data() + to, in.data() + from, n);
        StreamFence();
        bool good = std::memcmp(out.data() + to, in.data() + from, n) == 0;
        for (size_t b = 0; b < to; ++b) good &= out[b] == 0x5a;
        for (size_t b = to + n; b < to + n + kLine; ++b) good &= out[b] == 0x5a;
        EXPECT(good, std::to_string(n) + " bytes to +" + std::to_string(to));
      }
    }
  }
}

TEST(LargeCopiesAreWhole) {
  Bytes in(100003), out(in.size());
  for (size_t b = 0; b < in.size(); ++b) in[b] = static_cast<char>(b * 13 + b / 255);
  for (bool large : {false, true}) {
    std::memset(out.data(), 0, out.size());
    CopyBytes(out.data() + 1, in.data(), in.size() - 1, large);
    EXPECT(std::memcmp(out.data() + 1, in.data(), in.size() - 1) == 0, "CopyBytes");
  }
}

// The copies of sums that bypass the cache, in blocks whose first ends with a line.
TEST(StreamedSumsArriveAtEveryAlignment) {
  std::mt19937 random(2);
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBfloat16, DType::kInt8}) {
    size_t size = Info(dtype).size;
    for (int n : {2, 3}) {
      for (size_t count : {1, 1007, 1008, 1024, 1025, 2100}) {
        Case one{dtype, Combine::kSum, ReduceStage::kFull, {}, count, 1};
        for (int s = 0; s < n; ++s) one.sources.push_back(Numbers(dtype, count, &random));
        Bytes expected = Run("", one, size, false, false, 0);
        for (size_t shift = 0; shift < 64 / size; ++shift) {
          EXPECT(Run("", one, size, true, true, shift) == expected,
                 std::to_string(count) + " elements to +" + std::to_string(shift * size));
        }
      }
    }
  }
}

}  // namespace

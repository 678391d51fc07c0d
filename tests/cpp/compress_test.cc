// What compressors do with a gradient, against plain loops: every dtype, at every SIMD level, at
// any alignment, with all kinds of bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "capi/smddp.h"
#include "check.h"
#include "core/dtype.h"
#include "kernels/cpu/compress.h"
#include "kernels/cpu/reduce.h"
#include "kernels/int8.h"

namespace {

using namespace smddp;

constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16};
const std::vector<size_t> kLengths = {1,   2,    7,    31,   33,   255,  256,
                                      257, 1000, 4095, 4096, 4097, 12345};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::string> Isas() {
  std::string all = CompiledIsas() + " ";
  std::vector<std::string> isas;
  for (size_t at = 0; at < all.size(); at = all.find(' ', at) + 1) {
    isas.push_back(all.substr(at, all.find(' ', at) - at));
  }
  return isas;
}

// A tensor that begins one element behind what new aligns, and its elements as float32.
class Gradient {
 public:
  Gradient(DType dtype, const std::vector<float>& numbers)
      : dtype_(dtype), count_(numbers.size()), bytes_((count_ + 1) * Info(dtype).size) {
    for (size_t i = 0; i < count_; ++i) Put(i, numbers[i]);
    for (size_t i = 0; i < count_; ++i) floats_.push_back(Get(i));
  }
  explicit Gradient(DType dtype, size_t count) : Gradient(dtype, std::vector<float>(count, 7.0f)) {}
  void* data() { return bytes_.data() + Info(dtype_).size; }
  size_t count() const { return count_; }
  const std::vector<float>& floats() const { return floats_; }
  float Get(size_t i) const {
    const char* at = bytes_.data() + (i + 1) * Info(dtype_).size;
    uint16_t half;
    std::memcpy(&half, at, sizeof half);
    if (dtype_ == DType::kFloat16) return HalfToFloat(half);
    if (dtype_ == DType::kBfloat16) return Bfloat16ToFloat(half);
    if (dtype_ == DType::kFloat32) return Read<float>(at);
    return static_cast<float>(Read<double>(at));
  }
  // As it would be after a cast.
  void Put(size_t i, float x) {
    char* at = bytes_.data() + (i + 1) * Info(dtype_).size;
    auto put = [at](auto value) { std::memcpy(at, &value, sizeof value); };
    if (dtype_ == DType::kFloat16) return put(FloatToHalf(x));
    if (dtype_ == DType::kBfloat16) return put(FloatToBfloat16(x));
    if (dtype_ == DType::kFloat32) return put(x);
    put(static_cast<double>(x));
  }

 private:
  template <typename T>
  static T Read(const char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  DType dtype_;
  size_t count_;
  std::vector<char> bytes_;
  std::vector<float> floats_;
};

enum class Kind { kNormal, kFewValues, kWild, kZero };

// kFewValues: many of equal magnitude; kWild: infinities, NaNs and all magnitudes.
std::vector<float> Numbers(Kind kind, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) {
    if (kind == Kind::kNormal) x = normal(random);
    if (kind == Kind::kFewValues) x = static_cast<float>(static_cast<int>(random() % 7) - 3);
    if (kind != Kind::kWild) continue;
    unsigned which = random() % 100;
    x = which == 0 ? kNan : which == 1 ? kInf : which == 2 ? -kInf : normal(random);
    if (which > 50) x = std::ldexp(x, static_cast<int>(random() % 250) - 140);
  }
  return numbers;
}

bool SameBits(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

std::string Note(const std::string& isa, DType dtype, size_t count, Kind kind) {
  return isa + " " + Info(dtype).name + " " + std::to_string(count) + " kind " +
         std::to_string(static_cast<int>(kind));
}

// Calls check(isa, dtype, count, kind) for all combinations.
template <typename Check>
void ForAll(Check&& check) {
  for (const std::string& isa : Isas()) {
    SetIsa(isa);
    if (isa != IsaName()) continue;  // this processor has not got it
    for (DType dtype : kFloats) {
      for (size_t count : kLengths) {
        for (Kind kind : {Kind::kNormal, Kind::kFewValues, Kind::kWild, Kind::kZero}) {
          check(isa, dtype, count, kind);
        }
      }
    }
  }
  SetIsa("");
}

struct Quantized {
  std::vector<int8_t> codes;
  std::vector<float> scales;
};

Quantized ReferenceQuantize(const std::vector<float>& in) {
  Quantized made;
  for (size_t at = 0; at < in.size(); at += kInt8Chunk) {
    float largest = 0;
    for (size_t i = at; i < std::min(in.size(), at + kInt8Chunk); ++i) {
      largest = std::max(largest, std::isnan(in[i]) ? kInf : std::fabs(in[i]));
    }
    float scale = largest / 127;
    made.scales.push_back(scale);
    for (size_t i = at; i < at + kInt8Chunk; ++i) {
      float quotient = i >= in.size() || scale == 0 ? 0.0f : in[i] / scale;
      if (std::isnan(quotient)) quotient = 0;
      long code = std::lrint(std::min(127.0f, std::max(-127.0f, quotient)));
      made.codes.push_back(static_cast<int8_t>(code));
    }
  }
  return made;
}

void CheckInt8(const std::string& isa, DType dtype, size_t count, Kind kind) {
  std::string note = Note(isa, dtype, count, kind);
  constexpr size_t kRanks = 3;
  Quantized all;
  std::vector<float> wanted(count);
  for (size_t r = 0; r < kRanks; ++r) {
    Gradient in(dtype, Numbers(kind, count, static_cast<unsigned>(count + r)));
    Quantized own = ReferenceQuantize(in.floats()), made = own;
    std::fill(made.codes.begin(), made.codes.end(), int8_t{99});
    EXPECT_EQ(smddp_int8_quantize(static_cast<int>(dtype), in.data(), static_cast<int64_t>(count),
                                  made.codes.data(), made.scales.data()),
              SMDDP_OK);
    EXPECT(std::equal(own.scales.begin(), own.scales.end(), made.scales.begin(), SameBits), note);
    for (size_t i = 0; i < count; ++i) {
      float scale = own.scales[i / kInt8Chunk];
      if (own.codes[i] != made.codes[i]) {
        EXPECT_EQ(own.codes[i], made.codes[i], note);
        break;
      }
      float value = static_cast<float>(made.codes[i]) * scale;
      wanted[i] = r == 0 ? value : wanted[i] + value;
      bool lost = !std::isfinite(scale) && !std::isnan(value);
      if (lost) EXPECT(!lost, note + ": what is not finite must become NaN");
    }
    all.codes.insert(all.codes.end(), made.codes.begin(), made.codes.end());
    all.scales.insert(all.scales.end(), made.scales.begin(), made.scales.end());
  }
  for (float divisor : {1.0f, 3.0f}) {
    Gradient sum(dtype, count), rounded(dtype, count);
    EXPECT_EQ(smddp_int8_sum(all.codes.data(), all.scales.data(), kRanks, divisor,
                             static_cast<int>(dtype), sum.data(), static_cast<int64_t>(count)),
              SMDDP_OK);
    for (size_t i = 0; i < count; ++i) {
      rounded.Put(i, wanted[i] / divisor);
      if (SameBits(sum.Get(i), rounded.Get(i))) continue;
      EXPECT_EQ(sum.Get(i), rounded.Get(i), note + " at " + std::to_string(i));
      break;
    }
  }
}

// Sorts everything: by magnitude, NaNs as infinities, then by index.
std::vector<int32_t> ReferenceTopk(const std::vector<float>& total, size_t k) {
  auto magnitude = [&](int32_t i) {
    return std::isnan(total[static_cast<size_t>(i)]) ? kInf
                                                     : std::fabs(total[static_cast<size_t>(i)]);
  };
  std::vector<int32_t> order(total.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return magnitude(a) > magnitude(b); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

void CheckTopk(const std::string& isa, DType dtype, size_t count, Kind kind) {
  for (size_t k : {size_t{1}, (count + 99) / 100, (count + 1) / 2, count}) {
    std::string note = Note(isa, dtype, count, kind) + " k " + std::to_string(k);
    Gradient in(dtype, Numbers(kind, count, static_cast<unsigned>(count)));
    std::vector<float> kept = Numbers(kind, count, 1), total(count), residual(count), values(k);
    for (size_t i = 0; i < count; ++i) total[i] = in.floats()[i] + kept[i];
    std::vector<int32_t> indices(k), wanted = ReferenceTopk(total, k);
    EXPECT_EQ(smddp_topk_select(static_cast<int>(dtype), in.data(), kept.data(),
                                static_cast<int64_t>(count), static_cast<int64_t>(k),
                                indices.data(), values.data(), residual.data()),
              SMDDP_OK);
    EXPECT(indices == wanted, note + ": the indices");
    for (size_t i = 0; i < k; ++i) {
      auto index = static_cast<size_t>(wanted[i]);
      if (!SameBits(values[i], total[index])) EXPECT_EQ(values[i], total[index], note);
      total[index] = 0;
    }
    EXPECT(std::equal(total.begin(), total.end(), residual.begin(), SameBits), note + ": the rest");
  }
}

void CheckTopkSum(const std::string& isa, DType dtype, size_t count, Kind kind) {
  constexpr size_t kRanks = 3;
  size_t k = (count + 1) / 2;
  std::vector<int32_t> indices;
  std::vector<float> wanted(count), values = Numbers(kind, kRanks * k, 5);
  for (size_t i = 0; i < kRanks * k; ++i) {  // each rank has every other element, from its own on
    indices.push_back(static_cast<int32_t>((2 * (i % k) + i / k) % count));
    wanted[static_cast<size_t>(indices.back())] += values[i];
  }
  for (float divisor : {1.0f, 3.0f}) {
    Gradient sum(dtype, count), rounded(dtype, count);
    EXPECT_EQ(
        smddp_topk_sum(indices.data(), values.data(), kRanks, static_cast<int64_t>(k), divisor,
                       static_cast<int>(dtype), sum.data(), static_cast<int64_t>(count)),
        SMDDP_OK);
    for (size_t i = 0; i < count; ++i) {
      rounded.Put(i, wanted[i] / divisor);
      if (SameBits(sum.Get(i), rounded.Get(i))) continue;
      EXPECT_EQ(sum.Get(i), rounded.Get(i), Note(isa, dtype, count, kind));
      break;
    }
  }
}

}  // namespace

TEST(Int8HasTheBitsOfPlainLoops) { ForAll(CheckInt8); }

TEST(TopkSelectsWhatSortingWould) { ForAll(CheckTopk); }

TEST(TopkAddsUpInTheOrderOfRanks) { ForAll(CheckTopkSum); }

// Rising magnitudes: every element is among the largest so far.
TEST(TopkTakesAnyOrder) {
  std::vector<float> in(100000), kept(in.size()), residual(in.size());
  std::iota(in.begin(), in.end(), 1.0f);
  for (bool falling : {false, true}) {
    if (falling) std::reverse(in.begin(), in.end());
    std::vector<int32_t> indices(10), wanted(10);
    std::vector<float> values(10);
    TopkSelect(DType::kFloat32, in.data(), kept.data(), in.size(), 10, indices.data(),
               values.data(), residual.data());
    std::iota(wanted.begin(), wanted.end(), falling ? 0 : 99990);
    EXPECT(indices == wanted, falling ? "falling" : "rising");
  }
}

TEST(CompressorsRefuseWhatTheyCannotDo) {
  int8_t code = 0;
  float number = 0, more[2] = {1, 1};
  int32_t index = 0, far[2] = {0, 5};
  EXPECT_EQ(smddp_int8_quantize(SMDDP_INT32, &number, 1, &code, &number), SMDDP_USAGE);
  EXPECT(std::string(smddp_last_error()).find("dtype 3") != std::string::npos, smddp_last_error());
  EXPECT_EQ(smddp_int8_sum(&code, &number, 0, 1, SMDDP_FLOAT32, &number, 1), SMDDP_USAGE);
  for (int64_t k : {0, 2}) {
    EXPECT_EQ(smddp_topk_select(SMDDP_FLOAT32, &number, &number, 1, k, &index, &number, &number),
              SMDDP_USAGE);
  }
  for (int32_t wrong : {5, -1}) {
    far[1] = wrong;
    float out[5];
    EXPECT_EQ(smddp_topk_sum(far, more, 2, 1, 1, SMDDP_FLOAT32, out, 5), SMDDP_USAGE);
    std::string text = smddp_last_error();
    EXPECT(text.find("rank 1") != std::string::npos &&
               text.find("index " + std::to_string(wrong)) != std::string::npos,
           text);
  }
}

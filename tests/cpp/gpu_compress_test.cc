// The kernels of compressors, compiled for the CPU and launched through the driver in ../fake_cuda,
// against the loops for the CPU: every dtype, lengths around those of chunks and tiles, gradients
// at any alignment, with all kinds of bits.
#include "gpu_compress.h"

#include <string>
#include <vector>

#include "capi/smddp.h"
#include "check.h"
#include "kernels/cpu/compress.h"
#include "kernels/cuda/bundle.h"
#include "kernels/cuda/image.h"
#include "kernels/int8.h"

namespace {

using namespace smddp_test;

constexpr size_t kRanks = 5;

// Quantizes a gradient that begins `shift` elements behind an aligned address.
void CheckQuantize(Gpu* gpu, DType dtype, size_t count, Bits bits, size_t shift) {
  std::string note = Note(dtype, count, bits) + " shift " + std::to_string(shift);
  size_t chunks = Int8Chunks(count);
  Bytes in = Gradient(dtype, count, bits, static_cast<unsigned>(count));
  std::vector<int8_t> codes(chunks * kInt8Chunk);
  std::vector<float> scales(chunks);
  Int8Quantize(dtype, in.data(), count, codes.data(), scales.data());

  Array on_gpu(in, shift * Info(dtype).size), made(codes.size()), made_scales(chunks * 4);
  Int8QuantizeArgs args{on_gpu.at(), made.as<int8_t>(), made_scales.as<float>(), count};
  gpu->Run([&](void* stream) { return gpu->kernels()->Int8Quantize(dtype, args, stream); });
  EXPECT(made.content() == BytesOf(codes), note + ": the codes");
  EXPECT(SameFloats(made_scales.content(), BytesOf(scales)), note + ": the scales");
  EXPECT(made.guarded() && made_scales.guarded(), note + ": wrote behind the end");
}

void CheckSum(Gpu* gpu, DType dtype, size_t count, Bits bits, float divisor) {
  std::string note = Note(dtype, count, bits) + " divided by " + std::to_string(divisor);
  size_t chunks = Int8Chunks(count);
  std::vector<int8_t> codes;
  std::vector<float> scales;
  for (size_t r = 0; r < kRanks; ++r) {
    Bytes in = Gradient(dtype, count, bits, static_cast<unsigned>(count + r));
    codes.resize((r + 1) * chunks * kInt8Chunk);
    scales.resize((r + 1) * chunks);
    Int8Quantize(dtype, in.data(), count, &codes[r * chunks * kInt8Chunk], &scales[r * chunks]);
  }
  if (bits == Bits::kAny) {  // what no quantizing makes: -0 of a code and a scale of 0
    Bytes random = Gradient(dtype, codes.size(), bits, 5);
    std::memcpy(codes.data(), random.data(), codes.size());
    for (size_t i = 0; i < scales.size(); i += 2) scales[i] = 0;
  }
  Bytes sum(count * Info(dtype).size);
  Int8Sum(codes.data(), scales.data(), kRanks, divisor, dtype, sum.data(), count);

  Array codes_on_gpu(BytesOf(codes)), scales_on_gpu(BytesOf(scales)), made(sum.size());
  Int8SumArgs args{
      codes_on_gpu.as<int8_t>(), scales_on_gpu.as<float>(), made.at(), count, kRanks, divisor};
  gpu->Run([&](void* stream) { return gpu->kernels()->Int8Sum(dtype, args, stream); });
  EXPECT(Same(dtype, made.content(), sum), note);
  EXPECT(made.guarded(), note + ": wrote behind the end");
}

struct Selected {
  Bytes indices, values, residual;
};

Selected SelectOnCpu(DType dtype, const Bytes& in, const std::vector<float>& kept, size_t k) {
  std::vector<int32_t> indices(k);
  std::vector<float> values(k), residual(kept.size());
  TopkSelect(dtype, in.data(), kept.data(), kept.size(), k, indices.data(), values.data(),
             residual.data());
  return {BytesOf(indices), BytesOf(values), BytesOf(residual)};
}

// `kept` begins one element behind an aligned address where the gradient is shifted too.
void CheckSelect(Gpu* gpu, DType dtype, size_t count, Bits bits, size_t k, size_t shift) {
  std::string note = Note(dtype, count, bits) + " k " + std::to_string(k);
  Bytes in = Gradient(dtype, count, bits, static_cast<unsigned>(count));
  Bytes kept_bytes = Gradient(DType::kFloat32, count, bits, 99);
  std::vector<float> kept(count);
  std::memcpy(kept.data(), kept_bytes.data(), kept_bytes.size());
  Selected wanted = SelectOnCpu(dtype, in, kept, k);

  Array on_gpu(in, shift * Info(dtype).size), kept_on_gpu(kept_bytes, shift * sizeof(float));
  Array indices(k * 4), values(k * 4), residual(count * 4);
  Array scratch(CompressKernels::TopkSelectScratch(static_cast<uint32_t>(count)));
  TopkSelectArgs args = {};
  args.in = on_gpu.at();
  args.kept = kept_on_gpu.as<float>();
  args.total = residual.as<float>();
  args.indices = indices.as<int32_t>();
  args.values = values.as<float>();
  args.count = static_cast<uint32_t>(count);
  args.k = static_cast<uint32_t>(k);
  gpu->Run(
      [&](void* stream) { return gpu->kernels()->TopkSelect(dtype, args, scratch.at(), stream); });
  EXPECT(indices.content() == wanted.indices, note + ": the indices");
  EXPECT(SameFloats(values.content(), wanted.values), note + ": the values");
  EXPECT(SameFloats(residual.content(), wanted.residual), note + ": the residual");
  for (const Array* one : {&indices, &values, &residual, &scratch}) {
    EXPECT(one->guarded(), note + ": wrote behind the end");
  }
}

// What kRanks ranks selected, of which each has every third element from its own on.
struct Parts {
  Parts(size_t count, Bits bits) : k((count + 2) / 3) {
    for (size_t i = 0; i < kRanks * k; ++i) {
      indices.push_back(static_cast<int32_t>((3 * (i % k) + i / k) % count));
    }
    Bytes numbers = Gradient(DType::kFloat32, indices.size(), bits, 3);
    values.resize(indices.size());
    std::memcpy(values.data(), numbers.data(), numbers.size());
  }
  size_t k;
  std::vector<int32_t> indices;
  std::vector<float> values;
};

Bytes SumOnGpu(Gpu* gpu, DType dtype, size_t count, const Parts& parts, float divisor) {
  // Behind an address that is aligned to their elements only.
  Array indices(BytesOf(parts.indices), 4), values(BytesOf(parts.values), 4);
  Array out(count * Info(dtype).size);
  Array scratch(CompressKernels::TopkSumScratch(dtype, static_cast<uint32_t>(count)));
  TopkSumArgs args = {};
  args.indices = indices.as<int32_t>();
  args.values = values.as<float>();
  args.out = out.at();
  args.count = static_cast<uint32_t>(count);
  args.k = static_cast<uint32_t>(parts.k);
  args.divisor = divisor;
  gpu->Run([&](void* stream) {
    return gpu->kernels()->TopkSum(dtype, args, kRanks, scratch.at(), stream);
  });
  EXPECT(out.guarded() && scratch.guarded(), "wrote behind the end");
  return out.content();
}

void CheckTopkSum(Gpu* gpu, DType dtype, size_t count, Bits bits, float divisor) {
  Parts parts(count, bits);
  Bytes sum(count * Info(dtype).size);
  Status status = TopkSum(parts.indices.data(), parts.values.data(), kRanks, parts.k, divisor,
                          dtype, sum.data(), count);
  EXPECT(status.ok(), status.message());
  EXPECT(Same(dtype, SumOnGpu(gpu, dtype, count, parts, divisor), sum), Note(dtype, count, bits));
}

}  // namespace

TEST(Int8OnAGpuHasTheBitsOfTheCpu) {
  Gpu gpu;
  for (DType dtype : kGradientTypes) {
    for (size_t count : {1, 2, 255, 256, 257, 511, 2048, 2049, 70001}) {
      for (Bits bits : kAllBits) {
        for (size_t shift : {0, 1, 3}) CheckQuantize(&gpu, dtype, count, bits, shift);
        for (float divisor : {1.0f, 5.0f}) CheckSum(&gpu, dtype, count, bits, divisor);
      }
    }
  }
}

// Lengths around those of fours, rows and tiles; 1, one in a hundred, half and all of them.
TEST(TopkOnAGpuSelectsWhatTheCpuDoes) {
  Gpu gpu;
  for (DType dtype : kGradientTypes) {
    for (size_t count : {1, 2, 3, 4, 5, 127, 128, 129, 2047, 2048, 2049, 20001}) {
      for (Bits bits : kAllBits) {
        for (size_t k : {size_t{1}, (count + 99) / 100, (count + 1) / 2, count}) {
          CheckSelect(&gpu, dtype, count, bits, k, k % 4);
        }
      }
    }
  }
}

// More tiles than the one block that sums them up has threads, and more fours than all blocks that
// count have threads.
TEST(TopkOnAGpuSelectsOfMany) {
  Gpu gpu;
  for (Bits bits : {Bits::kNormal, Bits::kFew, Bits::kZero}) {
    CheckSelect(&gpu, DType::kFloat32, 3000001, bits, 30000, 0);
  }
}

TEST(TopkOnAGpuAddsUpAsTheCpuDoes) {
  Gpu gpu;
  for (DType dtype : kGradientTypes) {
    for (size_t count : {7, 8, 255, 256, 257, 5001}) {
      for (Bits bits : kAllBits) {
        for (float divisor : {1.0f, 5.0f}) CheckTopkSum(&gpu, dtype, count, bits, divisor);
      }
    }
  }
}

// Beyond the end, or negative: nothing else is written, and no element looks right.
TEST(AMisplacedIndexOnAGpuMakesAllNan) {
  Gpu gpu;
  constexpr size_t kCount = 301;
  for (DType dtype : kGradientTypes) {
    for (int32_t wrong : {301, -1}) {
      for (float divisor : {1.0f, 5.0f}) {
        Parts parts(kCount, Bits::kNormal);
        parts.indices[2 * parts.k + 7] = wrong;
        Bytes nan = Gradient(dtype, kCount, Bits::kNan, 0);
        EXPECT(Same(dtype, SumOnGpu(&gpu, dtype, kCount, parts, divisor), nan), Info(dtype).name);
      }
    }
  }
}

// A gradient without elements needs no kernel, which could not have a grid without blocks.
TEST(NothingIsLaunchedForNothing) {
  Gpu gpu;
  int before = FakeLaunches("smddp_int8");
  Int8QuantizeArgs args{nullptr, nullptr, nullptr, 0};
  gpu.Run([&](void* stream) { return gpu.kernels()->Int8Quantize(DType::kFloat32, args, stream); });
  EXPECT_EQ(FakeLaunches("smddp_int8"), before);
}

// Where the library has kernels, the C API runs them, in a stream or, if that is not known, so that
// they begin when the GPU has done all else and the host knows that they have ended. Where it has
// none, it says so.
TEST(TheCApiCompressesOnAGpu) {
  Gpu gpu;
  constexpr int64_t kCount = 1000, kTake = 10;
  Bytes in = Gradient(DType::kFloat32, kCount, Bits::kNormal, 1);
  std::vector<int8_t> codes(1024);
  std::vector<float> scales(4), kept(kCount, 1.0f);
  Int8Quantize(DType::kFloat32, in.data(), kCount, codes.data(), scales.data());
  Selected wanted = SelectOnCpu(DType::kFloat32, in, kept, kTake);

  Array on_gpu(in), kept_on_gpu(BytesOf(kept)), made(codes.size()), made_scales(16);
  Array indices(kTake * 4), values(kTake * 4), residual(kCount * 4);
  Array scratch(static_cast<size_t>(smddp_gpu_topk_select_scratch(kCount)));
  int expected = CompressImage() != nullptr ? SMDDP_OK : SMDDP_SYSTEM;
  EXPECT_EQ(smddp_gpu_compressors(made.at()), expected);
  for (void* stream : {gpu.stream(), SMDDP_EVERY_STREAM}) {
    for (Array* one : {&made, &indices, &residual}) one->Clear();
    EXPECT_EQ(smddp_gpu_int8_quantize(SMDDP_FLOAT32, on_gpu.at(), kCount, made.as<int8_t>(),
                                      made_scales.as<float>(), stream),
              expected, smddp_last_error());
    EXPECT_EQ(smddp_gpu_topk_select(SMDDP_FLOAT32, on_gpu.at(), kept_on_gpu.as<float>(), kCount,
                                    kTake, indices.as<int32_t>(), values.as<float>(),
                                    residual.as<float>(), scratch.at(), stream),
              expected, smddp_last_error());
    if (expected != SMDDP_OK) {
      std::string text = smddp_last_error();
      EXPECT(text.find("without kernels") != std::string::npos, text);
      continue;
    }
    if (stream == gpu.stream()) gpu.Wait();
    EXPECT(made.content() == BytesOf(codes), "the codes");
    EXPECT(indices.content() == wanted.indices, "the indices");
    EXPECT(SameFloats(residual.content(), wanted.residual), "the residual");
  }
}

// What the CPU cannot show: that nvcc has not made one rounding of a multiplication and an
// addition, and divides as IEEE 754 says. The PTX in the image is text.
TEST(TheKernelsForGpusRoundAsTheCpu) {
  const auto* image = static_cast<const char*>(CompressImage());
  if (image == nullptr) return EXPECT_EQ(std::string(ImageText()).rfind("none: ", 0), size_t{0});
  struct Header {  // of a fat binary
    uint32_t magic;
    uint16_t version, bytes;
    uint64_t bytes_behind;
  } header;
  std::memcpy(&header, image, sizeof header);
  const void* last = CodeFor(image, 90).back();
  std::string text = last == image ? std::string(image, header.bytes + header.bytes_behind)
                                   : static_cast<const char*>(last);
  EXPECT(text.find(".visible .entry smddp_int8_sum_float32") != std::string::npos, "no PTX");
  for (const char* wanted : {"mul.rn.f32", "add.rn.f32", "div.rn.f32"}) {
    EXPECT(text.find(wanted) != std::string::npos, wanted);
  }
  for (const char* other :
       {"fma.", "mad.f32", "mul.f32", "add.f32", "div.full", "div.approx", ".ftz"}) {
    EXPECT(text.find(other) == std::string::npos, other);
  }
}

TEST(CompressorsOnAGpuRefuseWhatTheyCannotDo) {
  Gpu gpu;
  Array array(1024);
  auto* codes = array.as<int8_t>();
  auto* floats = array.as<float>();
  void* stream = gpu.stream();
  EXPECT_EQ(smddp_gpu_int8_quantize(SMDDP_INT32, floats, 4, codes, floats, stream), SMDDP_USAGE);
  EXPECT_EQ(smddp_gpu_int8_quantize(SMDDP_FLOAT32, floats, 4, codes + 8, floats, stream),
            SMDDP_USAGE);
  EXPECT_EQ(smddp_gpu_int8_sum(codes, floats, 0, 1, SMDDP_FLOAT32, floats, 4, stream), SMDDP_USAGE);
  EXPECT_EQ(smddp_gpu_int8_sum(codes, floats, 1, 1, SMDDP_FLOAT32, floats + 1, 4, stream),
            SMDDP_USAGE);
  auto* index = array.as<int32_t>();
  for (int64_t k : {0, 5}) {
    EXPECT_EQ(smddp_gpu_topk_select(SMDDP_FLOAT32, floats, floats, 4, k, index, floats, floats,
                                    floats, stream),
              SMDDP_USAGE);
    EXPECT_EQ(smddp_gpu_topk_sum(index, floats, 1, k, 1, SMDDP_FLOAT32, floats, 4, floats, stream),
              SMDDP_USAGE);
  }
  EXPECT_EQ(smddp_gpu_topk_select(SMDDP_FLOAT32, floats, floats, 4, 1, index, floats, floats,
                                  floats + 1, stream),
            SMDDP_USAGE);
  float host = 0;
  EXPECT_EQ(smddp_gpu_compressors(&host), SMDDP_SYSTEM);

  std::string why;
  uint32_t other = 0;  // an image for another device
  EXPECT(CompressKernels::Find(gpu.device(), &other, &why) == nullptr, "loaded anything");
  EXPECT(why.find("do not load on this GPU") != std::string::npos, why);
  EXPECT(CompressKernels::Find(gpu.device(), nullptr, &why) == nullptr, "loaded nothing");
  EXPECT(why.find("built without kernels") != std::string::npos, why);
}

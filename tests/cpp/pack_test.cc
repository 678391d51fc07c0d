// The bodies of the GPU's kernels, compiled for the CPU, against the loops that reduce on the host.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cuda/bundle.h"
#include "kernels/cuda/image.h"
#include "kernels/cuda/pack_body.h"

namespace {

using namespace smddp;

using Bytes = std::vector<char>;

// Lengths around those of words, groups, unrolled groups and tiles, of all types.
const std::vector<size_t> kLengths = {1,    2,    3,    4,    5,    7,    8,    9,    15,   16,
                                      17,   31,   32,   33,   63,   64,   65,   127,  129,  255,
                                      257,  511,  513,  1000, 47,   23,   100,  200,  999,  512,
                                      1023, 1024, 1025, 2048, 2051, 4095, 4096, 4097, 8191, 9000};

// A tensor that ends where its allocation does, so that the address sanitizer sees what reaches out
// of it, and begins `past_word` bytes behind a word, behind bytes that nobody may read or write.
class Tensor {
 public:
  Tensor(size_t bytes, size_t past_word)
      : before_(kWord + past_word), bytes_(bytes), memory_(new char[before_ + bytes]) {
    static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ % kWord == 0);
    std::fill_n(memory_.get(), before_ + bytes, kGuard);
#ifdef __SANITIZE_ADDRESS__
    __asan_poison_memory_region(memory_.get(), before_);
#endif
  }
  ~Tensor() { Unpoison(); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  char* at() { return memory_.get() + before_; }
  size_t bytes() const { return bytes_; }
  Bytes content() { return Bytes(at(), at() + bytes_); }
  bool guarded() const {
    Unpoison();
    return std::all_of(memory_.get(), memory_.get() + before_, [](char c) { return c == kGuard; });
  }

 private:
  void Unpoison() const {
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(memory_.get(), before_);
#endif
  }

  static constexpr char kGuard = 0x5a;
  const size_t before_, bytes_;
  const std::unique_ptr<char[]> memory_;
};

void Reduce(DType dtype, ReduceStage stage, const void* in, void* out, size_t count, double scale) {
  ReduceArgs args;
  args.sources = &in;
  args.num_sources = 1;
  args.count = count;
  args.out = out;
  args.scale = scale;
  FindReduce(dtype, Combine::kSum, stage)(args);
}

// What is on the wire and comes off it, by the host's loops.
template <typename T, typename W>
Bytes OnWire(DType dtype, const Bytes& tensor, double factor) {
  size_t count = tensor.size() / sizeof(T);
  Bytes wire(count * sizeof(W));
  if constexpr (std::is_same_v<T, Byte>) {
    return tensor;
  } else if constexpr (std::is_same_v<T, W>) {
    Reduce(dtype, ReduceStage::kFull, tensor.data(), wire.data(), count, factor);
  } else {
    Reduce(dtype, ReduceStage::kPartial, tensor.data(), wire.data(), count, 1);
    Reduce(DType::kFloat32, ReduceStage::kFull, wire.data(), wire.data(), count, factor);
  }
  return wire;
}

template <typename T, typename W>
Bytes OffWire(DType dtype, const Bytes& wire, double factor) {
  size_t count = wire.size() / sizeof(W);
  Bytes tensor(count * sizeof(T));
  if constexpr (std::is_same_v<T, Byte>) return wire;
  Reduce(dtype, ReduceStage::kFinish, wire.data(), tensor.data(), count, factor);
  return tensor;
}

// Random bits, but no signalling NaNs: a multiplication by 1, which the host leaves out, makes them
// quiet.
template <typename T>
void Fill(Tensor* tensor, std::mt19937* random) {
  for (size_t b = 0; b < tensor->bytes(); ++b) tensor->at()[b] = static_cast<char>((*random)());
  if constexpr (!std::is_same_v<T, Byte>) {
    volatile float one = 1;  // which the compiler does not know
    for (size_t b = 0; b < tensor->bytes(); b += sizeof(T)) {
      auto x = LoadOne<T>(tensor->at() + b);
      StoreOne(tensor->at() + b, Narrow<T>(Wide(x) * one));
    }
  }
}

// Tensors of all lengths, of which each begins `shift` elements further behind a word than the one
// before it, and their wire.
template <typename T, typename W>
struct Bucket {
  explicit Bucket(size_t shift) {
    std::mt19937 random(static_cast<unsigned>(shift) + 1);
    for (size_t i = 0; i < kLengths.size(); ++i) {
      size_t bytes = kLengths[i] * sizeof(T);
      in.emplace_back(new Tensor(bytes, (i + shift) * sizeof(T) % kWord));
      out.emplace_back(new Tensor(bytes, (i * 3 + shift) * sizeof(T) % kWord));
      Fill<T>(in.back().get(), &random);
      entries.push_back({in.back()->at(), out.back()->at(), end, kLengths[i]});
      end += PackAligned(kLengths[i] * sizeof(W)) / sizeof(W);
    }
  }

  using Body = void (*)(const PackArgs& args, uint64_t tile, uint32_t lane);
  // Runs all lanes for the wire in pieces of at most `most` bytes, each at the begin of the buffer.
  template <typename Fn>
  void Run(Body body, uint64_t most, double factor, Fn&& around) {
    for (uint64_t begin = 0; begin < end;) {
      PackArgs args{entries.data(),
                    entries.size(),
                    buffer.at(),
                    begin,
                    std::min(end, begin + most / sizeof(W)),
                    factor};
      around(args, [&] {
        uint64_t bytes = (args.end - args.begin) * sizeof(W);
        uint64_t tiles = uint64_t{PackBlocks(bytes)} * (kPackThreads / kPackLanes);
        for (uint64_t tile = 0; tile < tiles; ++tile) {
          for (uint32_t lane = 0; lane < kPackLanes; ++lane) body(args, tile, lane);
        }
      });
      begin = args.end;
    }
  }

  std::vector<std::unique_ptr<Tensor>> in, out;
  std::vector<PackEntry> entries;
  uint64_t end = 0;
  Tensor buffer{(1 << 18) + kPackAlign, 0};
};

template <typename T, typename W>
void Check(const std::string& name, DType dtype, size_t shift, uint64_t most, double factor) {
  std::string note = name + ", shift " + std::to_string(shift) + ", at most " +
                     std::to_string(most) + " bytes, factor " + std::to_string(factor);
  Bucket<T, W> bucket(shift);
  Bytes packed(bucket.end * sizeof(W));
  bucket.Run(Pack<T, W>, most, factor, [&](const PackArgs& args, auto run) {
    std::fill_n(bucket.buffer.at(), bucket.buffer.bytes(), static_cast<char>(0xee));
    run();
    size_t bytes = (args.end - args.begin) * sizeof(W);
    std::memcpy(packed.data() + args.begin * sizeof(W), bucket.buffer.at(), bytes);
    bool beyond = bucket.buffer.at()[bytes] != static_cast<char>(0xee);
    EXPECT(!beyond, note + ": wrote behind the piece");
  });
  Bytes wanted(packed.size());  // zero between the tensors
  for (size_t i = 0; i < bucket.in.size(); ++i) {
    Bytes wire = OnWire<T, W>(dtype, bucket.in[i]->content(), factor);
    std::copy(wire.begin(), wire.end(),
              wanted.begin() + static_cast<long>(bucket.entries[i].begin * sizeof(W)));
  }
  EXPECT(packed == wanted, note + ": the wire");

  bucket.Run(Unpack<T, W>, most, factor, [&](const PackArgs& args, auto run) {
    std::memcpy(bucket.buffer.at(), packed.data() + args.begin * sizeof(W),
                (args.end - args.begin) * sizeof(W));
    run();
  });
  for (size_t i = 0; i < bucket.out.size(); ++i) {
    auto begin = packed.begin() + static_cast<long>(bucket.entries[i].begin * sizeof(W));
    Bytes wire(begin, begin + static_cast<long>(kLengths[i] * sizeof(W)));
    std::string which = note + ": tensor of " + std::to_string(kLengths[i]);
    EXPECT(bucket.out[i]->content() == (OffWire<T, W>(dtype, wire, factor)), which);
    EXPECT(bucket.out[i]->guarded(), which + " wrote before it");
  }
}

template <typename T, typename W>
void CheckAll(const std::string& name, DType dtype) {
  for (size_t shift = 0; shift < kWord / sizeof(T); ++shift) {
    for (uint64_t most : {uint64_t{1} << 18, 37 * kPackAlign}) {
      for (double factor : {1.0, 1 / 3.0}) Check<T, W>(name, dtype, shift, most, factor);
    }
  }
}

}  // namespace

// Every kernel at every alignment that the elements have, with all kinds of bits: NaNs, infinities
// and subnormals too. Integers go by `bytes`, as does whatever is not scaled or cast.
TEST(PackedTensorsHaveTheBitsOfTheHostsLoops) {
  CheckAll<Byte, Byte>("bytes", DType::kUint8);
  CheckAll<float, float>("float32", DType::kFloat32);
  CheckAll<double, double>("float64", DType::kFloat64);
  CheckAll<Half, float>("float16", DType::kFloat16);
  CheckAll<Bfloat16, float>("bfloat16", DType::kBfloat16);
}

// A piece of a tensor of 8 billion elements, of which only that piece is in memory.
template <typename T, typename W>
void CheckFarPiece(const std::string& name) {
  constexpr uint64_t kFar = uint64_t{1} << 33, kCount = 3000;
  Tensor in(kCount * sizeof(T), sizeof(T) % kWord), out(kCount * sizeof(T), 0);
  std::mt19937 random(1);
  Fill<T>(&in, &random);
  // Where the tensor would begin.
  auto begin_of = [](Tensor& piece) {
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(piece.at()) - kFar * sizeof(T));
  };
  PackEntry entry{begin_of(in), begin_of(out), 0, kFar + kCount};
  Tensor wire(PackAligned(kCount * sizeof(W)), 0);
  PackArgs args{&entry, 1, wire.at(), kFar, kFar + wire.bytes() / sizeof(W), 1.0};
  uint64_t tiles = uint64_t{PackBlocks(wire.bytes())} * (kPackThreads / kPackLanes);
  for (auto body : {Pack<T, W>, Unpack<T, W>}) {
    for (uint64_t tile = 0; tile < tiles; ++tile) {
      for (uint32_t lane = 0; lane < kPackLanes; ++lane) body(args, tile, lane);
    }
  }
  EXPECT(in.content() == out.content(), name);
}

TEST(PackedPiecesMayBeBeyondFourGiB) {
  CheckFarPiece<Byte, Byte>("bytes");
  CheckFarPiece<float, float>("float32");
  CheckFarPiece<double, double>("float64");
  CheckFarPiece<Half, float>("float16");
}

TEST(PackKernelsAreBuiltInOrSayWhyNot) {
  std::string text = ImageText();
  bool none = text.rfind("none: ", 0) == 0;
  EXPECT_EQ(PackImage() == nullptr, none, text);
  if (none) return;
  bool compiler = text.find("nvcc") != std::string::npos || text.find("NVRTC") != std::string::npos;
  EXPECT(text.find("sm_90") != std::string::npos && compiler, text);
  uint32_t begin;
  std::memcpy(&begin, CodeFor(PackImage(), 90)[0], sizeof begin);
  bool bundle = CodeFor(PackImage(), 90)[0] != PackImage();
  EXPECT_EQ(begin, bundle ? 0x464c457fu : 0xba55ed50u);  // an ELF file, a fat binary
}

TEST(AGpuGetsTheCodeOfItsGeneration) {
  struct {
    BundleHeader header;
    BundleEntry entries[4];
    char code[4];
  } made{{}, {{90, 0, 0, 1}, {70, 1, 0, 1}, {80, 0, 0, 1}, {86, 0, 0, 1}}, {}};
  std::memcpy(made.header.magic, kBundleMagic, sizeof kBundleMagic);
  made.header.entries = 4;
  for (size_t i = 0; i < 4; ++i) made.entries[i].begin = offsetof(decltype(made), code) + i;
  // By capability: the entries that fit, the best first.
  const std::pair<uint32_t, std::vector<size_t>> fitting[] = {
      {60, {}},        {70, {1}},    {80, {2, 1}}, {86, {3, 2, 1}},
      {89, {3, 2, 1}}, {90, {0, 1}}, {120, {1}}};
  for (const auto& [capability, wanted] : fitting) {
    std::vector<size_t> got;
    for (const void* code : CodeFor(&made, capability)) {
      got.push_back(static_cast<size_t>(static_cast<const char*>(code) - made.code));
    }
    EXPECT(got == wanted, std::to_string(capability));
  }
  uint64_t fat_binary = 0xba55ed50;
  EXPECT(CodeFor(&fat_binary, 90) == std::vector<const void*>{&fat_binary});
}

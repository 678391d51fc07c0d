// What needs no ranks: rank arithmetic, spans, kernels, signatures and the order of plan runs.
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "check.h"
#include "collective/request.h"
#include "core/c_numbers.h"
#include "core/chunk_bytes.h"
#include "core/config.h"
#include "core/span.h"
#include "core/topology.h"
#include "engine/trace/timeline.h"
#include "kernels/cpu/reduce.h"

namespace {

using namespace smddp;

uint16_t ReduceHalf(const char* isa, DType dtype, std::vector<uint16_t> bits) {
  SetIsa(isa);
  std::vector<const void*> sources;
  for (uint16_t& one : bits) sources.push_back(&one);
  uint16_t out = 0;
  FindReduce(dtype, Combine::kSum, ReduceStage::kFull)(
      {sources.data(), static_cast<int>(sources.size()), 1, &out, nullptr, 1.0, 1});
  SetIsa("");
  return out;
}

TEST(MessagesShowASettingAsItWasGiven) {
  EXPECT_EQ(FormatNumber(1.5), "1.5");
  EXPECT_EQ(FormatNumber(600), "600");
  EXPECT_EQ(FormatNumber(0.25), "0.25");
  EXPECT_EQ(FormatNumber(86400.5), "86400.5");
  EXPECT_EQ(FormatSeconds(2), "2.0 s");
}

}  // namespace

TEST(OptionsThatWereRemovedAreNamed) {
  Config config;
  EXPECT(Config::FromEnvironment(&config).ok() && config.removed.empty());
  for (const char* name : {"SMDDP_NCCL_BETWEEN", "SMDDP_NCCL_REGISTER", "SMDDP_SOCKETS",
                           "SMDDP_TUNING", "SMDDP_ALLREDUCE"}) {
    Config one;
    ::setenv(name, "sockets", 1);
    Status status = Config::FromEnvironment(&one);
    ::unsetenv(name);
    EXPECT(status.ok(), status.message());
    EXPECT_EQ(one.allreduce, "");
    ASSERT(one.removed.size() == 1);
    EXPECT_EQ(one.removed[0].find(name), size_t{0});
    EXPECT(one.removed[0].find(" no longer exists: ") != std::string::npos, one.removed[0]);
  }
}

TEST(ChunksBetweenNodesGrowWithTheMessages) {
  EXPECT_EQ(ChunkBytesBetweenNodes(2, 1), size_t{256} << 10);
  EXPECT_EQ(ChunkBytesBetweenNodes(3, 1), size_t{512} << 10);
  EXPECT_EQ(ChunkBytesBetweenNodes(2, 2), size_t{1} << 20);
  EXPECT_EQ(ChunkBytesBetweenNodes(32, 8), size_t{1} << 20);
  EXPECT_EQ(ChunkBytesBetweenNodes(64, 8), size_t{2} << 20);
  EXPECT_EQ(ChunkBytesBetweenNodes(128, 8), size_t{4} << 20);
  EXPECT_EQ(ChunkBytesBetweenNodes(64, 1), size_t{1} << 20);
  EXPECT_EQ(ChunkBytesBetweenNodes(512, 8), size_t{4} << 20);
}

TEST(PartsCoverTheWholeOnceAndAlign) {
  for (size_t n : {0, 1, 15, 16, 17, 1000}) {
    for (int parts : {1, 2, 3, 7}) {
      size_t at = 0;
      for (int i = 0; i < parts; ++i) {
        Range part = PartOf(n, parts, i, 16);
        EXPECT_EQ(part.begin, at);
        EXPECT(part.begin % 16 == 0 || part.begin == n);
        at = part.end;
      }
      EXPECT_EQ(at, n);
    }
  }
}

TEST(TopologyOrdersRanksAndNodes) {
  std::vector<std::string> keys = {"b", "a", "b", "a", "a"};
  Topology topo = Topology::FromKeys(3, keys);
  EXPECT_EQ(topo.num_nodes, 2);
  EXPECT_EQ(topo.node, 1);
  EXPECT_EQ(topo.local_rank, 1);
  EXPECT_EQ(topo.local_size, 3);
  EXPECT_EQ(topo.owners, 2);
  EXPECT(!topo.homogeneous);
  EXPECT_EQ(topo.JobRank(2), 4);
  EXPECT_EQ(topo.RankOf(4), 4);
  // A set of some ranks: numbered in the set, known by their numbers in the job.
  Topology some = Topology::FromKeys(1, std::vector<int>{0, 1, 1}, {1, 4, 6});
  EXPECT_EQ(some.num_nodes, 2);
  EXPECT_EQ(some.local_rank, 0);
  EXPECT_EQ(some.JobRank(1), 6);
  EXPECT_EQ(some.RankOf(6), 2);
  EXPECT_EQ(some.RankOf(5), -1);
}

TEST(SpansAreOneLogicalArray) {
  char a[8] = "abcdefg", b[4] = "hij";
  SpanList spans({{a, a, 7}, {a, a, 0}, {b, b, 3}}, 1);
  std::string seen;
  spans.ForEach({5, 9}, [&](const char* in, char*, size_t first, size_t n) {
    EXPECT_EQ(first, seen.size());
    seen.append(in, n);
  });
  EXPECT_EQ(seen, std::string("fghi"));
}

TEST(EveryIsaRoundsSixteenBitFloatsAlike) {
  // All finite float16 and bfloat16 values, added to a value that makes rounding necessary.
  for (DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    uint16_t infinity = dtype == DType::kFloat16 ? 0x7c00 : 0x7f80;
    for (uint32_t bits = 0; bits < 0x10000; bits += 7) {
      if ((bits & infinity) == infinity) continue;
      auto value = static_cast<uint16_t>(bits);
      uint16_t generic = ReduceHalf("generic", dtype, std::vector<uint16_t>{value, 0x3555, 0x0123});
      for (const char* isa : {"avx2", "avx512", "neon"}) {
        ASSERT_EQ(ReduceHalf(isa, dtype, {value, 0x3555, 0x0123}), generic, isa);
      }
      // Alone, a value comes back as it was.
      ASSERT_EQ(ReduceHalf("generic", dtype, {value}), value);
    }
  }
}

TEST(SixteenBitSumsAreMadeInFloat32) {
  // 2048 + 1 + 1 in float16: one by one it stays 2048, in float32 it is 2050.
  EXPECT_EQ(ReduceHalf("", DType::kFloat16, {0x6800, 0x3c00, 0x3c00}), uint16_t{0x6801});
}

TEST(IntegerAveragesAreExact) {
  int64_t a = std::numeric_limits<int32_t>::max(), b = a - 1;
  int32_t in[2] = {static_cast<int32_t>(a), static_cast<int32_t>(b)};
  const void* sources[2] = {&in[0], &in[1]};
  int32_t out = 0;
  FindReduce(DType::kInt32, Combine::kSum,
             ReduceStage::kFull)({sources, 2, 1, &out, nullptr, 1, 2});
  EXPECT_EQ(out, static_cast<int32_t>((a + b) / 2));
}

TEST(SignaturesSeeEveryDifference) {
  Request base;
  base.name = "x";
  base.tensors = {{nullptr, nullptr, {2, 3}}, {nullptr, nullptr, {}}};
  std::vector<Request> others(9, base);
  others[0].kind = Kind::kBroadcast;
  others[1].dtype = DType::kFloat64;
  others[2].op = ReduceOp::kSum;
  others[3].root = 1;
  others[4].name = "y";
  others[5].tensors[0].dims = {3, 2};
  others[6].tensors.pop_back();
  others[7].prescale = 0.5;
  others[8].run = 2;
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT(others[i].Signature() != base.Signature(), std::to_string(i));
  }
  EXPECT_EQ(Request(base).Signature(), base.Signature());
}

TEST(AMismatchNamesRankTensorAndBothSides) {
  std::string a = "allreduce 'x' op=Sum\nfloat32 [2]\nfloat32 [5]\n";
  std::string b = "allreduce 'x' op=Sum\nfloat32 [2]\nfloat64 [5]\n";
  std::string text = ExplainMismatch({4, 5, 6}, {a, a, b});
  for (const char* part : {"tensor 1", "rank 4 has [float32 [5]]", "rank 6 has [float64 [5]]"}) {
    EXPECT(text.find(part) != std::string::npos, text);
  }
}

TEST(ATraceCutsLongNamesBetweenCharacters) {
  char path[] = "/tmp/smddp_trace_XXXXXX";
  ASSERT(::mkdtemp(path) != nullptr);
  for (size_t ascii : {0, 1, 2}) {
    Timeline timeline;
    ASSERT(timeline.Start(std::string(path) + "/trace.json", 0).ok());
    TimelineEvent event;
    event.title = std::string(ascii, 'x');
    for (int i = 0; i < 100; ++i) event.title += "\u8272";  // of three bytes
    timeline.Add(event);
    timeline.Stop();
    std::string file = std::string(path) + "/trace.rank0.json", name;
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("\u8272") != std::string::npos) name = line.substr(line.find("\u8272"));
    }
    name = name.substr(0, name.find('"'));
    EXPECT_EQ(name.size(), (200 - ascii) / 3 * 3);
    ::unlink(file.c_str());
  }
  ::rmdir(path);
}

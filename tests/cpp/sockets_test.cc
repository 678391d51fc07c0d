// The allreduce among sockets: its sums, what it reads from other sockets, when it is chosen, and
// who knows on which socket a rank runs.
#include "collective/host/sockets_allreduce.h"

#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "allreduce_values.h"
#include "check.h"
#include "engine/connect/sockets.h"
#include "inproc_job.h"
#include "kernels/half.h"
#include "transport/shm/segment.h"

namespace {

using namespace smddp;
using smddp_test::AdvanceAll;
using smddp_test::Expected;
using smddp_test::InprocJob;
using smddp_test::Input;
using smddp_test::kChunk;
using smddp_test::RunRanks;
using smddp_test::TypeOf;

// The socket of each rank.
using Places = std::vector<int>;
const Places kPlaces[] = {{0, 0, 1, 1},              // 2 + 2
                          {0, 1, 0, 1},              // as with --map-by socket
                          {0, 0, 0, 1},              // 3 + 1
                          {1, 0, 0, 0, 0},           // 1 + 4
                          {0, 0, 1, 1, 1},           // 2 + 3
                          {0, 0, 0, 0, 1, 1, 1, 1},  // 4 + 4
                          {0, 0, 1, 1, 2, 2},        // 2 + 2 + 2
                          {0, 1, 2, 0, 1, 2, 1},     // 2 + 3 + 2
                          {0, 1}};

std::string Case(const Places& places, size_t count, const char* what) {
  std::string text = std::string(what) + " of " + std::to_string(count) + " on sockets";
  for (int socket : places) text += " " + std::to_string(socket);
  return text;
}

Request RequestOf(DType dtype, ReduceOp op, void* in, void* out, size_t count) {
  Request request;
  request.dtype = dtype;
  request.op = op;
  request.name = "x";
  size_t first = count / 3, bytes = first * Info(dtype).size;
  request.tensors = {
      {in, out, {static_cast<int64_t>(first)}},
      {in, out, {0}},
      {static_cast<char*>(in) + bytes,
       static_cast<char*>(out) + bytes,
       {static_cast<int64_t>(count - first)}},
  };
  return request;
}

template <typename T>
void CheckAllreduce(const Places& places, ReduceOp op, bool in_place, StagingMode staging) {
  int size = static_cast<int>(places.size());
  InprocJob job(size, 1, kChunk);
  job.PlaceOnSockets(places);
  for (int r = 0; r < size; ++r) job.resources(r).staging_choice.Force(staging);
  RunRanks(size, [&](int rank) {
    for (size_t count : {size_t{0}, size_t{1}, places.size() + 1, kChunk / 3, size_t{20011}}) {
      std::vector<T> in(count), out(count, T(99));
      for (size_t i = 0; i < count; ++i) in[i] = Input<T>(rank, i);
      T* to = in_place ? in.data() : out.data();
      Request request = RequestOf(TypeOf<T>::value, op, in.data(), to, count);
      Status status = job.Run(rank, request, "sockets");
      ASSERT(status.ok(), status.message());
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(to[i], (Expected<T>(op, size, i)), Case(places, count, ReduceOpName(op)));
      }
    }
  });
}

// Each rank's numbers are summed by bits: of float32, whose sums depend on their order.
float Number(int rank, size_t i) {
  uint64_t bits = (i * 64 + static_cast<uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15ull;
  return static_cast<float>(bits >> 40) * (bits & 1 ? 1.0f : -1e-4f);
}

// The ranks of each socket are summed first, in their order, then the sockets.
float SumBySocket(const Places& places, size_t i) {
  int sockets = 1 + *std::max_element(places.begin(), places.end());
  float sum = 0;
  for (int socket = 0; socket < sockets; ++socket) {
    float partial = 0;
    for (size_t r = 0; r < places.size(); ++r) {
      if (places[r] == socket) partial += Number(static_cast<int>(r), i);
    }
    sum += partial;
  }
  return sum;
}

std::string Reasons(InprocJob* job, const Request& request) {
  std::string why;
  static_cast<void>(Selector().Make(&job->resources(0), &request, &why));
  return why;
}

}  // namespace

TEST(SocketsSumEveryDtype) {
  for (const Places& places : kPlaces) {
    for (StagingMode staging : {StagingMode::kAuto, StagingMode::kCached}) {
      CheckAllreduce<float>(places, ReduceOp::kSum, true, staging);
      CheckAllreduce<int8_t>(places, ReduceOp::kSum, false, staging);
    }
    CheckAllreduce<double>(places, ReduceOp::kSum, false, StagingMode::kAuto);
    CheckAllreduce<int32_t>(places, ReduceOp::kSum, true, StagingMode::kAuto);
    CheckAllreduce<int64_t>(places, ReduceOp::kSum, false, StagingMode::kAuto);
    CheckAllreduce<uint8_t>(places, ReduceOp::kSum, true, StagingMode::kAuto);
  }
}

TEST(SocketsHaveEveryReduceOp) {
  for (const Places& places : kPlaces) {
    for (ReduceOp op : {ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      CheckAllreduce<float>(places, op, true, StagingMode::kAuto);
      CheckAllreduce<int32_t>(places, op, false, StagingMode::kAuto);
      CheckAllreduce<uint8_t>(places, op, true, StagingMode::kAuto);
    }
  }
}

TEST(AllRanksOfAllSocketsHoldTheSameBits) {
  constexpr size_t kCount = 10007;
  for (const Places& places : kPlaces) {
    int size = static_cast<int>(places.size());
    if (places[0] != 0) continue;  // sockets are numbered by their first ranks
    InprocJob job(size, 1, kChunk);
    job.PlaceOnSockets(places);
    RunRanks(size, [&](int rank) {
      std::vector<float> data(kCount);
      for (size_t i = 0; i < kCount; ++i) data[i] = Number(rank, i);
      Request request =
          RequestOf(DType::kFloat32, ReduceOp::kSum, data.data(), data.data(), kCount);
      request.postscale = 0.5;
      ASSERT(job.Run(rank, request, "sockets").ok());
      for (size_t i = 0; i < kCount; ++i) {
        float want = SumBySocket(places, i) * 0.5f;
        ASSERT_EQ(std::memcmp(&data[i], &want, sizeof want), 0, Case(places, i, "bits"));
      }
    });
  }
}

// 256 + 1 is no bfloat16, but the sum of all is.
TEST(SocketsSumSixteenBitFloatsInFloat32) {
  const float inputs[] = {256, 1, 1, -256};
  InprocJob job(4, 1, kChunk);
  job.PlaceOnSockets({0, 0, 1, 1});
  RunRanks(4, [&](int rank) {
    std::vector<uint16_t> data(5000, FloatToBfloat16(inputs[rank]));
    Request request =
        RequestOf(DType::kBfloat16, ReduceOp::kSum, data.data(), data.data(), data.size());
    ASSERT(job.Run(rank, request, "sockets").ok());
    for (uint16_t bits : data) ASSERT_EQ(Bfloat16ToFloat(bits), 2.0f);
  });
}

// Operations of both algorithms in turn, some of which differ on one rank.
TEST(AMismatchAmongSocketsIsSeenByAll) {
  for (const Places& places : {kPlaces[0], kPlaces[2], kPlaces[6]}) {
    int size = static_cast<int>(places.size());
    InprocJob job(size, 1, kChunk);
    job.PlaceOnSockets(places);
    RunRanks(size, [&](int rank) {
      for (int round = 0; round < 12; ++round) {
        bool odd_one = round % 4 == 1 && rank == size - 1;
        std::vector<float> data(odd_one ? 30000 : 5000, 1.0f);
        Request request =
            RequestOf(DType::kFloat32, ReduceOp::kSum, data.data(), data.data(), data.size());
        Status status = job.Run(rank, request, round % 3 == 0 ? "shm" : "sockets");
        if (round % 4 == 1) {
          ASSERT_EQ(status.code(), Code::kMismatch, status.message());
          EXPECT_EQ(data[0], 1.0f);
        } else {
          ASSERT(status.ok(), status.message());
          EXPECT_EQ(data.back(), static_cast<float>(size));
        }
      }
    });
  }
}

// Half the payload comes from the other socket to be summed, half as results: in all once the
// payload, however many ranks there are. The flat algorithm reads half of it by each rank, twice.
TEST(WhatCrossesTheSocketsDoesNotGrowWithTheRanks) {
  constexpr size_t kCount = 24000;
  for (int each : {2, 3, 4}) {
    for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
      Places places;
      for (int r = 0; r < 2 * each; ++r) places.push_back(r / each);
      InprocJob job(2 * each, 1, kChunk);
      job.PlaceOnSockets(places);
      std::vector<std::vector<char>> data(2 * each, std::vector<char>(kCount * 4));
      std::vector<Request> requests(2 * each);
      std::vector<std::unique_ptr<Collective>> ranks;
      for (int r = 0; r < 2 * each; ++r) {
        requests[r] = RequestOf(dtype, ReduceOp::kSum, data[r].data(), data[r].data(), kCount);
        ranks.push_back(std::make_unique<SocketsAllreduce>(&job.resources(r), &requests[r]));
      }
      ASSERT(AdvanceAll(ranks));
      size_t into[2] = {0, 0};
      for (int r = 0; r < 2 * each; ++r) {
        into[r / each] += static_cast<SocketsAllreduce*>(ranks[r].get())->far_bytes();
      }
      size_t payload = kCount * Info(dtype).size;
      // Partial sums of 16-bit floats are twice as wide.
      size_t both = dtype == DType::kFloat32 ? 2 * payload : 3 * payload;
      EXPECT_EQ(into[0] + into[1], both, Case(places, kCount, Info(dtype).name));
      // The end of a chunk may give one socket a line more.
      EXPECT(into[0] * 20 < into[1] * 21 && into[1] * 20 < into[0] * 21, "both alike");
    }
  }
}

TEST(SocketsAreUsedWhereAQuarterCrosses) {
  struct Case {
    Places places;
    DType dtype;
    size_t count;
    const char* why;
  };
  const Case cases[] = {
      {{0, 0, 0, 0, 1, 1, 1, 1}, DType::kFloat32, 1 << 20, "sockets: taken"},
      {{0, 1, 0, 1, 0, 1, 0, 1}, DType::kInt64, 1 << 20, "sockets: taken"},
      {{0, 0, 0, 0, 1, 1, 1, 1}, DType::kFloat32, 8 << 10, "sockets: the payload is small"},
      {{0, 0, 0, 0, 1, 1, 1, 1}, DType::kFloat16, 1 << 20, "sockets: a socket has too few ranks"},
      {{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}, DType::kFloat16, 1 << 20, "sockets: taken"},
      {{0, 0, 0, 1, 1, 1}, DType::kFloat32, 1 << 20, "sockets: a socket has too few ranks"},
      {{0, 0, 0, 0, 1}, DType::kFloat32, 1 << 20, "sockets: a socket has too few ranks"},
      {{0, 1}, DType::kFloat32, 1 << 20, "sockets: a socket has too few ranks"},
      {{0, 0, 0, 0}, DType::kFloat32, 1 << 20, "sockets: the ranks are on one socket"},
      {{0, 0, 1, -1}, DType::kFloat32, 1 << 20, "sockets: the ranks are on one socket"},
  };
  for (const Case& one : cases) {
    InprocJob job(static_cast<int>(one.places.size()), 1, kChunk);
    job.PlaceOnSockets(one.places);
    float unused;
    Request request = RequestOf(one.dtype, ReduceOp::kSum, &unused, &unused, one.count);
    std::string why = Reasons(&job, request);
    EXPECT(why.find(one.why) != std::string::npos, why);
  }
  // A line for each of 2 * 40 parts, and as many partial sums, do not fit in 4 KiB.
  Places many;
  for (int r = 0; r < 80; ++r) many.push_back(r % 2);
  InprocJob job(80, 1, kChunk);
  job.PlaceOnSockets(many);
  float unused;
  Request request = RequestOf(DType::kFloat32, ReduceOp::kSum, &unused, &unused, 1 << 20);
  std::string why = Reasons(&job, request);
  EXPECT(why.find("sockets: the slots are too small") != std::string::npos, why);
}

// So that they are in the memory of its socket.
TEST(EachRankCommitsItsOwnSlots) {
  for (int size : {1, 3, 8}) {
    size_t bytes = ShmGroup::BytesNeeded(size, kChunk), at = 0;
    std::vector<char> memory(bytes + 64);
    char* start = memory.data() + 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
    for (int r = 0; r < size; ++r) {
      Range part = ShmGroup::PartOf(r, size, kChunk);
      EXPECT_EQ(part.begin, at);
      EXPECT_EQ(part.end % 4096, 0u);
      at = part.end;
      ShmGroup shm(start, r, size, kChunk);
      for (int channel = 0; channel < kChannels; ++channel) {
        for (uint64_t chunk = 0; chunk < kSlots; ++chunk) {
          auto header = reinterpret_cast<char*>(&shm.header(r, channel, chunk)) - start;
          auto slot = shm.slot(r, channel, chunk) - start;
          EXPECT(static_cast<size_t>(header) >= part.begin, "a header");
          EXPECT(static_cast<size_t>(slot) + kChunk <= part.end, "a slot");
        }
      }
    }
    EXPECT_EQ(at, bytes);
  }
}

TEST(MemoryIsReservedBeforeItIsUsed) {
  constexpr size_t kBytes = 1 << 20;
  Segment segment;
  Status status = segment.Create(kBytes);
  ASSERT(status.ok(), status.message());
  auto reserved = [&] {
    struct stat info;
    EXPECT_EQ(::fstat(segment.fd(), &info), 0);
    return static_cast<size_t>(info.st_blocks) * 512;
  };
  EXPECT_EQ(reserved(), 0u);
  status = segment.Commit({kBytes / 4, kBytes / 2});
  EXPECT(status.ok(), status.message());
  EXPECT(reserved() >= kBytes / 4, "more if pages are large");
}

TEST(RanksArePlacedOnSockets) {
  Topology topo = Topology::FromKeys(3, std::vector<int>(5, 0));
  EXPECT_EQ(topo.sockets.size(), 1u);
  PlaceOnSockets(0, {7, 2, 7, 2, 2}, &topo);
  EXPECT(topo.sockets == std::vector<std::vector<int>>({{0, 2}, {1, 3, 4}}));
  EXPECT_EQ(topo.socket, 1);
  EXPECT_EQ(topo.socket_rank, 1);
  EXPECT_EQ(topo.socket_owners, 2);
  EXPECT_EQ(SocketsJson(topo), std::string("[[0, 2], [1, 3, 4]]"));
  EXPECT_EQ(topo.SocketOf(2), 0);
  EXPECT_EQ(topo.SocketOf(4), 1);
  // A set of ranks 1, 3 and 4 is on one socket, one of 0, 3 and 4 on two.
  Topology set = Topology::FromKeys(1, std::vector<int>(3, 0), {1, 3, 4});
  PlaceAsInJob(topo, &set);
  EXPECT_EQ(set.sockets.size(), 1u);
  set = Topology::FromKeys(1, std::vector<int>(3, 0), {0, 3, 4});
  PlaceAsInJob(topo, &set);
  EXPECT(set.sockets == std::vector<std::vector<int>>({{0}, {1, 2}}));
  EXPECT_EQ(set.socket, 1);
  // One rank that runs anywhere: nobody is taken to be far from another.
  PlaceOnSockets(0, {0, 1, Topology::kUnknownSocket, 1, 0}, &topo);
  EXPECT_EQ(topo.sockets.size(), 1u);
  EXPECT_EQ(topo.socket_rank, 3);
  // What the option says counts, and more sockets than ranks are as many.
  PlaceOnSockets(2, {0, 0, 0, 0, 0}, &topo);
  EXPECT(topo.sockets == std::vector<std::vector<int>>({{0, 1, 2}, {3, 4}}));
  PlaceOnSockets(9, {0, 0, 0, 0, 0}, &topo);
  EXPECT_EQ(topo.sockets.size(), 5u);
  PlaceOnSockets(1, {0, 0, 1, 1, 1}, &topo);
  EXPECT_EQ(topo.sockets.size(), 1u);
}

TEST(CoresTellTheirSocket) {
  char folder[] = "/tmp/smddp_sockets.XXXXXX";
  ASSERT(::mkdtemp(folder) != nullptr);
  std::string root = folder;
  const char* packages[] = {"0", "0", "3", "3", "-1", "x"};
  std::vector<std::string> made;
  for (int core = 0; core < 6; ++core) {
    for (const char* part : {"", "/topology"}) {
      made.push_back(root + "/cpu" + std::to_string(core) + part);
      ASSERT_EQ(::mkdir(made.back().c_str(), 0700), 0);
    }
    std::ofstream(made.back() + "/physical_package_id") << packages[core] << "\n";
  }
  auto socket_of = [&](std::vector<int> numbers) {
    std::vector<bool> cores(8);
    for (int core : numbers) cores[core] = true;
    return SocketOf(cores, root);
  };
  EXPECT_EQ(socket_of({0, 1}), 0);
  EXPECT_EQ(socket_of({2}), 3);
  EXPECT_EQ(socket_of({2, 3}), 3);
  for (const std::vector<int>& unknown :
       std::vector<std::vector<int>>{{1, 2}, {4}, {5}, {0, 6}, {}}) {
    EXPECT_EQ(socket_of(unknown), Topology::kUnknownSocket);
  }
  for (; !made.empty(); made.pop_back()) {
    static_cast<void>(std::remove((made.back() + "/physical_package_id").c_str()));
    EXPECT_EQ(std::remove(made.back().c_str()), 0);
  }
  EXPECT_EQ(std::remove(folder), 0);
}

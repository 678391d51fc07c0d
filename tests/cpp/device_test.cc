// Collectives on tensors in the memory of a device, which only its own copies can access: all kinds
// on all shapes of a job, joined ranks, mismatches and failures.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "check.h"
#include "core/ranges.h"
#include "engine_job.h"
#include "fake_device.h"
#include "transport/cuda/cuda_device.h"

namespace {

using namespace smddp_test;
using Values = std::vector<float>;

// Element i of rank r.
float Input(int rank, size_t i) { return static_cast<float>((i % 7) + static_cast<size_t>(rank)); }

Values Inputs(int rank, size_t begin, size_t count) {
  Values values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Input(rank, begin + i);
  return values;
}

void Append(Values* to, const Values& more) { to->insert(to->end(), more.begin(), more.end()); }

// Float tensors of one rank on a device, and a request for them.
class DeviceRequest {
 public:
  DeviceRequest(Device* device, Kind kind, const std::string& name) {
    request.kind = kind;
    request.op = ReduceOp::kSum;
    request.name = name;
    request.PlaceOn(device, nullptr);
  }

  // out_count: elements that this rank receives; SIZE_MAX: in place.
  void Add(const Values& in, std::vector<int64_t> dims, size_t out_count = SIZE_MAX) {
    memory_.push_back(std::make_unique<DeviceMemory>(in.size() * sizeof(float)));
    if (!in.empty()) std::memcpy(memory_.back()->bytes(), in.data(), in.size() * sizeof(float));
    void* address = memory_.back()->address();
    if (out_count != SIZE_MAX) {
      memory_.push_back(std::make_unique<DeviceMemory>(out_count * sizeof(float)));
    }
    request.tensors.push_back({address, memory_.back()->address(), std::move(dims)});
    outputs_.push_back(memory_.back().get());
    counts_.push_back(out_count == SIZE_MAX ? in.size() : out_count);
  }

  Values Output(size_t tensor) const {
    Values values(counts_[tensor]);
    if (!values.empty()) {
      std::memcpy(values.data(), outputs_[tensor]->bytes(), values.size() * sizeof(float));
    }
    return values;
  }

  // As a kernel would.
  void Fill(size_t tensor, float value) {
    auto* at = reinterpret_cast<float*>(memory_[tensor]->bytes());
    std::fill_n(at, counts_[tensor], value);
  }

  Request request;

 private:
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::vector<DeviceMemory*> outputs_;
  std::vector<size_t> counts_;
};

// Of the fake driver, which this program is linked to.
Device* FindCuda() {
  CudaDevice* device = nullptr;
  Status status = CudaDevice::Find(nullptr, &device);
  EXPECT(status.ok(), status.message());
  return device;
}

Values SumOfAll(int size, size_t begin, size_t count) {
  Values sum(count, 0);
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < count; ++i) sum[i] += Input(r, begin + i);
  }
  return sum;
}

// Runs body(rank, device, job) on each rank of each shape of a job, with each kind of device.
template <typename Fn>
void OnAllShapes(Fn&& body) {
  for (const JobShape& shape : kJobs) {
    FakeDevice fake;
    for (Device* device : {static_cast<Device*>(&fake), FindCuda()}) {
      InprocJob job(shape.size, shape.nodes, kChunk);
      RunRanks(shape.size, [&](int rank) { body(rank, shape, device, &job); });
    }
  }
}

constexpr size_t kCounts[] = {0, 1, 5, 1000, 20011};

}  // namespace

TEST(DeviceTensorsAreReduced) {
  OnAllShapes([](int rank, const JobShape& shape, Device* device, InprocJob* job) {
    for (size_t count : kCounts) {
      for (bool in_place : {true, false}) {
        DeviceRequest one(device, Kind::kAllreduce, "x");
        auto dims = std::vector<int64_t>{static_cast<int64_t>(count)};
        one.Add(Inputs(rank, 0, count), dims, in_place ? SIZE_MAX : count);
        one.Add({}, {0});
        one.Add(Inputs(rank, 3, 2), {2});
        Status status = job->Run(rank, one.request);
        ASSERT(status.ok(), status.message());
        EXPECT(one.Output(0) == SumOfAll(shape.size, 0, count), Case(shape, count, "allreduce"));
        EXPECT(one.Output(2) == SumOfAll(shape.size, 3, 2), Case(shape, count, "allreduce"));
      }
    }
  });
}

TEST(DeviceTensorsAreBroadcast) {
  OnAllShapes([](int rank, const JobShape& shape, Device* device, InprocJob* job) {
    for (size_t count : kCounts) {
      for (bool in_place : {true, false}) {
        DeviceRequest one(device, Kind::kBroadcast, "x");
        one.request.root = shape.size - 1;
        auto dims = std::vector<int64_t>{static_cast<int64_t>(count)};
        one.Add(Inputs(rank, 0, count), dims, in_place ? SIZE_MAX : count);
        Status status = job->Run(rank, one.request);
        ASSERT(status.ok(), status.message());
        EXPECT(one.Output(0) == Inputs(shape.size - 1, 0, count), Case(shape, count, "broadcast"));
      }
    }
  });
}

TEST(DeviceTensorsAreGathered) {
  OnAllShapes([](int rank, const JobShape& shape, Device* device, InprocJob* job) {
    for (size_t count : kCounts) {
      DeviceRequest one(device, Kind::kAllgather, "x");
      auto part = [&](int r) { return r == 1 ? 0 : count / (static_cast<size_t>(r) % 3 + 1); };
      Values want;
      for (int r = 0; r < shape.size; ++r) {
        one.request.part_bytes.push_back(part(r) * sizeof(float));
        Append(&want, Inputs(r, 0, part(r)));
      }
      one.Add(Inputs(rank, 0, part(rank)), {static_cast<int64_t>(part(rank))}, want.size());
      Status status = job->Run(rank, one.request);
      ASSERT(status.ok(), status.message());
      EXPECT(one.Output(0) == want, Case(shape, count, "allgather"));
    }
  });
}

TEST(DeviceTensorsAreExchanged) {
  OnAllShapes([](int rank, const JobShape& shape, Device* device, InprocJob* job) {
    for (size_t count : kCounts) {
      DeviceRequest one(device, Kind::kAlltoall, "x");
      auto part = [&](int from, int to) { return count / static_cast<size_t>(from + 2 * to + 1); };
      Values in, want;
      for (int from = 0; from < shape.size; ++from) {
        for (int to = 0; to < shape.size; ++to) {
          one.request.part_bytes.push_back(part(from, to) * sizeof(float));
          Values values = Inputs(from, static_cast<size_t>(to), part(from, to));
          if (from == rank) Append(&in, values);
          if (to == rank) Append(&want, values);
        }
      }
      one.Add(in, {static_cast<int64_t>(in.size())}, want.size());
      Status status = job->Run(rank, one.request);
      ASSERT(status.ok(), status.message());
      EXPECT(one.Output(0) == want, Case(shape, count, "alltoall"));
    }
  });
}

TEST(DeviceTensorsAreReducedAndScattered) {
  OnAllShapes([](int rank, const JobShape& shape, Device* device, InprocJob* job) {
    for (size_t rows : kCounts) {
      DeviceRequest one(device, Kind::kReduceScatter, "x");
      auto count = static_cast<int64_t>(rows);
      Range own = RowsOf(count, shape.size, rank);
      one.Add(Inputs(rank, 0, rows * 3), {count, 3}, own.size() * 3);
      one.Add(Inputs(rank, 0, rows), {count}, own.size());
      Status status = job->Run(rank, one.request);
      ASSERT(status.ok(), status.message());
      Values wide = SumOfAll(shape.size, own.begin * 3, own.size() * 3);
      EXPECT(one.Output(0) == wide, Case(shape, rows, "reducescatter"));
      EXPECT(one.Output(1) == SumOfAll(shape.size, own.begin, own.size()),
             Case(shape, rows, "reducescatter"));
    }
  });
}

TEST(HostBuffersOfADeviceAreKept) {
  FakeDevice device;
  InprocJob job(1, 1, kChunk);
  for (size_t count : {1000u, 10u, 1000u, 999u, 2000u, 1500u}) {
    DeviceRequest one(&device, Kind::kAllreduce, "x");
    one.Add(Inputs(0, 0, count), {static_cast<int64_t>(count)});
    EXPECT(job.Run(0, one.request).ok());
  }
  EXPECT_EQ(device.allocations(), 2);
}

TEST(ADeviceOperationWaitsUntilItsInputsAreComputed) {
  FakeDevice device;
  InprocJob job(2, 1, kChunk);
  std::atomic<bool> computed{false};
  RunRanks(2, [&](int rank) {
    DeviceRequest one(&device, Kind::kAllreduce, "x");
    one.Add(Values(100, 1), {100});
    std::thread kernel;
    if (rank == 1) {
      EXPECT(device.Record(&computed, &one.request.ready).ok());
      kernel = std::thread([&] {
        ::usleep(30000);
        one.Fill(0, 5);
        computed = true;
      });
    }
    Status status = job.Run(rank, one.request);
    EXPECT(status.ok() && computed && one.Output(0)[0] == 6, status.message());
    if (kernel.joinable()) kernel.join();
  });
}

// ---- whole ranks of the engine ------------------------------------------------------------------

TEST(AJoinedRankServesDeviceTensors) {
  for (int nodes : {1, 2}) {
    FakeDevice device;
    Wires wires(4, nodes);
    RunRanks(4, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      for (int batch = 0; batch < 3 - (rank == 1); ++batch) {
        DeviceRequest one(&device, Kind::kAllreduce, "x");
        one.Add(Inputs(rank, 0, 5000), {5000});
        Status status = everybody->Run(one.request);
        ASSERT(status.ok(), status.message());
        Values want = SumOfAll(4, 0, 5000);
        for (size_t i = 0; batch == 2 && i < want.size(); ++i) want[i] -= Input(1, i);
        EXPECT(one.Output(0) == want, "batch " + std::to_string(batch));
      }
      int last = -1;
      Status joined = everybody->Join(&last);
      EXPECT(joined.ok(), joined.message());
      EXPECT(last != 1);
      communicator->Leave(false);
    });
  }
}

TEST(HostAndDeviceTensorsAreAMismatch) {
  for (int nodes : {1, 2}) {
    FakeDevice device;
    Wires wires(4, nodes);
    RunRanks(4, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      DeviceRequest one(&device, Kind::kAllreduce, "x");
      one.Add(Inputs(rank, 0, 100), {100});
      Values host = Inputs(rank, 0, 100);
      Request other = Sum(host.data(), "x", 100);
      Status status = everybody->Run(rank == 3 ? other : one.request);
      EXPECT(status.code() == Code::kMismatch, status.message());
      EXPECT(status.message().find("in fake memory") != std::string::npos, status.message());
      EXPECT(one.Output(0) == Inputs(rank, 0, 100), "a tensor was changed");
      status = everybody->Run(one.request);
      EXPECT(status.ok() && one.Output(0) == SumOfAll(4, 0, 100), status.message());
      communicator->Leave(false);
    });
  }
}

TEST(ADeviceWhoseCopiesFailIsAnErrorOnAllRanks) {
  for (int n : {0, 1}) {  // to the host, and from it
    FakeDevice good, bad;
    bad.FailFrom(n);
    Wires wires(3, 1);
    RunRanks(3, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      Status status;
      for (int i = 0; i < 2 && status.ok(); ++i) {  // at the first a peer may be done already
        DeviceRequest one(rank == 1 ? &bad : &good, Kind::kAllreduce, "x");
        one.Add(Inputs(rank, 0, 100), {100});
        status = everybody->Run(one.request);
      }
      EXPECT(status.message().find("the bus has failed") != std::string::npos, status.message());
      EXPECT(status.message().find("rank 1 failed in") != std::string::npos, status.message());
      communicator->Leave(true);
    });
  }
}

TEST(ADeviceThatNeverComputesIsNamedAtTheTimeout) {
  // Outlive the devices, which read them when they compute after all.
  std::vector<std::unique_ptr<DeviceRequest>> requests(2);
  FakeDevice devices[2];
  Wires wires(2, 1);
  std::atomic<bool> computed{false};
  std::atomic<int> left{2};
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank, 1);
    auto everybody = Everybody(*communicator);
    requests[rank] = std::make_unique<DeviceRequest>(&devices[rank], Kind::kAllreduce, "x");
    DeviceRequest& one = *requests[rank];
    one.Add(Inputs(rank, 0, 100), {100});
    if (rank == 0) EXPECT(devices[rank].Record(&computed, &one.request.ready).ok());
    Status status = everybody->Run(one.request);
    EXPECT(status.code() == Code::kTimeout, status.message());
    bool named = status.message().find("rank 0 waited") != std::string::npos &&
                 status.message().find("its own device") != std::string::npos;
    named |= status.message().find("rank 1 waited") != std::string::npos &&
             status.message().find("for rank 0") != std::string::npos;
    EXPECT(named, status.message());
    communicator->Leave(true);
    --left;
    while (left > 0) ::usleep(1000);
    computed = true;  // or the device would never end
  });
}

TEST(ATensorOfADeviceIsNotWrittenAfterItsOperationHasFailed) {
  for (int round = 0; round < 3; ++round) {
    FakeDevice device;
    device.Slow(100000 * (round + 1));
    Wires wires(2, 1);
    RunRanks(2, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      DeviceRequest one(&device, Kind::kAllreduce, "x");
      one.Add(Inputs(rank, 0, 100000), {100000});
      std::thread breaker([&] {
        ::usleep(150000);
        FailSet(everybody.get(), {Code::kRemote, "rank 9 died"});
      });
      Status status = everybody->Run(one.request);
      Values then = one.Output(0);
      ::usleep(500000);
      EXPECT(status.ok() || one.Output(0) == then, "written after the call had returned");
      breaker.join();
      communicator->Leave(true);
    });
  }
}

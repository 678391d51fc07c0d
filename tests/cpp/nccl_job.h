// Ranks as threads, each with a GPU of the fake driver, whose tensors NCCL may reduce: the one in
// ../fake_nccl, which this program is linked to.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "check.h"
#include "core/ranges.h"
#include "engine_job.h"
#include "fake_device.h"
#include "nccl.h"
#include "transport/cuda/cuda_device.h"
#include "transport/nccl/nccl_group.h"

namespace smddp_test {

// Sets an environment variable, of the fakes, for a scope.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

// What the fake driver takes for kernels (fake_cuda/kernels.cc).
inline constexpr uint64_t kKernels[] = {0xba55ed50};

inline NcclOptions Nccl(bool required = false, double connect_seconds = 20) {
  NcclOptions options;
  options.kernels = kKernels;
  options.required = required;
  options.connect_seconds = connect_seconds;
  return options;
}

// One process set's NCCL, without the engine.
class NcclJob {
 public:
  NcclJob(int size, int nodes, const NcclOptions& options = Nccl())
      : NcclJob(size, nodes, std::vector<NcclOptions>(static_cast<size_t>(size), options)) {}
  NcclJob(int size, int nodes, const std::vector<NcclOptions>& options)
      : job_(size, nodes, kChunk) {
    for (int r = 0; r < size; ++r) {
      groups_.push_back(std::make_unique<NcclGroup>(options[static_cast<size_t>(r)]));
      job_.resources(r).devices = groups_.back().get();
    }
  }
  Status Run(int rank, const Request& request) { return job_.Run(rank, request); }
  NcclGroup* group(int rank) { return groups_[static_cast<size_t>(rank)].get(); }

 private:
  InprocJob job_;
  std::vector<std::unique_ptr<NcclGroup>> groups_;
};

// The same for whole ranks of the engine.
struct NcclWires : Wires {
  NcclWires(int size, int nodes, const NcclOptions& options = Nccl()) : Wires(size, nodes) {
    for (size_t r = 0; r < connections.size(); ++r) {
      connections[r]->devices = std::make_unique<NcclGroup>(options);
      for (ChannelResources& channel : connections[r]->channels) {
        channel.devices = connections[r]->devices.get();
      }
    }
  }
};

inline CudaDevice* Gpu(int number) {
  DeviceMemory somewhere(1, number);
  CudaDevice* device = nullptr;
  Status status = CudaDevice::Find(somewhere.address(), &device);
  EXPECT(status.ok(), status.message());
  return device;
}

// Work of a GPU that ends when it is told to, which may be after the test that began it.
class Gate {
 public:
  DevicePoint In(int gpu) {
    void* stream = nullptr;
    EXPECT(Gpu(gpu)->NewStream(&stream).ok());
    auto kernel = [](void* data) {
      const std::unique_ptr<Flag> open(static_cast<Flag*>(data));
      while (!**open) ::usleep(500);
    };
    EXPECT_EQ(FakeLaunch(stream, kernel, new Flag(open_)), 0);
    DevicePoint point;
    EXPECT(Gpu(gpu)->Record(stream, &point).ok());
    return point;
  }
  void Open() { *open_ = true; }

 private:
  using Flag = std::shared_ptr<std::atomic<bool>>;
  const Flag open_ = std::make_shared<std::atomic<bool>>(false);
};

// A request of tensors on one GPU, whose elements are small integers: an allreduce, until its kind
// is changed.
template <typename T>
class GpuRequest {
 public:
  GpuRequest(int gpu, DType dtype, ReduceOp op, const std::string& name) : gpu_(gpu) {
    request.dtype = dtype;
    request.op = op;
    request.name = name;
    request.PlaceOn(Gpu(gpu), nullptr);
  }

  template <typename Fn>
  void Add(size_t count, bool in_place, Fn&& element) {
    AddWithOutput(count, in_place ? kInPlace : count, element);
  }
  // A tensor whose output has another size.
  template <typename Fn>
  void AddWithOutput(size_t count, size_t out_count, Fn&& element) {
    auto add = [&](size_t n) {
      memory_.push_back(std::make_unique<DeviceMemory>(n * sizeof(T), gpu_));
      return memory_.back().get();
    };
    DeviceMemory *in = add(count), *out = out_count == kInPlace ? in : add(out_count);
    T* values = reinterpret_cast<T*>(in->bytes());
    for (size_t i = 0; i < count; ++i) values[i] = fake_nccl::To<T>(element(i));
    request.tensors.push_back({in->address(), out->address(), {static_cast<int64_t>(count)}});
    outputs_.push_back(out);
  }

  double At(size_t tensor, size_t i) const {
    return static_cast<double>(
        fake_nccl::Value(reinterpret_cast<const T*>(outputs_[tensor]->bytes())[i]));
  }

  Request request;

 private:
  static constexpr size_t kInPlace = ~size_t{0};
  int gpu_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::vector<DeviceMemory*> outputs_;
};

// A sum of `count` floats, element i of rank r being i % 7 + r.
inline std::unique_ptr<GpuRequest<float>> FloatSum(int gpu, size_t count,
                                                   const std::string& name = "x") {
  auto made = std::make_unique<GpuRequest<float>>(gpu, DType::kFloat32, ReduceOp::kSum, name);
  made->Add(count, true, [gpu](size_t i) { return static_cast<double>(i % 7) + gpu; });
  return made;
}
// Has each element of the one tensor be a tensor.
inline void SplitInElements(Request* request) {
  TensorArg whole = request->tensors[0];
  size_t size = Info(request->dtype).size;
  request->tensors.clear();
  for (size_t i = 0; i < static_cast<size_t>(whole.dims[0]); ++i) {
    request->tensors.push_back({static_cast<const char*>(whole.in) + i * size,
                                static_cast<char*>(whole.out) + i * size,
                                {1}});
  }
}
inline double SumAt(size_t i, int size) {
  return static_cast<double>(i % 7) * size + size * (size - 1) / 2.0;
}

// Of so many tensors, which are packed if they are several; checks the sums.
inline void SumOnTwoRanks(NcclJob* job, int tensors) {
  RunRanks(2, [&](int rank) {
    auto one = FloatSum(rank, 100);
    for (int t = 1; t < tensors; ++t) one->Add(9, true, [&](size_t) { return rank; });
    Status status = job->Run(rank, one->request);
    EXPECT(status.ok() && one->At(0, 50) == SumAt(50, 2), status.message());
    EXPECT(tensors == 1 || one->At(1, 8) == 1);
  });
}

// A sum of which rank 2 has another shape; checks that all ranks say so, and have changed nothing.
inline void RunMismatched(RankSet* set, int rank) {
  auto one = FloatSum(rank, rank == 2 ? 101 : 100);
  Status status = set->Run(one->request);
  EXPECT(status.code() == Code::kMismatch && status.message().find("[101]") != std::string::npos,
         status.message());
  EXPECT(one->At(0, 0) == rank, "a tensor was changed");
}

// Whose reductions are exact in every dtype, but for the averages of floats over some sizes.
inline double SmallNumber(int rank, size_t i) {
  return static_cast<double>((i + static_cast<size_t>(rank)) % 3 + 1);
}

inline double Reduced(ReduceOp op, int size, size_t i) {
  double result = SmallNumber(0, i);
  for (int r = 1; r < size; ++r) {
    double x = SmallNumber(r, i);
    if (op == ReduceOp::kMin) {
      result = std::min(result, x);
    } else if (op == ReduceOp::kMax) {
      result = std::max(result, x);
    } else {
      result = op == ReduceOp::kProduct ? result * x : result + x;
    }
  }
  return op == ReduceOp::kAverage ? std::trunc(result / size) : result;
}

// A collective of any kind that NCCL takes, of floats, element i of rank r being i % 7 + r.
struct FloatsOf {
  Kind kind;
  int size;
  size_t count;

  int root() const { return size - 1; }
  // Of an allgather; rank 1 has nothing.
  size_t rows(int rank) const { return rank == 1 ? 0 : count + 3 * static_cast<size_t>(rank); }

  // Of an alltoall, in which some have nothing for each other.
  size_t sent(int from, int to) const {
    return (from + to) % 3 == 0 ? 0 : count + static_cast<size_t>(from + 2 * to);
  }
  size_t sent_before(int from, int to) const {
    size_t sum = 0;
    for (int r = 0; r < to; ++r) sum += sent(from, r);
    return sum;
  }
  Range own_rows(int rank) const { return RowsOf(static_cast<int64_t>(count), size, rank); }

  std::unique_ptr<GpuRequest<float>> Make(int rank, const std::string& name = "x") const {
    auto made = std::make_unique<GpuRequest<float>>(rank, DType::kFloat32, ReduceOp::kSum, name);
    made->request.kind = kind;
    made->request.root = root();
    auto element = [rank](size_t i) { return Element(rank, i); };
    if (kind == Kind::kReduceScatter) {
      made->AddWithOutput(count, own_rows(rank).size(), element);
      return made;
    }
    if (kind == Kind::kAlltoall) {
      for (int i = 0; i < size * size; ++i) {
        made->request.part_bytes.push_back(sent(i / size, i % size) * sizeof(float));
      }
      made->AddWithOutput(sent_before(rank, size), Wanted(rank).size(), element);
      return made;
    }
    if (kind != Kind::kAllgather) {
      made->Add(count, true, element);
      return made;
    }
    size_t total = 0;
    for (int r = 0; r < size; ++r) {
      made->request.part_bytes.push_back(rows(r) * sizeof(float));
      total += rows(r);
    }
    made->AddWithOutput(rows(rank), total, element);
    return made;
  }

  // What the rank gets.
  std::vector<double> Wanted(int rank) const {
    std::vector<double> wanted;
    auto add = [&](int r, size_t n) {
      for (size_t i = 0; i < n; ++i) wanted.push_back(Element(r, i));
    };
    auto add_sums = [&](Range range) {
      for (size_t i = range.begin; i < range.end; ++i) wanted.push_back(SumAt(i, size));
    };
    if (kind == Kind::kBroadcast) add(root(), count);
    for (int r = 0; r < size && kind == Kind::kAllgather; ++r) add(r, rows(r));
    for (int r = 0; r < size && kind == Kind::kAlltoall; ++r) {
      size_t begin = sent_before(r, rank);
      for (size_t i = 0; i < sent(r, rank); ++i) wanted.push_back(Element(r, begin + i));
    }
    if (kind == Kind::kAllreduce) add_sums({0, count});
    if (kind == Kind::kReduceScatter) add_sums(own_rows(rank));
    return wanted;
  }
  bool IsRight(int rank, const GpuRequest<float>& one) const {
    std::vector<double> wanted = Wanted(rank);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (one.At(0, i) != wanted[i]) return false;
    }
    return true;
  }

 private:
  static double Element(int rank, size_t i) { return static_cast<double>(i % 7) + rank; }
};
inline constexpr Kind kKindsOfNccl[] = {Kind::kAllreduce, Kind::kBroadcast, Kind::kAllgather,
                                        Kind::kReduceScatter, Kind::kAlltoall};

// Calls fn(value, dtype), the value being of the dtype's type, for all of them.
template <typename Fn>
void ForEachDType(Fn&& fn) {
  fn(float{}, DType::kFloat32);
  fn(double{}, DType::kFloat64);
  fn(fake_nccl::Half{}, DType::kFloat16);
  fn(fake_nccl::Bfloat16{}, DType::kBfloat16);
  fn(int8_t{}, DType::kInt8);
  fn(uint8_t{}, DType::kUint8);
  fn(int16_t{}, DType::kInt16);
  fn(uint16_t{}, DType::kUint16);
  fn(int32_t{}, DType::kInt32);
  fn(int64_t{}, DType::kInt64);
  fn(bool{}, DType::kBool);
}

// Calls of a function of NCCL since this was made.
class Calls {
 public:
  explicit Calls(const char* function) : function_(function), before_(FakeNcclCalls(function)) {}
  int count() const { return FakeNcclCalls(function_) - before_; }

 private:
  const char* function_;
  int before_;
};

// Kernels whose names begin like that, launched since this was made.
class Launches {
 public:
  explicit Launches(const char* name) : name_(name), before_(FakeLaunches(name)) {}
  int count() const { return FakeLaunches(name_) - before_; }

 private:
  const char* name_;
  int before_;
};

}  // namespace smddp_test

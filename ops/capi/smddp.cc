#include "capi/smddp.h"

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "core/log.h"
#include "engine/communicator.h"
#include "kernels/reduce.h"

using namespace smddp;  // the C functions of this file are the only users

struct smddp_plan {
  std::shared_ptr<const PlanInfo> info;
};

namespace {

// The one mutable global of the library. It is never destroyed: threads of TensorFlow may still
// call in while the process ends.
std::mutex init_mutex;
std::atomic<Communicator*> communicator{nullptr};

thread_local std::string last_error;

int Return(const Status& status) {
  if (!status.ok()) last_error = status.message();
  return static_cast<int>(status.code());
}

Status NotInitialized() {
  return {Code::kNotInitialized,
          "smddp_tf has not been initialized; call smddp_tf.init() before any collective"};
}

Status Refuse(const std::string& text) { return {Code::kUsage, text}; }

Status CheckReduction(const smddp_request& in, const DTypeInfo& dtype) {
  if (in.op < 0 || in.op > 5 || in.op == static_cast<int>(ReduceOp::kAdasum)) {
    return Refuse("reduce op " + std::to_string(in.op) +
                  " is not supported; use Average, Sum, Min, Max or Product");
  }
  if (dtype.accum_size == 0) {
    return Refuse(std::string("allreduce of ") + dtype.name +
                  " is not supported; it takes float16, bfloat16, float32, float64, uint8, int8, "
                  "int32 and int64");
  }
  return {};
}

// Checks the arguments and copies them; nothing has been sent when this fails.
Status Convert(const smddp_request& in, const Topology& topo, Request* out) {
  const DTypeInfo* dtype = FindDType(in.dtype);
  if (in.kind < 0 || in.kind > 3) return Refuse("unknown collective " + std::to_string(in.kind));
  if (dtype == nullptr) {
    return Refuse("TensorFlow dtype number " + std::to_string(in.dtype) + " is not supported");
  }
  if (in.process_set != 0) {
    return Refuse("process set " + std::to_string(in.process_set) + " does not exist; 0 is all");
  }
  out->kind = static_cast<Kind>(in.kind);
  if (out->kind == Kind::kAllreduce) {
    Status checked = CheckReduction(in, *dtype);
    if (!checked.ok()) return checked;
  }
  if (out->kind == Kind::kBroadcast && (in.root < 0 || in.root >= topo.size)) {
    return Refuse("root_rank " + std::to_string(in.root) + " is out of range; there are " +
                  std::to_string(topo.size) + " ranks, 0 to " + std::to_string(topo.size - 1));
  }
  out->dtype = dtype->dtype;
  out->op = static_cast<ReduceOp>(in.op);
  out->root = in.root;
  out->prescale = in.prescale;
  out->postscale = in.postscale;
  out->name = in.name != nullptr ? in.name : "";
  out->tensors.reserve(in.num_tensors);
  for (int i = 0; i < in.num_tensors; ++i) {
    const smddp_tensor& tensor = in.tensors[i];
    out->tensors.push_back(
        {tensor.in, tensor.out, std::vector<int64_t>(tensor.dims, tensor.dims + tensor.ndim)});
  }
  if (out->kind == Kind::kAllgather) {
    out->gather_bytes.assign(in.gather_bytes, in.gather_bytes + topo.size);
  }
  return {};
}

Status RunRequest(const smddp_request& in) {
  Communicator* comm = communicator;
  if (comm == nullptr) return NotInitialized();
  Request request;
  Status status = Convert(in, comm->topology(), &request);
  return status.ok() ? comm->Run(std::move(request)) : status;
}

Status InitOnce() {
  std::lock_guard<std::mutex> lock(init_mutex);
  if (communicator != nullptr) return {};
  Config config;
  Status status = Config::FromEnvironment(&config);
  if (!status.ok()) return status;
  SetLogLevel(config.log_level);
  SetIsa(config.isa);
  auto world = std::make_unique<World>();
  status = ConnectWorld(config, world.get());
  if (!status.ok()) return status;
  SetLogRank(world->topology.size > 1 ? world->topology.rank : -1);
  auto comm = std::make_unique<Communicator>(std::move(world));
  status = comm->Start();
  if (!status.ok()) return status;
  communicator = comm.release();
  // A forked child has none of the threads and is no rank: to it the job does not exist.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { communicator = nullptr; });
  static_cast<void>(registered);
  return {};
}

template <typename Fn>
int FromTopology(Fn&& fn) {
  Communicator* comm = communicator;
  return comm == nullptr ? -1 : fn(comm->topology());
}

}  // namespace

int smddp_init(void) { return Return(InitOnce()); }

int smddp_shutdown(int failed) {
  std::lock_guard<std::mutex> lock(init_mutex);
  Communicator* comm = communicator.exchange(nullptr);
  if (comm != nullptr) comm->Leave(failed != 0 || comm->failed());
  return SMDDP_OK;
}

int smddp_is_initialized(void) { return communicator.load() != nullptr; }
int smddp_rank(void) {
  return FromTopology([](const Topology& t) { return t.rank; });
}
int smddp_size(void) {
  return FromTopology([](const Topology& t) { return t.size; });
}
int smddp_local_rank(void) {
  return FromTopology([](const Topology& t) { return t.local_rank; });
}
int smddp_local_size(void) {
  return FromTopology([](const Topology& t) { return t.local_size; });
}
int smddp_cross_rank(void) {
  return FromTopology([](const Topology& t) { return t.node; });
}
int smddp_cross_size(void) {
  return FromTopology([](const Topology& t) { return t.num_nodes; });
}
int smddp_is_homogeneous(void) {
  return FromTopology([](const Topology& t) { return t.homogeneous ? 1 : 0; });
}
const char* smddp_version(void) { return SMDDP_VERSION; }
const char* smddp_last_error(void) { return last_error.c_str(); }

int smddp_stats_json(char* buffer, size_t n) {
  Communicator* comm = communicator;
  std::string text = comm == nullptr ? "{}" : comm->StatsJson();
  if (n > 0) {
    std::strncpy(buffer, text.c_str(), n - 1);
    buffer[n - 1] = '\0';
  }
  return static_cast<int>(text.size());
}

int smddp_run(const smddp_request* request) { return Return(RunRequest(*request)); }

int smddp_allreduce(const void* in, void* out, int64_t count, int dtype, int op, double prescale,
                    double postscale, const char* name) {
  smddp_tensor tensor{in, out, 1, &count};
  smddp_request request{0, dtype, op, 0, 0, prescale, postscale, name, 1, &tensor, nullptr};
  return smddp_run(&request);
}

int smddp_broadcast(void* buffer, int64_t bytes, int root, const char* name) {
  smddp_tensor tensor{buffer, buffer, 1, &bytes};
  smddp_request request{1,      static_cast<int>(DType::kUint8), 1, root, 0, 1, 1, name, 1, &tensor,
                        nullptr};
  return smddp_run(&request);
}

int smddp_barrier(const char* name) {
  smddp_request request{3,      static_cast<int>(DType::kUint8), 1, 0, 0, 1, 1, name, 0, nullptr,
                        nullptr};
  return smddp_run(&request);
}

smddp_plan* smddp_plan_new(int64_t fingerprint, const char* name, const char* text,
                           int num_buckets) {
  auto info = std::make_shared<PlanInfo>();
  info->fingerprint = static_cast<uint64_t>(fingerprint);
  info->name = name;
  info->text = std::make_shared<const std::string>(text);
  info->num_buckets = num_buckets;
  return new smddp_plan{std::move(info)};
}

void smddp_plan_delete(smddp_plan* plan) { delete plan; }

int smddp_plan_begin(const smddp_plan* plan, int64_t* run) {
  Communicator* comm = communicator;
  if (comm == nullptr) return Return(NotInitialized());
  *run = comm->BeginPlan(plan->info);
  return SMDDP_OK;
}

void smddp_plan_bucket(int64_t run, int bucket, const smddp_request* request, smddp_done done,
                       void* argument) {
  Communicator* comm = communicator;
  Status status = comm == nullptr ? NotInitialized() : Status();
  auto operation = std::make_unique<Operation>();
  if (status.ok()) status = Convert(*request, comm->topology(), &operation->request);
  operation->done = [done, argument](const Status& result) {
    done(argument, static_cast<int>(result.code()), result.message().c_str());
  };
  if (!status.ok()) return operation->done(status);
  comm->SubmitBucket(run, bucket, std::move(operation));
}

int smddp_plan_end(int64_t run) {
  Communicator* comm = communicator;
  return comm == nullptr ? Return(NotInitialized()) : Return(comm->EndPlan(run));
}

// The functions of smddp.h.
#include "capi/smddp.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>  // for move
#include <vector>

#include "capi/last_error.h"
#include "capi/to_request.h"
#include "core/log.h"
#include "core/ranges.h"
#include "engine/communicator.h"
#include "engine/part_sizes.h"
#include "engine/start_job.h"
#include "engine/watch/signals.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cuda/image.h"
#include "transport/nccl/library.h"

using namespace smddp;  // this file has the C functions only

struct smddp_plan {
  std::shared_ptr<const PlanInfo> info;
  int process_set;
};

namespace {

// The only mutable global state of the library. It is never destroyed, because TensorFlow's threads
// may still call into it while the process exits.
std::mutex init_mutex;
std::atomic<Communicator*> communicator{nullptr};
std::string suggested_nccl;  // protected by init_mutex

Status NotInitialized() {
  return {Code::kNotInitialized,
          "smddp_tf has not been initialized; call smddp_tf.init() before any collective"};
}

// Returns null and sets *why if the set cannot be used.
std::shared_ptr<RankSet> FindSet(int number, Status* why) {
  Communicator* comm = communicator;
  if (comm != nullptr) return comm->Find(number, why);
  *why = NotInitialized();
  return nullptr;
}

Status RunRequest(const smddp_request& in) {
  Status status;
  std::shared_ptr<RankSet> set = FindSet(in.process_set, &status);
  if (set == nullptr) return status;
  Request request;
  status = ToRequest(in, set->topology(), Parts::kKnown, &request);
  return status.ok() ? set->Run(std::move(request)) : status;
}

// The other ranks wait for this one in what has thrown, so they hear of it.
Status BreakJob(const std::string& what, const std::exception& error) {
  Status status = OutOf(error);
  Communicator* comm = communicator;
  if (comm == nullptr) return status;
  std::string rank = "rank " + std::to_string(comm->topology().rank);
  status = status.Within(rank + " failed in " + what);
  comm->Break(status, true);
  return status;
}

// Return() of what a function returns in which ranks wait for each other.
template <typename Fn>
int ReturnOfAll(const char* what, Fn&& fn) {
  try {
    return Return(fn());
  } catch (const std::exception& error) {
    return Return(BreakJob(what, error));
  }
}

// Wraps a C callback for the engine.
std::function<void(const Status&)> Tell(smddp_done done, void* argument) {
  return [done, argument](const Status& result) {
    done(argument, static_cast<int>(result.code()), Explained(result).c_str());
  };
}

// Turns the request into an operation. Returns null if *problem was already set or the request is
// invalid; `done` has then been called.
std::unique_ptr<Operation> Prepare(const smddp_request& request, const RankSet* set, Parts parts,
                                   smddp_done done, void* argument, Status* problem) {
  auto operation = std::make_unique<Operation>();
  try {
    if (set != nullptr) *problem = ToRequest(request, set->topology(), parts, &operation->request);
  } catch (const std::exception& error) {
    *problem = BreakJob("a collective", error);
  }
  operation->done = Tell(done, argument);
  if (problem->ok()) return operation;
  operation->done(*problem);
  return nullptr;
}

// A request on bytes, without tensors.
smddp_request Simple(int kind, const char* name) {
  smddp_request request = {};
  request.kind = kind;
  request.dtype = SMDDP_UINT8;
  request.op = SMDDP_SUM;
  request.prescale = request.postscale = 1;
  request.name = name;
  return request;
}

std::shared_ptr<const NcclLibrary> FindNccl(const Config& config, std::string* why) {
  return NcclLibrary::Open(config.nccl_library, config.nccl_hint, why);
}

Status InitOnce(const std::vector<int>& ranks, Terms terms) {
  std::lock_guard<std::mutex> lock(init_mutex);
  if (communicator != nullptr) return {};
  Config config;
  Status status = Config::FromEnvironment(&config);
  if (!status.ok()) terms.problem = status.message();
  config.nccl_hint = suggested_nccl;
  std::string why;
  if (config.nccl == "required" && terms.problem.empty() && FindNccl(config, &why) == nullptr) {
    terms.problem = "SMDDP_NCCL=required, but it cannot be used: " + why;
  }
  SetLogLevel(config.log_level);
  SetIsa(config.isa);

  std::unique_ptr<Communicator> comm;
  status = StartJob(config, ranks, terms, &comm);
  if (!status.ok()) return status;
  communicator = comm.release();
  // A forked child has none of the threads and is not a rank: for it, the job does not exist.
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

int smddp_init(void) { return smddp_init_job(nullptr, 0, nullptr, nullptr, nullptr); }

int smddp_init_job(const int32_t* ranks, int n, const char* must_agree, const char* should_agree,
                   const char* problem) {
  auto text = [](const char* given) { return std::string(given != nullptr ? given : ""); };
  Terms terms{text(must_agree), text(should_agree), text(problem)};
  try {
    return Return(InitOnce(std::vector<int>(ranks, ranks + n), std::move(terms)));
  } catch (const std::exception& error) {
    return Return(OutOf(error));
  }
}

int smddp_shutdown(int failed) {
  std::lock_guard<std::mutex> lock(init_mutex);
  Communicator* comm = communicator.exchange(nullptr);
  if (comm != nullptr) comm->Leave(failed != 0 || comm->failed());
  FlushLog();
  return SMDDP_OK;
}

void smddp_ask_before_interrupts(int (*ask)(void)) { AskBeforeInterrupts(ask); }

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
const char* smddp_build(void) {
#if defined(__clang__)
  static const std::string compiler =
      "Clang " + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__);
#else
  static const std::string compiler = "GCC " __VERSION__;
#endif
  static const std::string text = compiler + " for " SMDDP_MACHINE " and glibc " +
                                  std::to_string(__GLIBC__) + "." +
                                  std::to_string(__GLIBC_MINOR__) + ", with " + CompiledIsas();
  return text.c_str();
}

void smddp_suggest_nccl(const char* path) {
  std::lock_guard<std::mutex> lock(init_mutex);
  suggested_nccl = path;
}

const char* smddp_nccl(void) {
  std::lock_guard<std::mutex> lock(init_mutex);
  static std::string text;
  Config config;
  Status status = Config::FromEnvironment(&config);
  config.nccl_hint = suggested_nccl;
  std::string why = status.message();
  auto library = status.ok() ? FindNccl(config, &why) : nullptr;
  text = library != nullptr ? library->VersionText() + ": " + library->path : "none: " + why;
  return text.c_str();
}

const char* smddp_kernels(void) { return ImageText(); }

void smddp_warn(const char* text) {
  LogWarning(text);
  FlushLog();
}
void smddp_info(const char* text) {
  LogInfo(text);
  FlushLog();
}

int smddp_stats_json(char* buffer, size_t n) {
  Communicator* comm = communicator;
  std::string text = comm == nullptr ? "{}" : comm->StatsJson();
  if (n > 0) {
    std::strncpy(buffer, text.c_str(), n - 1);
    buffer[n - 1] = '\0';
  }
  return static_cast<int>(text.size());
}

int smddp_process_set_add(const int32_t* ranks, int n, int* process_set) {
  Communicator* comm = communicator;
  if (comm == nullptr) return Return(NotInitialized());
  return ReturnOfAll("add_process_set", [&] {
    std::vector<int> sorted(ranks, ranks + n);
    std::sort(sorted.begin(), sorted.end());
    return comm->AddSet(sorted, process_set);
  });
}

int smddp_process_set_remove(int process_set) {
  Communicator* comm = communicator;
  return ReturnOfAll("remove_process_set", [&] {
    return comm == nullptr ? NotInitialized() : comm->RemoveSet(process_set);
  });
}

int smddp_process_set_ranks(int process_set, int32_t* ranks, int n) {
  Communicator* comm = communicator;
  if (comm == nullptr) return -1;
  std::vector<int> members = comm->RanksOf(process_set);
  std::copy_n(members.begin(), std::min(n, static_cast<int>(members.size())), ranks);
  return members.empty() ? -1 : static_cast<int>(members.size());
}

int smddp_agree(const char* text) {
  Communicator* comm = communicator;
  return ReturnOfAll("an agreement",
                     [&] { return comm == nullptr ? NotInitialized() : comm->Agree(text); });
}

int smddp_timeline_start(const char* path) {
  Communicator* comm = communicator;
  return ReturnOf([&] {
    return comm == nullptr ? NotInitialized()
                           : comm->timeline()->Start(path, comm->topology().rank);
  });
}

int smddp_timeline_stop(void) {
  Communicator* comm = communicator;
  if (comm == nullptr) return Return(NotInitialized());
  comm->timeline()->Stop();
  return SMDDP_OK;
}

int smddp_join(int* last) {
  Status status;
  std::shared_ptr<RankSet> everybody = FindSet(0, &status);
  return ReturnOfAll("join", [&] { return everybody == nullptr ? status : everybody->Join(last); });
}

int smddp_run(const smddp_request* request) {
  return ReturnOfAll("a collective", [&] { return RunRequest(*request); });
}

void smddp_post(const smddp_request* request, smddp_done done, void* argument) {
  Status status;
  std::shared_ptr<RankSet> set = FindSet(request->process_set, &status);
  std::unique_ptr<Operation> operation =
      Prepare(*request, set.get(), Parts::kKnown, done, argument, &status);
  if (operation != nullptr) set->Post(std::move(operation));
}

void smddp_post_ragged(const smddp_request* request, const int32_t* splits, int num_splits,
                       smddp_allocate allocate, smddp_done done, void* argument) {
  Status status;
  std::shared_ptr<RankSet> set = FindSet(request->process_set, &status);
  std::unique_ptr<Operation> operation =
      Prepare(*request, set.get(), Parts::kGathered, done, argument, &status);
  if (operation == nullptr) return;
  Request* placed = &operation->request;
  auto output = [allocate, argument, placed, stream = request->stream](
                    const std::vector<int64_t>& rows, void** out) -> Status {
    int code = allocate(argument, rows.data(), static_cast<int>(rows.size()), out);
    if (code != SMDDP_OK) return {static_cast<Code>(code), "the output cannot be allocated"};
    return PlaceOutput(rows, *out, stream, placed);
  };
  PostRagged(std::move(set), std::move(operation),
             std::vector<int32_t>(splits, splits + num_splits), std::move(output));
}

int64_t smddp_own_rows(int process_set, int64_t rows) {
  Status ignored;
  std::shared_ptr<RankSet> set = FindSet(process_set, &ignored);
  if (set == nullptr) return -1;
  const Topology& topo = set->topology();
  return static_cast<int64_t>(RowsOf(rows, topo.size, topo.rank).size());
}

int smddp_allreduce(const void* in, void* out, int64_t count, int dtype, int op, double prescale,
                    double postscale, const char* name) {
  smddp_tensor tensor{in, out, 1, &count};
  smddp_request request = Simple(SMDDP_ALLREDUCE, name);
  request.dtype = dtype;
  request.op = op;
  request.prescale = prescale;
  request.postscale = postscale;
  request.num_tensors = 1;
  request.tensors = &tensor;
  return smddp_run(&request);
}

int smddp_broadcast(void* buffer, int64_t bytes, int root, const char* name) {
  smddp_tensor tensor{buffer, buffer, 1, &bytes};
  smddp_request request = Simple(SMDDP_BROADCAST, name);
  request.root = root;
  request.num_tensors = 1;
  request.tensors = &tensor;
  return smddp_run(&request);
}

int smddp_barrier(const char* name) {
  smddp_request request = Simple(SMDDP_BARRIER, name);
  return smddp_run(&request);
}

smddp_plan* smddp_plan_new(int64_t fingerprint, const char* name, const char* text, int num_buckets,
                           int process_set) {
  auto info = std::make_shared<PlanInfo>();
  info->fingerprint = static_cast<uint64_t>(fingerprint);
  info->name = name;
  info->text = std::make_shared<const std::string>(text);
  info->num_buckets = num_buckets;
  return new smddp_plan{std::move(info), process_set};
}

void smddp_plan_delete(smddp_plan* plan) { delete plan; }

int smddp_plan_begin(const smddp_plan* plan, int64_t* run) {
  Status status;
  std::shared_ptr<RankSet> set = FindSet(plan->process_set, &status);
  if (set != nullptr) status = set->BeginPlan(plan->info, run);
  return Return(status);
}

void smddp_plan_bucket(int64_t run, int bucket, const smddp_request* request, smddp_done done,
                       void* argument) {
  Status status;
  std::shared_ptr<RankSet> set = FindSet(request->process_set, &status);
  std::unique_ptr<Operation> operation =
      Prepare(*request, set.get(), Parts::kKnown, done, argument, &status);
  if (operation != nullptr) set->SubmitBucket(run, bucket, std::move(operation));
}

void smddp_plan_end(int process_set, int64_t run, smddp_done done, void* argument) {
  Status status;
  std::shared_ptr<RankSet> set = FindSet(process_set, &status);
  if (set == nullptr) return Tell(done, argument)(status);
  set->EndPlan(run, Tell(done, argument));
}

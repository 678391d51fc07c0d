// The functions of smddp.h.
#include "capi/smddp.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>  // for move
#include <vector>

#include "capi/last_error.h"
#include "capi/to_request.h"
#include "capi/use.h"
#include "core/log.h"
#include "core/ranges.h"
#include "engine/communicator.h"
#include "engine/part_sizes.h"
#include "engine/start_job.h"
#include "engine/watch/signals.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cuda/image.h"
#include "transport/bootstrap/callbacks.h"
#include "transport/nccl/library.h"

using namespace smddp;  // this file has the C functions only

struct smddp_plan {
  std::shared_ptr<const PlanInfo> info;
  int process_set;
};

namespace {

// With the communicator (capi/use.h), all of the library's mutable global state but the least free
// number of a process set (engine/communicator.cc) and whether we began MPI (transport/mpi). No
// destructor of a static ends it, because TensorFlow's threads may still call into it while the
// process exits.
std::mutex init_mutex;
// Protected by init_mutex: communicators that have left, which threads may still be inside of.
auto& retired = *new std::vector<std::unique_ptr<Communicator>>;
std::string suggested_nccl;  // protected by init_mutex

// With init_mutex. Those that cannot be freed now are when another job ends.
void FreeRetired() {
  if (inside == 0) retired.clear();
}

Status RunRequest(const smddp_request& in) {
  Use comm;
  Status status;
  std::shared_ptr<RankSet> set = FindSet(comm, in.process_set, &status);
  if (set == nullptr) return status;
  Request request;
  status = ToRequest(in, set->topology(), Parts::kKnown, &request);
  return status.ok() ? set->Run(std::move(request)) : status;
}

// The other ranks wait for this one in what has thrown, so they hear of it. Once this returns, no
// operation of this rank is pending.
Status BreakJob(const std::string& what, Status status) {
  Use comm;
  if (!comm) return status;
  std::string rank = "rank " + std::to_string(comm->topology().rank);
  status = status.Within(rank + " failed in " + what);
  comm->Break(status, true);
  return status;
}

// Return() of what a function returns in which ranks wait for each other.
template <typename Fn>
int ReturnOfAll(const char* what, Fn&& fn) {
  return Guarded([&] { return Return(fn()); },
                 [&](const Status& thrown) { return Return(BreakJob(what, thrown)); });
}

// A C callback as the engine calls it: once, by whoever comes first.
using Teller = std::function<void(const Status&)>;

void Tell(smddp_done done, void* argument, const Status& result) {
  Guarded([&] { done(argument, static_cast<int>(result.code()), Explained(result).c_str()); },
          [&](const Status&) { done(argument, SMDDP_SYSTEM, "no memory is left"); });
}

// Calls start(teller), which has the teller called later. If that throws, the callback hears of it,
// whether the operation had begun or not.
template <typename Fn>
void ToldOf(const char* what, smddp_done done, void* argument, Fn&& start) {
  std::shared_ptr<std::atomic<bool>> told;
  Guarded(
      [&] {
        told = std::make_shared<std::atomic<bool>>(false);
        start([done, argument, told](const Status& result) {
          if (!told->exchange(true)) Tell(done, argument, result);
        });
      },
      [&](const Status& thrown) {
        Status status = BreakJob(what, thrown);
        if (told == nullptr || !told->exchange(true)) Tell(done, argument, status);
      });
}

// Turns the request into an operation. Returns null if *problem was already set or the request is
// invalid; `done` has then been called.
std::unique_ptr<Operation> Prepare(const smddp_request& request, const RankSet* set, Parts parts,
                                   Teller teller, Status* problem) {
  auto operation = std::make_unique<Operation>();
  if (set != nullptr) *problem = ToRequest(request, set->topology(), parts, &operation->request);
  operation->done = std::move(teller);
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

Status InitOnce(const std::vector<int>& ranks, SharedSettings terms,
                const std::shared_ptr<Bootstrap>& bootstrap) {
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
  status = StartJob(config, ranks, terms, bootstrap, &comm);
  if (!status.ok()) return status;
  communicator = comm.release();
  // A forked child has none of the threads and is not a rank: for it, the job does not exist.
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    communicator = nullptr;
    inside = 0;
  });
  static_cast<void>(registered);
  return {};
}

SharedSettings ToSettings(const char* must_agree, const char* should_agree, const char* problem) {
  auto text = [](const char* given) { return std::string(given != nullptr ? given : ""); };
  return {text(must_agree), text(should_agree), text(problem)};
}

std::shared_ptr<Bootstrap> ToBootstrap(const smddp_bootstrap& given) {
  return MakeCallbackBootstrap({given.rank, given.size, given.context, given.start, given.test,
                                given.fail, given.why, given.host, given.sign});
}

template <typename Fn>
int FromTopology(Fn&& fn) {
  Use comm;
  return comm ? fn(comm->topology()) : -1;
}

}  // namespace

int smddp_init(void) { return smddp_init_job(nullptr, 0, nullptr, nullptr, nullptr); }

int smddp_init_job(const int32_t* ranks, int n, const char* must_agree, const char* should_agree,
                   const char* problem) {
  return ReturnOf([&] {
    return InitOnce(std::vector<int>(ranks, ranks + n),
                    ToSettings(must_agree, should_agree, problem), nullptr);
  });
}

int smddp_init_with(const smddp_bootstrap* bootstrap, const char* must_agree,
                    const char* should_agree, const char* problem) {
  return ReturnOf([&] {
    return InitOnce({}, ToSettings(must_agree, should_agree, problem), ToBootstrap(*bootstrap));
  });
}

int smddp_shutdown(int failed) {
  return ReturnOf([&]() -> Status {
    std::lock_guard<std::mutex> lock(init_mutex);
    Communicator* comm = communicator.exchange(nullptr);
    if (comm != nullptr && comm->Leave(failed != 0 || comm->failed())) retired.emplace_back(comm);
    FreeRetired();
    FlushLog();
    return {};
  });
}

void smddp_ends_with(const char* exception) {
  ReturnOf([&]() -> Status {
    std::lock_guard<std::mutex> lock(init_mutex);
    if (Communicator* comm = communicator.load()) comm->NoteException(exception);
    return {};
  });
}

int smddp_abort(const char* why) {
  return ReturnOf([&]() -> Status {
    Use comm;
    if (!comm) return NotInitialized();
    comm->Abort(why);
    return {};
  });
}

void smddp_ask_before_interrupts(int (*ask)(void)) { AskBeforeInterrupts(ask); }
void smddp_ask_before_termination(int (*ask)(void)) { AskBeforeTermination(ask); }

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
int smddp_is_broken(void) {
  Use comm;
  if (!comm) return -1;
  return comm->failed() ? 1 : 0;
}
int smddp_is_last_job(void) {
  Use comm;
  if (!comm) return -1;
  return comm->is_last() ? 1 : 0;
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
  ReturnOf([&]() -> Status {
    std::lock_guard<std::mutex> lock(init_mutex);
    suggested_nccl = path;
    return {};
  });
}

const char* smddp_nccl(void) {
  std::lock_guard<std::mutex> lock(init_mutex);
  static std::string text;
  auto look = [] {
    Config config;
    Status status = Config::FromEnvironment(&config);
    config.nccl_hint = suggested_nccl;
    std::string why = status.message();
    auto library = status.ok() ? FindNccl(config, &why) : nullptr;
    return library != nullptr ? library->VersionText() + ": " + library->path : "none: " + why;
  };
  text = Guarded(look, [](const Status& thrown) { return "none: " + thrown.message(); });
  return text.c_str();
}

const char* smddp_kernels(void) { return ImageText(); }

void smddp_warn(const char* text) {
  ReturnOf([&]() -> Status {
    LogWarning(text);
    FlushLog();
    return {};
  });
}
void smddp_info(const char* text) {
  ReturnOf([&]() -> Status {
    LogInfo(text);
    FlushLog();
    return {};
  });
}

int smddp_stats_json(char* buffer, size_t n) {
  Use comm;
  std::string text = Guarded([&] { return comm ? comm->StatsJson() : "{}"; },
                             [](const Status&) { return std::string("{}"); });
  if (n > 0) {
    std::strncpy(buffer, text.c_str(), n - 1);
    buffer[n - 1] = '\0';
  }
  return static_cast<int>(text.size());
}

int smddp_process_set_add(const int32_t* ranks, int n, int* process_set) {
  Use comm;
  return ReturnOfAll("add_process_set", [&] {
    if (!comm) return NotInitialized();
    std::vector<int> sorted(ranks, ranks + n);
    std::sort(sorted.begin(), sorted.end());
    return comm->AddSet(sorted, process_set);
  });
}

int smddp_process_set_add_again(const int32_t* ranks, int n, int process_set) {
  Use comm;
  return ReturnOfAll("add_process_set", [&] {
    if (!comm) return NotInitialized();
    return comm->AddSetAgain({ranks, ranks + n}, process_set);
  });
}

int smddp_process_set_remove(int process_set) {
  Use comm;
  return ReturnOfAll("remove_process_set",
                     [&] { return comm ? comm->RemoveSet(process_set) : NotInitialized(); });
}

int smddp_process_set_add_by_members(const int32_t* ranks, int n, const smddp_bootstrap* members,
                                     double limit, int* process_set) {
  Use comm;
  return ReturnOfAll("a group", [&] {
    if (!comm) return NotInitialized();
    return comm->AddSetOfMembers({ranks, ranks + n}, *ToBootstrap(*members), limit, process_set);
  });
}

int smddp_process_set_leave(int process_set) {
  Use comm;
  return ReturnOf([&] {
    if (comm) comm->LeaveSet(process_set);
    return Status();
  });
}

int smddp_process_set_ranks(int process_set, int32_t* ranks, int n) {
  Use comm;
  if (!comm) return -1;
  std::vector<int> members;
  int code = ReturnOf([&]() -> Status {
    members = comm->RanksOf(process_set);
    return {};
  });
  std::copy_n(members.begin(), std::min(n, static_cast<int>(members.size())), ranks);
  return code != SMDDP_OK || members.empty() ? -1 : static_cast<int>(members.size());
}

int smddp_agree(const char* text) {
  Use comm;
  return ReturnOfAll("an agreement", [&] { return comm ? comm->Agree(text) : NotInitialized(); });
}

int smddp_timeline_start(const char* path) {
  Use comm;
  return ReturnOf([&] {
    return comm ? comm->timeline()->Start(path, comm->topology().rank) : NotInitialized();
  });
}

int smddp_timeline_stop(void) {
  Use comm;
  return ReturnOf([&] {
    if (!comm) return NotInitialized();
    comm->timeline()->Stop();
    return Status();
  });
}

int smddp_join(int* last) {
  return ReturnOfAll("join", [&] {
    Use comm;
    Status status;
    std::shared_ptr<RankSet> everybody = FindSet(comm, 0, &status);
    return everybody == nullptr ? status : everybody->Join(last);
  });
}

int smddp_run(const smddp_request* request) {
  return ReturnOfAll("a collective", [&] { return RunRequest(*request); });
}

void smddp_post(const smddp_request* request, smddp_done done, void* argument) {
  ToldOf("a collective", done, argument, [&](Teller teller) {
    Use comm;
    Status status;
    std::shared_ptr<RankSet> set = FindSet(comm, request->process_set, &status);
    std::unique_ptr<Operation> operation =
        Prepare(*request, set.get(), Parts::kKnown, std::move(teller), &status);
    if (operation != nullptr) set->Post(std::move(operation));
  });
}

void smddp_post_ragged(const smddp_request* request, const int32_t* splits, int num_splits,
                       smddp_allocate allocate, smddp_done done, void* argument) {
  ToldOf("a collective", done, argument, [&](Teller teller) {
    Use comm;
    Status status;
    std::shared_ptr<RankSet> set = FindSet(comm, request->process_set, &status);
    std::unique_ptr<Operation> operation =
        Prepare(*request, set.get(), Parts::kGathered, std::move(teller), &status);
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
  });
}

void smddp_waits_for(int process_set, const char* name, char* buffer, size_t n) {
  if (n == 0) return;
  Use comm;
  std::string text =
      Guarded([&] { return comm ? comm->WaitsFor(process_set, name) : std::string(); },
              [](const Status&) { return std::string(); });
  std::strncpy(buffer, text.c_str(), n - 1);
  buffer[n - 1] = '\0';
}

int smddp_is_awaited(int process_set, const char* name) {
  Use comm;
  return Guarded([&] { return comm && comm->IsAwaited(process_set, name); },
                 [](const Status&) { return false; });
}

int smddp_check_place(int process_set, int rank, int size) {
  return ReturnOf([&] {
    Use comm;
    Status status;
    std::shared_ptr<RankSet> set = FindSet(comm, process_set, &status);
    if (set == nullptr) return status;
    const Topology& topo = set->topology();
    if (topo.rank == rank && topo.size == size) return status;
    auto place = [](int rank, int size) {
      return "rank " + std::to_string(rank) + " of " + std::to_string(size);
    };
    return Status(Code::kUsage,
                  "XLA compiled this function for " + place(rank, size) +
                      ", in an earlier job, and it runs on " + place(topo.rank, topo.size) +
                      ": make it anew after init(), or compile it with jit_compile=False; for "
                      "tf.IndexedSlices, sparse_as_dense=True serves any number of ranks");
  });
}

int64_t smddp_own_rows(int process_set, int64_t rows) {
  Use comm;
  std::shared_ptr<RankSet> set;
  ReturnOf([&] {
    Status why;
    set = FindSet(comm, process_set, &why);
    return why;
  });
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
  smddp_plan* plan = nullptr;
  ReturnOf([&]() -> Status {
    auto info = std::make_shared<PlanInfo>();
    info->fingerprint = static_cast<uint64_t>(fingerprint);
    info->name = name;
    info->text = std::make_shared<const std::string>(text);
    info->num_buckets = num_buckets;
    plan = new smddp_plan{std::move(info), process_set};
    return {};
  });
  return plan;
}

void smddp_plan_delete(smddp_plan* plan) { delete plan; }

int smddp_plan_begin(const smddp_plan* plan, int64_t* run) {
  return ReturnOfAll("a step", [&] {
    Use comm;
    Status status;
    std::shared_ptr<RankSet> set = FindSet(comm, plan->process_set, &status);
    return set != nullptr ? set->BeginPlan(plan->info, run) : status;
  });
}

void smddp_plan_bucket(int64_t run, int bucket, const smddp_request* request, smddp_done done,
                       void* argument) {
  ToldOf("a step", done, argument, [&](Teller teller) {
    Use comm;
    Status status;
    std::shared_ptr<RankSet> set = FindSet(comm, request->process_set, &status);
    std::unique_ptr<Operation> operation =
        Prepare(*request, set.get(), Parts::kKnown, std::move(teller), &status);
    if (operation != nullptr) set->SubmitBucket(run, bucket, std::move(operation));
  });
}

void smddp_plan_end(int process_set, int64_t run, smddp_done done, void* argument) {
  ToldOf("a step", done, argument, [&](Teller teller) {
    Use comm;
    Status status;
    std::shared_ptr<RankSet> set = FindSet(comm, process_set, &status);
    if (set == nullptr) return teller(status);
    set->EndPlan(run, std::move(teller));
  });
}

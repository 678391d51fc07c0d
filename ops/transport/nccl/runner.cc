#include "transport/nccl/runner.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>  // for move

#include "core/c_numbers.h"
#include "core/deadline.h"
#include "core/detached_thread.h"

namespace smddp {
namespace {

constexpr double kNever = 1e9;
constexpr size_t kMostInGroup = 1000;   // calls; NCCL takes 2,048
constexpr double kFinalizeSeconds = 5;  // for the peers to leave as well

// How long the thread sleeps between two looks: an eighth of the time that it has waited.
class Nap {
 public:
  void Reset() { since_ = NowSeconds(); }
  void Take() const {
    constexpr double kShortest = 10e-6, kLongest = 200e-6;
    double seconds = std::clamp((NowSeconds() - since_) / 8, kShortest, kLongest);
    ::usleep(static_cast<useconds_t>(seconds * 1e6));
  }

 private:
  double since_ = NowSeconds();
};

Status Aborted() { return {Code::kSystem, "NCCL was stopped on this rank"}; }

}  // namespace

void NcclRunner::Start(const Done& connected) {
  auto self = shared_from_this();
  RunDetached([self, connected] { self->Run(connected); },
              [self, connected](const Status& thrown) {
                connected(thrown);
                self->Leave(thrown);
              });
}

void NcclRunner::Submit(DeviceCollective collective, std::function<void()> computed, Done done) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ended_) {
      Job job;
      job.collective = std::move(collective);
      job.computed = std::move(computed);
      job.done = std::move(done);
      waiting_.push_back(std::move(job));
      changed_.notify_all();
      return;
    }
  }
  done(failure_);
}

bool NcclRunner::End(bool* flag, double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  *flag = true;
  changed_.notify_all();
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return ended_; });
}

bool NcclRunner::aborted() {
  std::lock_guard<std::mutex> lock(mutex_);
  return aborted_;
}

void NcclRunner::Run(const Done& connected) {
  CudaDevice::Current current(device_);
  Status failure = current.status();
  if (failure.ok()) failure = device_->NewStream(&stream_);
  if (failure.ok() && packer_ != nullptr) failure = packer_->TakeTables();
  if (failure.ok()) failure = Connect();
  connected(failure);
  if (failure.ok()) {
    Serve();
  } else {
    Leave(failure);
  }
}

// Enqueues what comes and tells what has ended, until the group ends.
void NcclRunner::Serve() {
  Nap nap;
  Status failure;
  while (failure.ok()) {
    Job job;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      auto wanted = [&] { return aborted_ || closing_ || !waiting_.empty(); };
      if (running_.empty() && !wanted()) {
        changed_.wait(lock, wanted);
        nap.Reset();
      }
      if (aborted_) failure = Aborted();
      if (closing_ && waiting_.empty() && running_.empty()) break;
      if (failure.ok() && !waiting_.empty()) {
        job = std::move(waiting_.front());
        waiting_.pop_front();
      }
    }
    bool moved = job.done != nullptr;
    if (moved) {
      failure = Enqueue(&job);
      running_.push_back(std::move(job));
    }
    if (failure.ok()) failure = PollRunning(&moved);
    if (moved) nap.Reset();
    if (failure.ok() && !running_.empty()) nap.Take();
  }
  Leave(failure);
}

Status NcclRunner::AsyncError() {
  NcclResult error = kNcclSuccess;
  NcclResult result = library_->CommGetAsyncError(comm_, &error);
  if (result != kNcclSuccess) return library_->Failure("ncclCommGetAsyncError", result, comm_);
  bool fine = error == kNcclSuccess || error == kNcclInProgress;
  return fine ? Status() : library_->Failure("asynchronously", error, comm_);
}

// Waits until the call that returned `result` has taken effect, which the communicator's state says
// and not what the call returned.
Status NcclRunner::Settle(const char* function, NcclResult result, double seconds) {
  Deadline deadline(seconds);
  Nap nap;
  if (result != kNcclSuccess && result != kNcclInProgress) {
    return library_->Failure(function, result, comm_);
  }
  for (;;) {
    NcclResult asked = library_->CommGetAsyncError(comm_, &result);
    if (asked != kNcclSuccess) return library_->Failure("ncclCommGetAsyncError", asked, comm_);
    if (result != kNcclInProgress) break;
    if (aborted()) return Aborted();
    if (deadline.Passed()) {
      return {Code::kTimeout,
              std::string(function) + " has not ended within " + FormatSeconds(seconds)};
    }
    nap.Take();
  }
  return result == kNcclSuccess ? Status() : library_->Failure(function, result, comm_);
}

Status NcclRunner::Connect() {
  NcclConfig config;
  config.blocking = 0;
  NcclResult result = library_->CommInitRankConfig(&comm_, membership_.size, membership_.id,
                                                   membership_.rank, &config);
  return Settle("ncclCommInitRankConfig", result, membership_.connect_seconds);
}

DeviceGroupStats NcclRunner::stats() const {
  DeviceGroupStats stats;
  stats.library = library_->VersionText();
  stats.collectives = collectives_;
  stats.bytes = bytes_;
  stats.packed = packed_;
  return stats;
}

// Runs call(i) for each i < count that has(i), in groups of calls that NCCL takes together. The
// ranks need the same count. There are no groups without calls: NCCL 2.19 to 2.26 keep a group that
// was launched in the background until the thread's next call with a communicator, and to end an
// empty one before would launch it again.
Status NcclRunner::InGroups(const char* function, size_t count, const Has& has, const Call& call) {
  for (size_t i = 0; i < count;) {
    size_t end = std::min(count, i + kMostInGroup);
    while (i < end && !has(i)) ++i;
    if (i == end) continue;
    NcclResult result = library_->GroupStart();
    if (result != kNcclSuccess) return library_->Failure("ncclGroupStart", result, comm_);
    for (; i < end && result == kNcclSuccess; ++i) {
      if (has(i)) result = call(i);
      if (result == kNcclInProgress) result = kNcclSuccess;  // that is for the end of the group
    }
    NcclResult ended = library_->GroupEnd();
    if (result != kNcclSuccess) return library_->Failure(function, result, comm_);
    Status status = Settle("ncclGroupEnd", ended, kNever);
    if (!status.ok()) return status;
  }
  return {};
}

Status NcclRunner::Enqueue(Job* job) {
  Status status = device_->WaitIn(stream_, job->collective.after);
  if (!status.ok()) return status;
  const DeviceCollective& collective = job->collective;
  bool packs = packer_ != nullptr && Packer::Pays(collective) && packer_->Fits(collective);
  if (packs) status = TakeTable(job);
  if (status.ok()) status = packs ? EnqueuePacked(*job) : EnqueueInPlace(collective);
  return status.ok() ? device_->Record(stream_, &job->end) : status;
}

// Waits while all tables of the size are those of collectives that have not ended.
Status NcclRunner::TakeTable(Job* job) {
  Nap nap;
  Status status;
  for (;;) {
    job->table = packer_->Table(job->collective);
    if (job->table != nullptr || !status.ok()) return status;
    if (aborted()) return Aborted();
    bool moved = false;
    status = PollRunning(&moved);
    if (!moved) nap.Take();
  }
}

// Collectives end in the order in which they were enqueued.
Status NcclRunner::PollRunning(bool* moved) {
  while (!running_.empty()) {
    Job& job = running_.front();
    bool reached = false;
    if (!job.told) {
      Status status = device_->Reached(job.collective.after, &reached);
      if (!status.ok()) return status;
      if (reached) Tell(&job);
    }
    Status status = device_->Reached(job.end, &reached);
    if (!status.ok()) return status;
    if (!reached) return AsyncError();
    Tell(&job);
    ++collectives_;
    if (job.table != nullptr) ++packed_;
    bytes_ += job.collective.bytes;
    job.done({});
    running_.pop_front();
    *moved = true;
  }
  return {};
}

void NcclRunner::Tell(Job* job) {
  if (!job->told) job->computed();
  job->told = true;
}

// Ends all jobs in the order in which they were submitted, those too that come meanwhile, so that
// the first one to fail is the one that did.
void NcclRunner::TellAll(const Status& failure) {
  for (std::deque<Job> left = std::move(running_);;) {
    for (Job& job : left) job.done(failure);
    left.clear();
    std::lock_guard<std::mutex> lock(mutex_);
    left.swap(waiting_);
    if (!left.empty()) continue;
    failure_ = failure;
    ended_ = true;
    changed_.notify_all();
    return;
  }
}

// Ends the communicator: in good order if there is no failure.
void NcclRunner::Leave(const Status& failure) {
  bool abort = !failure.ok();
  if (comm_ != nullptr && !abort) {
    abort = !Settle("ncclCommFinalize", library_->CommFinalize(comm_), kFinalizeSeconds).ok();
    // What may still fail here fails after the last collective has ended.
    if (!abort) static_cast<void>(library_->CommDestroy(comm_));
  }
  if (comm_ != nullptr && abort) {
    static_cast<void>(library_->CommAbort(comm_));
    // The kernels have been told to stop; nothing may access the tensors when that is reported.
    DevicePoint end;
    bool reached = !device_->Record(stream_, &end).ok();
    Nap nap;
    while (!reached && device_->Reached(end, &reached).ok()) nap.Take();
  }
  comm_ = nullptr;
  TellAll(failure.ok() ? Aborted() : failure);
  // Last, as it may wait for what other streams of the GPU do.
  if (packer_ != nullptr) packer_->Release();
}

}  // namespace smddp

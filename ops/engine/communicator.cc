#include "engine/communicator.h"

#include <unistd.h>

#include <sstream>

#include "core/log.h"
#include "engine/monitor.h"
#include "kernels/reduce.h"

namespace smddp {
namespace {

// Buckets up to this are advanced on the thread that brings them, for as long as the spin lasts;
// larger ones go to the progress thread at once, so that the caller can go on with the backward
// pass.
constexpr size_t kInlineBytes = 256 << 10;
constexpr double kDefaultSpinSeconds = 50e-6;

double SpinSeconds(const World& world) {
  int micros = world.config.spin_microseconds;
  if (micros >= 0) return micros * 1e-6;
  long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  return world.topology.local_size <= cores ? kDefaultSpinSeconds : 0;
}

Selector MakeSelector(const Config& config) {
  Selector selector;
  selector.forced_allreduce = config.allreduce;
  return selector;
}

}  // namespace

Communicator::Communicator(std::unique_ptr<World> world)
    : world_(std::move(world)),
      selector_(MakeSelector(world_->config)),
      hand_(std::move(world_->lanes[0]), &selector_, &recorder_),
      gradients_(std::move(world_->lanes[1]), &selector_, &recorder_),
      plans_(&gradients_),
      spin_seconds_(SpinSeconds(*world_)) {}

Communicator::~Communicator() = default;

Status Communicator::Start() {
  monitor_ = std::make_unique<Monitor>(this, world_.get());
  Status status = monitor_->Start();
  if (!status.ok()) return status;
  progress_ = std::thread([this] { ProgressLoop(); });
  return {};
}

void Communicator::Leave(bool failed) {
  {
    std::lock_guard<std::mutex> lock(progress_mutex_);
    stopping_ = true;
  }
  progress_wanted_.notify_all();
  world_->shm->RingSelf();
  if (progress_.joinable()) progress_.join();
  FailAll({Code::kNotInitialized, "smddp_tf was shut down on this rank"});
  if (monitor_ != nullptr) monitor_->Stop();
  if (!failed && world_->mpi != nullptr) world_->mpi->Finalize();
}

Waiter Communicator::MakeWaiter() const {
  return Waiter(world_->shm.get(), spin_seconds_, world_->topology.num_nodes > 1);
}

Status Communicator::Run(Request request) {
  struct Result {
    std::atomic<bool> done{false};
    Status status;
  } result;
  auto operation = std::make_unique<Operation>();
  operation->request = std::move(request);
  operation->done = [&result](const Status& status) {
    result.status = status;
    result.done.store(true, std::memory_order_release);
  };
  hand_.Enqueue(std::move(operation));
  WaitOn(&hand_, result.done);
  return result.status;
}

void Communicator::WaitOn(Channel* channel, const std::atomic<bool>& flag) {
  Waiter waiter = MakeWaiter();
  auto done = [&] { return flag.load(std::memory_order_acquire); };
  while (!done()) {
    if (channel->Pump()) {
      waiter.Reset();
    } else if (!done()) {
      waiter.Pause([&] { return channel->Pump() || done(); });
    }
  }
}

void Communicator::WakeProgress() {
  if (!progress_idle_) return;
  std::lock_guard<std::mutex> lock(progress_mutex_);
  progress_wanted_.notify_one();
}

int64_t Communicator::BeginPlan(std::shared_ptr<const PlanInfo> info) {
  int64_t run = plans_.Begin(std::move(info));
  // A run without buckets, or the marker of one that was given up.
  if (!gradients_.Idle()) WakeProgress();
  return run;
}

void Communicator::SubmitBucket(int64_t run, int bucket, std::unique_ptr<Operation> operation) {
  bool small = operation->request.bytes() <= kInlineBytes;
  plans_.Arrive(run, bucket, std::move(operation));
  if (small || failed_) {
    double until = NowSeconds() + spin_seconds_;
    bool moved = true;
    while (!gradients_.Idle() && (moved || NowSeconds() < until)) moved = gradients_.Pump();
    if (gradients_.Idle()) return;
  }
  WakeProgress();
}

Status Communicator::EndPlan(int64_t run) {
  std::shared_ptr<EmptyRun> empty = plans_.End(run);
  if (empty == nullptr) return {};
  WaitOn(&gradients_, empty->done);
  return empty->status;
}

void Communicator::ProgressLoop() {
  Waiter waiter = MakeWaiter();
  while (!stopping_) {
    if (gradients_.Idle()) {
      waiter.Reset();
      std::unique_lock<std::mutex> lock(progress_mutex_);
      progress_idle_ = true;
      progress_wanted_.wait(lock, [&] { return stopping_ || !gradients_.Idle(); });
      progress_idle_ = false;
      continue;
    }
    if (gradients_.Pump()) {
      waiter.Reset();
    } else {
      waiter.Pause([&] { return gradients_.Pump() || gradients_.Idle() || stopping_; });
    }
  }
}

void Communicator::InspectAll(
    double seconds, const std::function<void(Operation*, const std::vector<int>&)>& look) {
  hand_.Inspect(seconds, look);
  gradients_.Inspect(seconds, look);
}

void Communicator::FailAll(const Status& failure) {
  failed_ = true;
  hand_.Fail(failure);
  gradients_.Fail(failure);
}

std::string Communicator::StatsJson() const {
  std::ostringstream out;
  ChannelStats hand = hand_.Stats(), gradients = gradients_.Stats();
  out << "{\"rank\": " << topology().rank << ", \"size\": " << topology().size << ", \"isa\": \""
      << IsaName() << "\", \"mpi\": \"" << (world_->mpi != nullptr ? world_->mpi->name() : "none")
      << "\", \"staging_bytes\": " << world_->StagingBytes()
      << ", \"collectives\": " << hand.operations << ", \"collective_bytes\": " << hand.bytes
      << ", \"buckets\": " << gradients.operations << ", \"bucket_bytes\": " << gradients.bytes
      << "}";
  return out.str();
}

}  // namespace smddp

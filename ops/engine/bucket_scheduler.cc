#include "engine/bucket_scheduler.h"

#include <utility>  // for move

#include "core/try_lock.h"

namespace smddp {
namespace {

constexpr int kGivenUp = -2;

void FailOrphans(const std::vector<std::unique_ptr<Operation>>& orphans) {
  for (const auto& orphan : orphans) {
    orphan->done({Code::kMismatch, "this step was given up: an earlier operation of it failed"});
  }
}

}  // namespace

void EmptyRun::Finish(const Status& status) {
  std::function<void(const Status&)> done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
    status_ = status;
    done = std::move(done_);
  }
  if (done) done(status);
}

void EmptyRun::WhenDone(std::function<void(const Status&)> done) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!finished_) {
      done_ = std::move(done);
      return;
    }
  }
  done(status_);
}

Status BucketScheduler::Begin(std::shared_ptr<const PlanInfo> info, int64_t* id) {
  std::vector<std::unique_ptr<Operation>> orphans;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return failure_;
    // In every program, End of the last run precedes this Begin; a run that is still open means
    // that its step failed.
    GiveUpOpen(&orphans);
    *id = next_run_++;
    runs_.emplace_back();
    Run& run = runs_.back();
    run.id = *id;
    run.info = std::move(info);
    run.arrived.resize(run.info->num_buckets);
    if (run.info->num_buckets == 0) {
      // The other ranks may have buckets: an empty exchange detects that on all ranks.
      auto empty = std::make_unique<Operation>();
      empty->request.kind = Kind::kBarrier;
      auto result = run.empty = std::make_shared<EmptyRun>();
      empty->done = [result](const Status& status) { result->Finish(status); };
      Release(&run, 0, std::move(empty));
    }
  }
  FailOrphans(orphans);
  return {};
}

void BucketScheduler::CancelRuns() {
  std::vector<std::unique_ptr<Operation>> orphans;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    GiveUpOpen(&orphans);
  }
  FailOrphans(orphans);
}

void BucketScheduler::Arrive(int64_t id, int bucket, std::unique_ptr<Operation> operation) {
  Status refused;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Run* run = nullptr;
    for (Run& candidate : runs_) {
      if (candidate.id == id) run = &candidate;
    }
    if (!failure_.ok()) {
      refused = failure_;
    } else if (run == nullptr) {
      refused = {Code::kMismatch, "gradient bucket of step " + std::to_string(id) +
                                      ", which was given up: an earlier operation of it failed"};
    } else {
      run->arrived[bucket] = std::move(operation);
      int count = static_cast<int>(run->arrived.size());
      while (run->next < count && run->arrived[run->next] != nullptr) {
        std::unique_ptr<Operation> ready = std::move(run->arrived[run->next]);
        Release(run, run->next, std::move(ready));
        ++run->next;
      }
    }
  }
  // It has been moved only if it was not refused.
  if (!refused.ok()) operation->done(refused);  // NOLINT(bugprone-use-after-move)
}

void BucketScheduler::Release(Run* run, int bucket, std::unique_ptr<Operation> operation) {
  Request& request = operation->request;
  request.name = run->info->name;
  request.plan = run->info->fingerprint == 0 ? 1 : run->info->fingerprint;
  request.run = static_cast<uint64_t>(run->id);
  request.bucket = bucket;
  request.plan_text = run->info->text;
  operation->run_outcome = run->run_outcome;
  operation->awaited = bucket == run->info->num_buckets - 1;
  channel_->Enqueue(std::move(operation));
}

// Called with the lock held; the caller completes `orphans` after releasing it.
void BucketScheduler::GiveUpOpen(std::vector<std::unique_ptr<Operation>>* orphans) {
  for (Run& run : runs_) {
    if (run.next == static_cast<int>(run.arrived.size())) continue;
    for (auto& operation : run.arrived) {
      if (operation != nullptr) orphans->push_back(std::move(operation));
    }
    auto marker = std::make_unique<Operation>();
    marker->request.kind = Kind::kBarrier;
    marker->done = [](const Status&) {};
    Release(&run, kGivenUp, std::move(marker));
  }
  runs_.clear();
}

void BucketScheduler::SkipRun(int64_t run) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (next_run_ <= run) next_run_ = run + 1;
}

Status BucketScheduler::End(int64_t id, std::shared_ptr<EmptyRun>* empty) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  for (auto run = runs_.begin(); run != runs_.end(); ++run) {
    if (run->id != id) continue;
    *empty = run->empty;
    runs_.erase(run);
    break;
  }
  return {};
}

void BucketScheduler::Fail(const Status& failure, Endings* endings) {
  auto runs = std::make_shared<std::deque<Run>>();
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.ok()) failure_ = failure;
  runs->swap(runs_);
  endings->emplace_back([runs, failure] {
    for (Run& run : *runs) {
      for (auto& operation : run.arrived) {
        if (operation != nullptr) operation->done(failure);
      }
    }
  });
}

double BucketScheduler::Inspect(double seconds, std::string* what) {
  what->clear();
  // Whoever has it may wait for the channel, and its holder be inside MPI.
  std::unique_lock<std::mutex> lock = TryLock(mutex_);
  if (!lock.owns_lock()) return 0;
  for (const Run& run : runs_) {
    int waiting = 0;
    for (const auto& operation : run.arrived) waiting += operation != nullptr;
    if (waiting > 0) {
      *what += "step " + std::to_string(run.id) + " of '" + run.info->name + "' waits for bucket " +
               std::to_string(run.next) + " (" + std::to_string(waiting) + " later ones are here)";
    }
  }
  bool same = !what->empty() && *what == awaited_;
  awaited_ = *what;
  waited_ = same ? waited_ + seconds : 0;
  return waited_;
}

}  // namespace smddp

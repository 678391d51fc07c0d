// PendingWork: something that a device does in the background for a collective. It is shared with
// the device, which may outlive the collective if it never ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>  // for move

#include "core/status.h"
#include "transport/shm/shm_group.h"

namespace smddp {

class PendingWork {
 public:
  // `memory`, which may be null, lives as long as the work.
  PendingWork(ShmGroup* shm, std::shared_ptr<char> memory)
      : shm_(shm), memory_(std::move(memory)) {}

  // For the device.
  void Finish(const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
    over_ = true;
    changed_.notify_all();
    // The thread that advances the collective may be asleep.
    if (shm_ != nullptr) shm_->RingSelf();
  }

  // For the collective.
  bool Poll(Status* status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (over_) *status = status_;
    return over_;
  }
  // False if the work has not ended in time; it then no longer refers to the job.
  bool Abandon(double seconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto limit = std::chrono::duration<double>(seconds);
    bool over = changed_.wait_for(lock, limit, [this] { return over_; });
    shm_ = nullptr;
    return over;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  ShmGroup* shm_;
  std::shared_ptr<char> memory_;
  bool over_ = false;
  Status status_;
};

}  // namespace smddp

#include "tf/blocking.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>  // for move

namespace smddp_tf {
namespace {

class Threads {
 public:
  void Run(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(work));
    if (idle_ >= queue_.size()) return wanted_.notify_one();
    std::thread([this] { Loop(); }).detach();
  }

 private:
  void Loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++idle_;
      wanted_.wait(lock, [this] { return !queue_.empty(); });
      --idle_;
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wanted_;
  std::deque<std::function<void()>> queue_;
  size_t idle_ = 0;
};

}  // namespace

void RunBlocking(std::function<void()> work) {
  // Never destroyed: its threads live as long as the process.
  static Threads* threads = new Threads();
  threads->Run(std::move(work));
}

}  // namespace smddp_tf

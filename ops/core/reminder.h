// Says something on stderr if what runs meanwhile takes long.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "core/guarded.h"
#include "core/log.h"

namespace smddp {

class Reminder {
 public:
  // Warns with `text` once if this lives for `seconds`; never if they are 0.
  Reminder(double seconds, const std::string& text) {
    if (seconds <= 0) return;
    try {
      thread_ = std::thread([this, seconds, text] {
        std::unique_lock<std::mutex> lock(mutex_);
        auto time = std::chrono::duration<double>(seconds);
        if (ended_.wait_for(lock, time, [this] { return over_; })) return;
        Guarded([&] { LogWarning(text); }, [](const Status&) {});  // there is nowhere to say it
      });
    } catch (const std::system_error& error) {
      LogInfo(std::string("no thread can remind of a long wait: ") + error.what());
    }
  }
  Reminder(const Reminder&) = delete;
  Reminder& operator=(const Reminder&) = delete;
  ~Reminder() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace smddp

// The job's communicator, as the functions of the C API use it.
#pragma once

#include <atomic>
#include <memory>

#include "core/status.h"
#include "engine/communicator.h"

namespace smddp {

// Null before init() and after shutdown().
extern std::atomic<Communicator*> communicator;
extern std::atomic<int> inside;  // how many Uses there are

// The communicator lives at least as long as this.
class Use {
 public:
  Use() {
    ++inside;  // before the pointer is read
    comm_ = communicator;
  }
  ~Use() { --inside; }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  Communicator* operator->() const { return comm_; }
  explicit operator bool() const { return comm_ != nullptr; }

 private:
  Communicator* comm_;
};

Status NotInitialized();

// Returns null and sets *why if the set cannot be used.
std::shared_ptr<RankSet> FindSet(const Use& comm, int number, Status* why);

}  // namespace smddp

#include "transport/launch_order.h"

#include <algorithm>
#include <utility>  // for move

namespace smddp {

void LaunchTurn::SetApart() {
  std::lock_guard<std::mutex> lock(mutex_);
  apart_ = true;
}

// Those without a time are not in the order of those with one, so the host runs the latter
// meanwhile.
LaunchTurn::Ballot LaunchTurn::Vote(const void* collective) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!apart_) without_time_.insert(collective);
  return {apart_, !apart_ || without_time_.empty()};
}

bool LaunchTurn::Take(const void* group, const void* collective, Wake wake) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(collective);
  bool others_wait = std::any_of(waiting_.begin(), waiting_.end(),
                                 [&](const auto& one) { return one.second.group != group; });
  bool free = taken_.empty() || (group_ == group && !others_wait);
  if (free) {
    group_ = group;
    taken_.insert(collective);
  } else {
    waiting_[collective] = {group, std::move(wake)};
  }
  return free;
}

int64_t LaunchTurn::Propose(const void* group, int process_set, const void* collective, Wake wake) {
  std::lock_guard<std::mutex> lock(mutex_);
  timed_[collective] = {group, ++latest_, process_set, std::move(wake)};
  return latest_;
}

void LaunchTurn::Agree(const void* collective, int64_t time) {
  std::lock_guard<std::mutex> lock(mutex_);
  timed_.at(collective).time = time;
  latest_ = std::max(latest_, time);
  WakeAll();
}

bool LaunchTurn::Start(const void* collective) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Timed& own = timed_.at(collective);
  bool next = std::none_of(timed_.begin(), timed_.end(),
                           [&](const auto& one) { return one.second.Before(own); });
  if (!next || (!taken_.empty() && group_ != own.group)) return false;
  group_ = own.group;
  taken_.insert(collective);
  timed_.erase(collective);
  WakeAll();
  return true;
}

void LaunchTurn::Release(const void* collective) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t known = waiting_.erase(collective) + taken_.erase(collective) + timed_.erase(collective) +
                 without_time_.erase(collective);
  if (known > 0) WakeAll();
}

void LaunchTurn::WakeAll() const {
  for (const auto& one : waiting_) one.second.wake();
  for (const auto& one : timed_) one.second.wake();
}

}  // namespace smddp

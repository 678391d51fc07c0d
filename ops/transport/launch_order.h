// In which order the groups of a process start collectives (device_group.h).
//
// Two kernels that wait for their peers may exclude each other from a device. So all ranks have to
// start collectives in one order: those of a group, which a LaunchOrder tells, and those of
// different groups, for which a process has a LaunchTurn.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace smddp {

// In which order a group's collectives are started, by numbers that the first rank of the set gives
// and the votes tell all ranks (collective/device/vote.h). The ranks start a collective when they
// have passed all numbers below its own.
class LaunchOrder {
 public:
  // For the first rank: the next number, from 1 on.
  int64_t Give() {
    std::lock_guard<std::mutex> lock(mutex_);
    return ++given_;
  }
  bool IsTurnOf(int64_t number) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return number <= next_;
  }
  // The collective has been started, or will not be. May be called again; 0 is no number.
  void Pass(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (number >= next_) passed_.insert(number);
    while (passed_.erase(next_) > 0) ++next_;
  }

 private:
  mutable std::mutex mutex_;
  int64_t given_ = 0, next_ = 1;
  std::set<int64_t> passed_;  // not below next_
};

// Which group of this process may start collectives: one group at a time has some under way, which
// its LaunchOrder has started.
//
// Where all sets that share ranks share their first one, that rank decides which group comes next,
// by when it ends a vote (Take). Other sets are "apart". Then each collective gets a time that all
// of its ranks agree on: the latest of those that they propose, each later than all that the rank
// has seen. A rank starts collectives by their times, and one whose time is not yet agreed on as
// if that were the proposed one, which it is not before. (Skeen's protocol, in: Birman and Joseph,
// "Reliable communication in the presence of failures", ACM TOCS 5:1, 1987.) Times are proposed
// when all ranks have voted, so nobody waits for a rank which is still to come.
class LaunchTurn {
 public:
  using Wake = std::function<void()>;

  // From now on sets are apart: votes that begin later say so, and if some rank of a collective
  // said so, its ranks agree on a time.
  void SetApart();
  // A vote on a collective of this process begins.
  struct Ballot {
    bool apart;
    bool can;  // false while some are under way whose vote had begun before sets were apart
  };
  Ballot Vote(const void* collective);

  // On the first rank of a set, for one collective of `group`. False while another group has some
  // under way, or waits for this one's to end; `wake` is called when that may be over.
  bool Take(const void* group, const void* collective, Wake wake);

  // Sets that are apart, on all ranks: a time for a collective of the group, of which there is one
  // at a time that has not been started; then, what the ranks have agreed on; then, until it is
  // true, whether it may be started. `wake` is called when that may have changed.
  int64_t Propose(const void* group, int process_set, const void* collective, Wake wake);
  void Agree(const void* collective, int64_t time);
  bool Start(const void* collective);

  // When the collective has ended, or will not begin; and if it is not known here.
  void Release(const void* collective);

 private:
  struct Waiting {
    const void* group;
    Wake wake;
  };
  struct Timed {
    const void* group;
    int64_t time;
    int process_set;  // no two collectives have the same time and set
    Wake wake;
    bool Before(const Timed& other) const {
      return time != other.time ? time < other.time : process_set < other.process_set;
    }
  };
  void WakeAll() const;

  std::mutex mutex_;
  bool apart_ = false;
  std::set<const void*> without_time_;  // their votes began before sets were apart
  const void* group_ = nullptr;         // of those that have taken their turn
  std::set<const void*> taken_;
  std::map<const void*, Waiting> waiting_;
  int64_t latest_ = 0;  // of all times that this rank has seen
  std::map<const void*, Timed> timed_;
};

}  // namespace smddp

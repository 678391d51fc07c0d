#include "engine/deadlock_detector.h"

#include <algorithm>
#include <cstring>
#include <utility>  // for swap

namespace smddp {
namespace {

// Much longer than ranks of a node take to see each other's progress, and much shorter than a
// user's patience.
constexpr double kGraceSeconds = 1.0;

}  // namespace

Status DeadlockDetector::Look(double seconds, Channel* direct, Channel* gradients) {
  if (shm_->size() == 1) return {};
  still_ = Moved() ? 0 : still_ + seconds;
  Channel::Glance glances[kChannels] = {direct->Look(), gradients->Look()};
  // Operations matched by name have no order relative to others, so each may still arrive.
  if (glances[0].by_name || glances[1].by_name) return {};
  Own own[kChannels] = {Report(0, glances[0], direct), Report(1, glances[1], gradients)};
  if (still_ < kGraceSeconds) return {};
  for (int index = 0; index < kChannels; ++index) {
    if (own[index].state != ChannelState::kStuck || own[1 - index].state != ChannelState::kIdle)
      continue;
    for (int p = 0; p < shm_->size(); ++p) {
      const auto& missing = own[index].missing;
      if (std::find(missing.begin(), missing.end(), topo_->JobRank(p)) == missing.end()) continue;
      Status cycle = CycleWith(p, index, own[index]);
      if (!cycle.ok()) return cycle;
    }
  }
  return {};
}

// Determines this rank's state and publishes it to its peers.
DeadlockDetector::Own DeadlockDetector::Report(int index, const Channel::Glance& glance,
                                               Channel* channel) const {
  Own own;
  if (!glance.idle) own.state = ChannelState::kBusy;
  auto look = [&](Operation* front, const std::vector<int>& missing) {
    if (front->waited < kGraceSeconds) return;
    own = {ChannelState::kStuck, front->request.Title(), missing};
  };
  if (glance.seen) channel->Inspect(0, look);
  ChannelReport& report = shm_->cell(shm_->rank()).reports[index];
  if (own.state == ChannelState::kStuck && own.title != report.title) {
    // Peers do not use the title now; the fence keeps its new text from coming before this state.
    report.state.store(ChannelState::kBusy, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_release);
    std::memset(report.title, 0, sizeof report.title);
    std::strncpy(report.title, own.title.c_str(), sizeof report.title - 1);
  }
  report.state.store(own.state, std::memory_order_release);
  return own;
}

bool DeadlockDetector::Moved() {
  std::vector<uint64_t> counters;
  for (int p = 0; p < shm_->size(); ++p) {
    for (int index = 0; index < kChannels; ++index) {
      const ChannelCell& cell = shm_->channel_cell(p, index);
      for (const auto* counter : {&cell.staged, &cell.combined, &cell.unpacked}) {
        counters.push_back(counter->load(std::memory_order_acquire));
      }
    }
  }
  counters_.swap(counters);
  return counters_ != counters;
}

// Returns an error if this rank, stuck in channel `index` waiting for `peer`, and `peer` are
// deadlocked.
Status DeadlockDetector::CycleWith(int peer, int index, const Own& own) const {
  int other = 1 - index, self = shm_->rank();
  const ChannelReport* reports = shm_->cell(peer).reports;
  if (reports[index].state.load(std::memory_order_acquire) != ChannelState::kIdle ||
      reports[other].state.load(std::memory_order_acquire) != ChannelState::kStuck) {
    return {};
  }
  std::string title(reports[other].title, strnlen(reports[other].title, kTitleBytes));
  std::atomic_thread_fence(std::memory_order_acquire);  // the title is read before the state below
  bool same = reports[other].state.load(std::memory_order_acquire) == ChannelState::kStuck;
  // Each has begun an operation that the other has not.
  auto ahead = [&](int a, int b, int in) {
    return shm_->channel_cell(a, in).staged.load() > shm_->channel_cell(b, in).staged.load();
  };
  if (!same || !ahead(self, peer, index) || !ahead(peer, self, other)) return {};
  std::string names[2] = {std::to_string(topo_->JobRank(self)),
                          std::to_string(topo_->JobRank(peer))};
  std::string titles[2] = {own.title, title};
  if (peer < self) {  // both ranks report it in the same words
    std::swap(names[0], names[1]);
    std::swap(titles[0], titles[1]);
  }
  return {Code::kRemote,
          "rank " + names[0] + " waits for rank " + names[1] + " in " + titles[0] +
              ", while rank " + names[1] + " waits for rank " + names[0] + " in " + titles[1] +
              ": neither will come, for they took different paths through the program. Perhaps one "
              "had fewer batches than the other (smddp_tf.keras.shard gives all ranks as many, "
              "join() lets one end early), caught an exception, or stopped training alone, as "
              "Keras's own EarlyStopping and TerminateOnNaN do"};
}

}  // namespace smddp

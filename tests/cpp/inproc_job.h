// A job whose ranks are threads: heap memory instead of segments, InprocGroup instead of MPI. The
// collectives are the real ones.
#pragma once

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collective/selector.h"
#include "transport/inproc/inproc.h"

namespace smddp_test {

// So many ranks on so many nodes.
struct JobShape {
  int size, nodes;
};

constexpr JobShape kJobs[] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {8, 1}, {2, 2},
                              {3, 3}, {4, 2}, {3, 2}, {5, 2}, {8, 4}, {6, 3}};
constexpr size_t kChunk = 4096;  // so that small payloads take several

inline std::string Case(const JobShape& job, size_t count, const char* what) {
  return std::string(what) + " of " + std::to_string(count) + " on " + std::to_string(job.size) +
         " ranks, " + std::to_string(job.nodes) + " nodes";
}

// One thread plays all ranks, in turns. Returns whether every collective has ended.
inline bool AdvanceAll(const std::vector<std::unique_ptr<smddp::Collective>>& collectives) {
  for (int i = 0; i < 10000; ++i) {
    bool all = true;
    for (auto& collective : collectives) all &= collective->Advance() == smddp::Progress::kDone;
    if (all) return true;
  }
  return false;
}

// Gives up, with a timeout status, after 60 s.
inline smddp::Status RunToEnd(smddp::Collective* collective, const smddp::Request& request) {
  auto start = std::chrono::steady_clock::now();
  constexpr int kYields = 200;  // then the other ranks have more use for the core
  int idle = 0;
  for (;;) {
    smddp::Progress progress = collective->Advance();
    if (progress == smddp::Progress::kDone) break;
    idle = progress == smddp::Progress::kSome ? 0 : idle + 1;
    if (idle < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(60)) {
      return {smddp::Code::kTimeout, "hung in " + request.Title()};
    }
  }
  return collective->status();
}

class InprocJob {
 public:
  // Rank r is on node r * nodes / size, as with SMDDP_NODES. With `reads_peers` nothing is too
  // small to be read from a peer's memory. Between nodes nothing over `limit` bytes travels at
  // once.
  InprocJob(int size, int nodes, size_t chunk_bytes, bool reads_peers = false,
            size_t limit = SIZE_MAX)
      : InprocJob(EvenNodes(size, nodes), chunk_bytes, reads_peers, limit) {}

  // Rank r is on node keys[r].
  explicit InprocJob(const std::vector<int>& keys, size_t chunk_bytes, bool reads_peers = false,
                     size_t limit = SIZE_MAX) {
    int size = static_cast<int>(keys.size());
    for (int r = 0; r < size; ++r) {
      topologies_.push_back(std::make_unique<smddp::Topology>(smddp::Topology::FromKeys(r, keys)));
    }
    resources_.resize(size);
    for (const auto& node : topologies_[0]->nodes) AddNode(node, chunk_bytes);
    for (auto& resources : resources_) resources.reads_peers = reads_peers;
    // Every collective is tried with ranks that write their slots past the cache, and with ranks
    // that probe, so both ways meet.
    for (int r = 1; r < size; r += 2)
      resources_[r].staging_choice.Force(smddp::StagingMode::kStreaming);
    if (topologies_[0]->num_nodes > 1) ConnectNodes(size, limit);
  }

  // Runs the request on rank `rank` to its end; called on a thread of its own.
  smddp::Status Run(int rank, const smddp::Request& request, const std::string& forced = "") {
    smddp::Selector selector;
    selector.forced_allreduce = forced;
    selector.PreferSingleCopy();
    return RunToEnd(selector.Make(&resources_[rank], &request, nullptr).get(), request);
  }

  const smddp::Topology& topology(int rank) const { return *topologies_[rank]; }
  smddp::ChannelResources& resources(int rank) { return resources_[rank]; }

 private:
  static std::vector<int> EvenNodes(int size, int nodes) {
    std::vector<int> keys(size);
    for (int r = 0; r < size; ++r) keys[r] = r * nodes / size;
    return keys;
  }

  void AddNode(const std::vector<int>& ranks, size_t chunk_bytes) {
    int local_size = static_cast<int>(ranks.size());
    size_t bytes = smddp::ShmGroup::BytesNeeded(local_size, chunk_bytes);
    memory_.emplace_back(bytes + 64, 0);
    auto address = reinterpret_cast<uintptr_t>(memory_.back().data());
    void* aligned = reinterpret_cast<void*>((address + 63) / 64 * 64);
    for (int local = 0; local < local_size; ++local) {
      groups_.push_back(std::make_unique<smddp::ShmGroup>(aligned, local, local_size, chunk_bytes));
      resources_[ranks[local]].topology = topologies_[ranks[local]].get();
      resources_[ranks[local]].shm = groups_.back().get();
    }
  }

  void ConnectNodes(int size, size_t limit) {
    auto world = smddp::MakeInprocGroups(size, limit);
    for (int r = 0; r < size; ++r) resources_[r].all_ranks = std::move(world[r]);
    const smddp::Topology& topo = *topologies_[0];
    for (int owner = 0; owner < topo.owners; ++owner) {
      auto cross = smddp::MakeInprocGroups(topo.num_nodes, limit);
      for (int n = 0; n < topo.num_nodes; ++n) {
        resources_[topo.nodes[n][owner]].share_peers = std::move(cross[n]);
      }
    }
  }

  std::vector<std::unique_ptr<smddp::Topology>> topologies_;
  std::vector<std::vector<char>> memory_;
  std::vector<std::unique_ptr<smddp::ShmGroup>> groups_;
  std::vector<smddp::ChannelResources> resources_;
};

}  // namespace smddp_test

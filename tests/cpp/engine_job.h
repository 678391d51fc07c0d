// Whole ranks of the engine in one process: communicators on threads, memory of the heap, and
// between nodes groups that fail when they are told to.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"
#include "engine/communicator.h"
#include "inproc_job.h"

namespace smddp_test {

using namespace smddp;

// Fails once, at the start of exchange n, counted from 0; passes all others on.
class FailingGroup : public PeerGroup {
 public:
  FailingGroup(std::unique_ptr<PeerGroup> group, int n) : group_(std::move(group)), left_(n) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  char* Memory(size_t bytes) override { return group_->Memory(bytes); }
  Status StartAllgather(const void* send, size_t bytes, void* recv) override {
    return Fails() ? Lost() : group_->StartAllgather(send, bytes, recv);
  }
  Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                         const std::vector<size_t>& offsets) override {
    return Fails() ? Lost() : group_->StartAllgatherV(send, recv, bytes, offsets);
  }
  Status StartAlltoall(const void* send, size_t bytes, void* recv) override {
    return Fails() ? Lost() : group_->StartAlltoall(send, bytes, recv);
  }
  Status StartAlltoallV(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                        const std::vector<size_t>& recv_bytes) override {
    return Fails() ? Lost() : group_->StartAlltoallV(send, send_bytes, recv, recv_bytes);
  }
  Status StartBroadcast(void* buffer, size_t bytes, int root) override {
    return Fails() ? Lost() : group_->StartBroadcast(buffer, bytes, root);
  }
  Status Test(bool* done) override { return group_->Test(done); }

 private:
  bool Fails() { return left_-- == 0; }
  static Status Lost() { return {Code::kSystem, "the cable is cut"}; }
  std::unique_ptr<PeerGroup> group_;
  int left_;
};

// What the first ranks of the nodes shout to each other.
struct Shouts {
  std::mutex mutex;
  std::vector<std::deque<std::pair<int, std::string>>> heard;  // by node
};

class InprocAlarm : public Alarm {
 public:
  InprocAlarm(Shouts* shouts, int node) : shouts_(shouts), node_(node) {}
  bool Raise(int code, const std::string& text) override {
    std::lock_guard<std::mutex> lock(shouts_->mutex);
    for (size_t n = 0; n < shouts_->heard.size() && !raised_; ++n) {
      if (static_cast<int>(n) != node_) shouts_->heard[n].emplace_back(code, text);
    }
    return raised_ = true;
  }
  bool Heard(int* code, std::string* text) override {
    std::lock_guard<std::mutex> lock(shouts_->mutex);
    auto& own = shouts_->heard[node_];
    if (own.empty()) return false;
    std::tie(*code, *text) = own.front();
    own.pop_front();
    return true;
  }

 private:
  Shouts* shouts_;
  int node_;
  bool raised_ = false;
};

constexpr int kNever = 1 << 30;

// The connections of a job whose ranks are threads; rank r is on node r * nodes / size.
struct Wires {
  // Rank `bad` loses its peers on other nodes in channel 0 at the start of exchange `n`.
  Wires(int size, int nodes, int bad = 0, int n = kNever) {
    std::vector<int> keys(size);
    for (int r = 0; r < size; ++r) keys[r] = r * nodes / size;
    for (int r = 0; r < size; ++r) {
      connections.push_back(std::make_unique<Connection>());
      connections[r]->topology = Topology::FromKeys(r, keys);
      connections[r]->channels.resize(kChannels);
    }
    const Topology& topo = connections[0]->topology;
    shouts.heard.resize(nodes);
    for (const auto& ranks : topo.nodes) AddNode(ranks);
    for (int channel = 0; nodes > 1 && channel < kChannels; ++channel) {
      auto world = MakeInprocGroups(size);
      for (int r = 0; r < size; ++r)
        connections[r]->channels[channel].all_ranks = std::move(world[r]);
      for (int owner = 0; owner < topo.owners; ++owner) {
        auto cross = MakeInprocGroups(nodes);
        for (int node = 0; node < nodes; ++node) {
          int r = topo.nodes[node][owner];
          int calls = r == bad && channel == 0 ? n : kNever;
          connections[r]->channels[channel].share_peers =
              std::make_unique<FailingGroup>(std::move(cross[node]), calls);
        }
      }
    }
  }

  void AddNode(const std::vector<int>& ranks) {
    int size = static_cast<int>(ranks.size());
    memory.emplace_back(ShmGroup::BytesNeeded(size, kChunk) + 64, 0);
    auto address = reinterpret_cast<uintptr_t>(memory.back().data());
    void* aligned = reinterpret_cast<void*>((address + 63) / 64 * 64);
    for (int local = 0; local < size; ++local) {
      Connection* connection = connections[ranks[local]].get();
      connection->shm = std::make_unique<ShmGroup>(aligned, local, size, kChunk);
      int node = connection->topology.node;
      if (local == 0) connection->alarm = std::make_unique<InprocAlarm>(&shouts, node);
      for (int channel = 0; channel < kChannels; ++channel) {
        connection->channels[channel].topology = &connection->topology;
        connection->channels[channel].shm = connection->shm.get();
        connection->channels[channel].index = channel;
      }
    }
  }

  std::vector<std::vector<char>> memory;
  Shouts shouts;
  std::vector<std::unique_ptr<Connection>> connections;
};

inline std::unique_ptr<Communicator> Connect(Wires* wires, int rank, double timeout = 20) {
  auto context = std::make_unique<JobContext>();
  context->config.timeout_seconds = timeout;
  auto communicator =
      std::make_unique<Communicator>(std::move(context), std::move(wires->connections[rank]));
  Status status = communicator->Start();
  EXPECT(status.ok(), status.message());
  return communicator;
}

inline std::shared_ptr<RankSet> Everybody(const Communicator& communicator) {
  Status why;
  return communicator.Find(0, &why);
}

// The plan of a tape.
inline std::shared_ptr<const PlanInfo> Plan(int buckets) {
  auto info = std::make_shared<PlanInfo>();
  info->fingerprint = 7;
  info->name = "tape";
  info->text = std::make_shared<const std::string>();
  info->num_buckets = buckets;
  return info;
}

inline void FailSet(RankSet* set, const Status& failure) {
  Endings endings;
  set->Fail(failure, &endings);
  for (const auto& end : endings) end();
}

inline Request Sum(float* value, const std::string& name, size_t count = 1) {
  Request request;
  request.op = ReduceOp::kSum;
  request.name = name;
  request.tensors = {{value, value, {static_cast<int64_t>(count)}}};
  return request;
}

}  // namespace smddp_test

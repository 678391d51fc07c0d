#include "network.h"

#include <cstring>
#include <functional>
#include <map>
#include <numeric>

namespace smddp_sim {
namespace {

using smddp::Code;
using smddp::PeerGroup;
using smddp::Status;

// What one rank brings to one exchange.
struct Side {
  bool started = false, arrived = false, taken = false;
  std::string what;  // the call, to see that all make the same
  const char* send = nullptr;
  std::vector<char> sent;  // what lay there when the exchange started
  std::function<void(const std::vector<const char*>&)> take;
};

struct Exchange {
  std::vector<Side> sides;
  bool eager = false;  // a sender is done before the others have what it sent
  int root = -1;       // of a broadcast: the others need nobody else
};

struct Hub {
  Network* network;
  std::vector<int> ranks;  // of the job
  std::map<size_t, std::shared_ptr<Exchange>> exchanges;
};

class SimGroup : public PeerGroup {
 public:
  SimGroup(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hub_->ranks.size()); }

  Status StartAllgather(const void* send, size_t bytes, void* recv) override {
    return Start("allgather " + std::to_string(bytes), send, bytes, -1,
                 [=](const std::vector<const char*>& sends) {
                   for (int r = 0; r < size(); ++r) Copy(recv, r * bytes, sends[r], bytes);
                 });
  }
  Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                         const std::vector<size_t>& offsets) override {
    return Start("allgatherv", send, bytes[rank_], -1, [=](const std::vector<const char*>& sends) {
      for (int r = 0; r < size(); ++r) Copy(recv, offsets[r], sends[r], bytes[r]);
    });
  }
  Status StartAlltoall(const void* send, size_t bytes, void* recv) override {
    return Start("alltoall " + std::to_string(bytes), send, bytes * size(), -1,
                 [=](const std::vector<const char*>& sends) {
                   for (int r = 0; r < size(); ++r) {
                     Copy(recv, r * bytes, sends[r] + rank_ * bytes, bytes);
                   }
                 });
  }
  Status StartAlltoallV(const void* send, const std::vector<size_t>& bytes, void* recv) override {
    const size_t* own = bytes.data() + rank_ * size();
    size_t total = std::accumulate(own, own + size(), size_t{0});
    return Start("alltoallv", send, total, -1, [=](const std::vector<const char*>& sends) {
      size_t to = 0;
      for (int r = 0; r < size(); ++r) {
        const size_t* row = bytes.data() + r * size();
        Copy(recv, to, sends[r] + std::accumulate(row, row + rank_, size_t{0}), row[rank_]);
        to += row[rank_];
      }
    });
  }
  Status StartBroadcast(void* buffer, size_t bytes, int root) override {
    return Start("broadcast " + std::to_string(bytes), buffer, bytes, root,
                 [=](const std::vector<const char*>& sends) {
                   if (rank_ != root) Copy(buffer, 0, sends[root], bytes);
                 });
  }

  Status Test(bool* done) override {
    *done = false;
    Status failed = Failing("Test");
    if (!failed.ok()) return failed;
    if (!busy_) {
      *done = true;  // as MPI says of a request that is none
      return {};
    }
    Exchange& exchange = *hub_->exchanges[sequence_];
    Side& own = exchange.sides[rank_];
    if (!exchange.eager && !own.sent.empty() &&
        std::memcmp(own.send, own.sent.data(), own.sent.size()) != 0) {
      hub_->network->ReportAbuse("rank " + std::to_string(hub_->ranks[rank_]) + " changes what " +
                                 own.what + " sends before that is over");
    }
    if (own.arrived && !own.taken) Take(&exchange, rank_);
    if (!own.taken || !SentIsFree(exchange)) return {};
    *done = true;
    busy_ = false;
    ++sequence_;
    return {};
  }

 private:
  using TakeFn = std::function<void(const std::vector<const char*>&)>;

  Random& random() { return hub_->network->scheduler()->random(); }

  Status Failing(const char* where) {
    if (!hub_->network->broken(hub_->ranks[rank_])) return {};
    if (!failing_ && random().Chance(0.3)) return {};  // not at the first call
    failing_ = true;
    return {Code::kSystem, std::string("the simulated network failed in ") + where};
  }

  Status Start(const std::string& what, const void* send, size_t bytes, int root, TakeFn take) {
    if (busy_) {
      hub_->network->ReportAbuse("rank " + std::to_string(hub_->ranks[rank_]) + " starts " + what +
                                 " before Test() said that the last exchange is done");
    }
    Status failed = Failing("Start");
    if (!failed.ok()) return failed;
    std::shared_ptr<Exchange>& exchange = hub_->exchanges[sequence_];
    if (exchange == nullptr) {
      exchange = std::make_shared<Exchange>();
      exchange->sides.resize(size());
      exchange->eager = random().Chance(0.5);
      exchange->root = root;
    }
    for (const Side& side : exchange->sides) {
      if (!side.started || side.what == what) continue;
      hub_->network->ReportAbuse("rank " + std::to_string(hub_->ranks[rank_]) + " starts " + what +
                                 " where another rank started " + side.what);
      return {Code::kSystem, "the simulated network got different exchanges"};
    }
    Side& own = exchange->sides[rank_];
    own.started = true;
    own.what = what;
    own.send = static_cast<const char*>(send);
    bool sends = root < 0 || root == rank_;
    if (sends) own.sent.assign(own.send, own.send + bytes);
    own.take = std::move(take);
    busy_ = true;
    Post(exchange);
    return {};
  }

  // Messages whose senders have all come go on their way.
  void Post(const std::shared_ptr<Exchange>& exchange) {
    bool all = true;
    for (const Side& side : exchange->sides) all = all && side.started;
    for (int r = 0; r < size(); ++r) {
      bool posted_before = r != rank_ && exchange->root >= 0 && rank_ != exchange->root;
      bool ready = all;
      if (exchange->root >= 0) {
        ready = exchange->sides[r].started && exchange->sides[exchange->root].started;
        if (posted_before) ready = false;
      }
      if (!ready) continue;
      Scheduler* scheduler = hub_->network->scheduler();
      double delay = random().Chance(0.3) ? 0 : hub_->network->style().longest_delay;
      auto hub = hub_;
      scheduler->At(scheduler->now() + delay * random().Unit(),
                    [hub, exchange, r] { Arrive(*hub, exchange.get(), r); });
    }
  }

  static void Arrive(const Hub& hub, Exchange* exchange, int r) {
    Scheduler* scheduler = hub.network->scheduler();
    for (size_t p = 0; p < hub.ranks.size(); ++p) {
      bool lost = scheduler->dead(hub.ranks[p]) && !exchange->eager;
      if (lost || scheduler->dead(hub.ranks[r])) return;
    }
    exchange->sides[r].arrived = true;
    if (hub.network->style().writes_at_any_time) Take(exchange, r);
  }

  static void Take(Exchange* exchange, int r) {
    std::vector<const char*> sends;
    for (const Side& side : exchange->sides) {
      sends.push_back(side.sent.data());
    }
    exchange->sides[r].take(sends);
    exchange->sides[r].taken = true;
  }

  bool SentIsFree(const Exchange& exchange) const {
    if (exchange.eager || (exchange.root >= 0 && exchange.root != rank_)) return true;
    for (const Side& side : exchange.sides) {
      if (!side.taken) return false;
    }
    return true;
  }

  static void Copy(void* to, size_t offset, const char* from, size_t bytes) {
    char* at = static_cast<char*>(to) + offset;
    if (bytes > 0 && at != from) std::memmove(at, from, bytes);
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  size_t sequence_ = 0;
  bool busy_ = false, failing_ = false;
};

}  // namespace

std::vector<std::unique_ptr<PeerGroup>> Network::Connect(const std::vector<int>& ranks) {
  auto hub = std::make_shared<Hub>();
  hub->network = this;
  hub->ranks = ranks;
  std::vector<std::unique_ptr<PeerGroup>> groups;
  for (size_t r = 0; r < ranks.size(); ++r) {
    groups.push_back(std::make_unique<SimGroup>(hub, static_cast<int>(r)));
  }
  return groups;
}

void Network::Break(int rank) { broken_[rank] = 1; }

}  // namespace smddp_sim

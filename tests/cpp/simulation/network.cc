#include "network.h"

#include <malloc.h>

#include <algorithm>
#include <cstdint>
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
  std::string what;                // the call, to see that all make the same
  std::shared_ptr<char[]> memory;  // what is given up may be written to later
  const char* send = nullptr;
  std::vector<char> sent;     // what lay there when the exchange started
  std::vector<size_t> parts;  // of an alltoall of uneven ones: what goes to each rank
  std::function<void(const std::vector<Side>&)> take;
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

size_t Sum(const std::vector<size_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

class SimGroup : public PeerGroup {
 public:
  SimGroup(std::shared_ptr<Hub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank), size_(static_cast<int>(hub_->ranks.size())) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status StartAllgather(const void* send, size_t bytes, void* recv) override {
    Area to{recv, bytes * size_};
    return Start("allgather " + std::to_string(bytes), {send, bytes}, to, -1,
                 [=, n = size_](const std::vector<Side>& sides) {
                   for (int r = 0; r < n; ++r) Copy(recv, r * bytes, sides[r].sent.data(), bytes);
                 });
  }
  Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                         const std::vector<size_t>& offsets) override {
    Area to{recv, 0};
    for (int r = 0; r < size_; ++r) to.bytes = std::max(to.bytes, offsets[r] + bytes[r]);
    return Start("allgatherv", {send, bytes[rank_]}, to, -1,
                 [=, n = size_](const std::vector<Side>& sides) {
                   for (int r = 0; r < n; ++r) {
                     Copy(recv, offsets[r], sides[r].sent.data(), bytes[r]);
                   }
                 });
  }
  Status StartAlltoall(const void* send, size_t bytes, void* recv) override {
    Area to{recv, bytes * size_};
    return Start("alltoall " + std::to_string(bytes), {send, bytes * size_}, to, -1,
                 [=, n = size_, own = rank_](const std::vector<Side>& sides) {
                   for (int r = 0; r < n; ++r) {
                     if (r == own) continue;
                     Copy(recv, r * bytes, sides[r].sent.data() + own * bytes, bytes);
                   }
                 });
  }
  Status StartAlltoallV(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                        const std::vector<size_t>& recv_bytes) override {
    auto take = [=, n = size_, own = rank_,
                 network = hub_->network](const std::vector<Side>& from) {
      size_t to = 0;
      for (int r = 0; r < n; ++r) {
        const std::vector<size_t>& parts = from[r].parts;
        if (parts[own] != recv_bytes[r]) {
          return network->ReportAbuse("a rank expects what another does not send in an alltoallv");
        }
        const char* at = from[r].sent.data();
        at += std::accumulate(parts.begin(), parts.begin() + own, size_t{0});
        Copy(recv, to, at, recv_bytes[r]);
        to += recv_bytes[r];
      }
    };
    return Start("alltoallv", {send, Sum(send_bytes)}, {recv, Sum(recv_bytes)}, -1, take,
                 send_bytes);
  }
  Status StartBroadcast(void* buffer, size_t bytes, int root) override {
    return Start("broadcast " + std::to_string(bytes), {buffer, bytes}, {buffer, bytes}, root,
                 [=, own = rank_](const std::vector<Side>& sides) {
                   if (own != root) Copy(buffer, 0, sides[root].sent.data(), bytes);
                 });
  }

  Status Test(bool* done) override {
    *done = false;
    Status failed = Failing("Test");
    if (!failed.ok()) return failed;
    for (size_t i = 0; i < under_way_; ++i) {
      Exchange& exchange = *hub_->exchanges[oldest_ + i];
      Side& own = exchange.sides[rank_];
      CheckSent(exchange, own);
      if (own.arrived && !own.taken) Take(&exchange, rank_);
    }
    if (under_way_ == 0) {
      *done = true;  // as MPI says of a request that is none
      return {};
    }
    const Exchange& exchange = *hub_->exchanges[oldest_];
    if (!exchange.sides[rank_].taken || !SentIsFree(exchange)) return {};
    *done = true;
    --under_way_;
    ++oldest_;
    return {};
  }

 private:
  using TakeFn = std::function<void(const std::vector<Side>&)>;
  struct Area {
    const void* at;
    size_t bytes;
  };

  Random& random() { return hub_->network->scheduler()->random(); }

  void Report(const std::string& what) {
    hub_->network->ReportAbuse("rank " + std::to_string(hub_->ranks[rank_]) + " " + what);
  }

  Status Failing(const char* where) {
    if (!hub_->network->broken(hub_->ranks[rank_])) return {};
    if (!failing_ && random().Chance(0.3)) return {};  // not at the first call
    failing_ = true;
    return {Code::kSystem, std::string("the simulated network failed in ") + where};
  }

  void CheckSent(const Exchange& exchange, const Side& own) {
    if (exchange.eager || own.sent.empty()) return;
    if (std::memcmp(own.send, own.sent.data(), own.sent.size()) == 0) return;
    Report("changes what " + own.what + " sends before that is over");
  }

  bool InMemory(const Area& area) const {
    auto begin = reinterpret_cast<uintptr_t>(memory().get());
    auto at = reinterpret_cast<uintptr_t>(area.at);
    return area.bytes == 0 ||
           (at >= begin && at + area.bytes <= begin + ::malloc_usable_size(memory().get()));
  }

  void CheckStart(const std::string& what, const Area& send, const Area& recv) {
    if (under_way_ == kDepth) Report("starts " + what + " while kDepth exchanges are under way");
    if (!InMemory(send) || !InMemory(recv))
      Report("starts " + what + " outside the group's memory");
    if (under_way_ > 0 && memory() != used_) Report("moves the memory of exchanges under way");
    used_ = memory();
  }

  Status Start(const std::string& what, const Area& send, const Area& recv, int root, TakeFn take,
               std::vector<size_t> parts = {}) {
    CheckStart(what, send, recv);
    Status failed = Failing("Start");
    if (!failed.ok()) return failed;
    std::shared_ptr<Exchange>& exchange = hub_->exchanges[oldest_ + under_way_];
    if (exchange == nullptr) {
      exchange = std::make_shared<Exchange>();
      exchange->sides.resize(size_);
      exchange->eager = random().Chance(0.5);
      exchange->root = root;
    }
    for (const Side& side : exchange->sides) {
      if (!side.started || side.what == what) continue;
      Report("starts " + what + " where another rank started " + side.what);
      return {Code::kSystem, "the simulated network got different exchanges"};
    }
    Side& own = exchange->sides[rank_];
    own.started = true;
    own.what = what;
    own.memory = memory();
    own.send = static_cast<const char*>(send.at);
    if (root < 0 || root == rank_) own.sent.assign(own.send, own.send + send.bytes);
    own.parts = std::move(parts);
    own.take = std::move(take);
    ++under_way_;
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
    exchange->sides[r].take(exchange->sides);
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
  int rank_, size_;
  size_t oldest_ = 0, under_way_ = 0;
  std::shared_ptr<char[]> used_;  // by the last exchange
  bool failing_ = false;
};

// How messages of failures go: to each other node, unless the network of either is gone.
class SimAlarm : public smddp::Alarm {
 public:
  struct Message {
    bool told = false;
    int code = 0;
    std::string text;
  };
  struct Board {
    Network* network;
    std::vector<int> ranks;
    std::vector<Message> heard;
  };

  SimAlarm(std::shared_ptr<Board> board, size_t index) : board_(std::move(board)), index_(index) {}

  bool Raise(int code, const std::string& text) override {
    if (raised_) return true;
    raised_ = true;
    if (board_->network->broken(board_->ranks[index_])) return true;
    Scheduler* scheduler = board_->network->scheduler();
    for (size_t other = 0; other < board_->ranks.size(); ++other) {
      if (other == index_) continue;
      double delay = board_->network->style().longest_delay * scheduler->random().Unit();
      scheduler->At(scheduler->now() + delay, [board = board_, other, code, text] {
        Message& heard = board->heard[other];
        if (!heard.told) heard = {true, code, text};
      });
    }
    return true;
  }
  bool Heard(int* code, std::string* text) override {
    const Message& heard = board_->heard[index_];
    if (!heard.told || board_->network->broken(board_->ranks[index_])) return false;
    *code = heard.code;
    *text = heard.text;
    return true;
  }

 private:
  std::shared_ptr<Board> board_;
  size_t index_;
  bool raised_ = false;
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

std::vector<std::unique_ptr<smddp::Alarm>> Network::ConnectAlarms(const std::vector<int>& ranks) {
  auto board = std::make_shared<SimAlarm::Board>();
  board->network = this;
  board->ranks = ranks;
  board->heard.resize(ranks.size());
  std::vector<std::unique_ptr<smddp::Alarm>> alarms;
  for (size_t i = 0; i < ranks.size(); ++i) alarms.push_back(std::make_unique<SimAlarm>(board, i));
  return alarms;
}

void Network::Break(int rank) { broken_[rank] = 1; }

}  // namespace smddp_sim

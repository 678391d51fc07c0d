#include "network.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>
#include <numeric>

#include "transport/inproc/mpi_part.h"
#include "transport/mpi/mpi_calls.h"
#include "transport/mpi/mpi_group.h"

namespace smddp_sim {
namespace {

using smddp::MpiHandle;
using smddp::MpiPart;
using smddp::PeerGroup;
using smddp::Status;

// One rank's part in one exchange.
struct Side {
  bool started = false, arrived = false, taken = false;
  smddp::MpiPart part;
  std::vector<char> sent;  // what lay there when the exchange started
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
  std::vector<std::shared_ptr<void>> left;  // what is given up may be written to later
};

// The MPI library of one rank, with one communicator.
class SimMpi : public smddp::MpiCalls {
 public:
  SimMpi(std::shared_ptr<Hub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank), size_(static_cast<int>(hub_->ranks.size())) {
    iallgather = [](const void* send, int n, MpiHandle, void* recv, int, MpiHandle, MpiHandle comm,
                    MpiHandle* request) {
      SimMpi* own = Of(comm);
      return own->Start(MpiPart::Allgather(send, n, recv, own->rank_, own->size_), request);
    };
    iallgatherv = [](const void* send, int n, MpiHandle, void* recv, const int* counts,
                     const int* offsets, MpiHandle, MpiHandle comm, MpiHandle* request) {
      SimMpi* own = Of(comm);
      return own->Start(MpiPart::AllgatherV(send, n, recv, counts, offsets, own->rank_, own->size_),
                        request);
    };
    ialltoallv = [](const void* send, const int* counts, const int* offsets, MpiHandle, void* recv,
                    const int* recv_counts, const int* recv_offsets, MpiHandle, MpiHandle comm,
                    MpiHandle* request) {
      SimMpi* own = Of(comm);
      return own->Start(
          MpiPart::AlltoallV(send, counts, offsets, recv, recv_counts, recv_offsets, own->size_),
          request);
    };
    ibcast = [](void* buffer, int n, MpiHandle, int root, MpiHandle comm, MpiHandle* request) {
      SimMpi* own = Of(comm);
      return own->Start(MpiPart::Broadcast(buffer, n, root, own->rank_, own->size_), request);
    };
    test = [](MpiHandle* request, int* flag, void*) {
      return reinterpret_cast<SimMpi*>(*request)->Test(flag);
    };
    comm_rank = [](MpiHandle comm, int* rank) { return *rank = Of(comm)->rank_, 0; };
    comm_size = [](MpiHandle comm, int* size) { return *size = Of(comm)->size_, 0; };
    comm_free_ = [](MpiHandle*) { return 0; };
    error_string_ = [](int error, char* text, int*) {
      std::strncpy(text, error == kLost ? "the simulated network failed" : "misuse", 255);
      return 0;
    };
    in_place_ = MpiPart::InPlace();
  }

  MpiHandle comm() { return reinterpret_cast<MpiHandle>(this); }
  void LeaveBehind(std::shared_ptr<void> what) const override {
    hub_->left.push_back(std::move(what));
  }
  void Report(const std::string& what) const {
    hub_->network->ReportAbuse("rank " + std::to_string(hub_->ranks[rank_]) + " " + what);
  }

 private:
  static constexpr int kLost = 1, kMisused = 2;

  static SimMpi* Of(MpiHandle comm) { return reinterpret_cast<SimMpi*>(comm); }
  Random& random() { return hub_->network->scheduler()->random(); }

  bool Failing() {
    if (!hub_->network->broken(hub_->ranks[rank_])) return false;
    if (!failing_ && random().Chance(0.3)) return false;  // not at the first call
    return failing_ = true;
  }

  int Start(MpiPart part, MpiHandle* request) {
    if (!part.misuse.empty()) Report("misuses " + part.misuse);
    if (Failing()) return kLost;
    std::shared_ptr<Exchange>& exchange = hub_->exchanges[oldest_ + under_way_];
    if (exchange == nullptr) {
      exchange = std::make_shared<Exchange>();
      exchange->sides.resize(size_);
      exchange->eager = random().Chance(0.5);
      exchange->root = part.root;
    }
    for (const Side& side : exchange->sides) {
      if (!side.started || side.part.call == part.call) continue;
      Report("starts " + part.call + " where another rank started " + side.part.call);
      return kMisused;
    }
    Side& own = exchange->sides[rank_];
    own.started = true;
    own.sent.assign(part.send, part.send + part.SendExtent());
    own.part = std::move(part);
    ++under_way_;
    *request = comm();  // the oldest is tested first
    Post(exchange);
    return 0;
  }

  int Test(int* flag) {
    if (Failing()) return kLost;
    for (size_t i = 0; i < under_way_; ++i) {
      Exchange& exchange = *hub_->exchanges[oldest_ + i];
      Side& own = exchange.sides[rank_];
      CheckSent(exchange, own);
      if (own.arrived && !own.taken) Take(hub_->network, &exchange, rank_);
    }
    const Exchange& exchange = *hub_->exchanges[oldest_];
    if (!exchange.sides[rank_].taken || !SentIsFree(exchange)) return 0;
    *flag = 1;
    --under_way_;
    ++oldest_;
    return 0;
  }

  void CheckSent(const Exchange& exchange, const Side& own) const {
    if (exchange.eager || own.sent.empty()) return;
    if (std::memcmp(own.part.send, own.sent.data(), own.sent.size()) == 0) return;
    Report("changes what " + own.part.call + " sends before that is over");
  }

  // Messages whose senders have all come go on their way.
  void Post(const std::shared_ptr<Exchange>& exchange) {
    bool all = true;
    for (const Side& side : exchange->sides) all = all && side.started;
    for (int r = 0; r < size_; ++r) {
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
    if (hub.network->style().writes_at_any_time) Take(hub.network, exchange, r);
  }

  static void Take(Network* network, Exchange* exchange, int r) {
    MpiPart& own = exchange->sides[r].part;
    for (size_t p = 0; p < exchange->sides.size(); ++p) {
      const Side& peer = exchange->sides[p];
      smddp::MpiBlock to = own.from[p];
      if (exchange->root >= 0 && to.bytes == 0) continue;  // that one need not have come
      std::string differs = MpiPart::Differs(peer.part, static_cast<int>(p), own, r);
      if (!differs.empty()) return network->ReportAbuse(differs);
      if (to.bytes == 0) continue;
      std::memmove(own.recv + to.at, peer.sent.data() + peer.part.to[r].at, to.bytes);
    }
    exchange->sides[r].taken = true;
  }

  bool SentIsFree(const Exchange& exchange) const {
    if (exchange.eager || (exchange.root >= 0 && exchange.root != rank_)) return true;
    for (const Side& side : exchange.sides) {
      if (!side.taken) return false;
    }
    return true;
  }

  std::shared_ptr<Hub> hub_;
  int rank_, size_;
  size_t oldest_ = 0, under_way_ = 0;
  bool failing_ = false;
};

// MpiGroup on that library, and whether its caller keeps the rules of PeerGroup.
class SimGroup : public PeerGroup {
 public:
  SimGroup(std::shared_ptr<Hub> hub, int rank)
      : mpi_(std::move(hub), rank), group_(smddp::MakeMpiGroup(&mpi_, mpi_.comm())) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  char* Memory(size_t bytes) override {
    if (under_way_ > 0) mpi_.Report("asks for memory while exchanges are under way");
    bytes_ = std::max(bytes_, bytes);
    char* memory = group_->Memory(bytes);
    memory_ = memory;
    return memory;
  }
  Status StartAllgather(const void* send, size_t bytes, void* recv) override {
    size_t n = static_cast<size_t>(size());
    CheckStart("an allgather", {{send, bytes}, {recv, bytes * n}});
    return Count(group_->StartAllgather(send, bytes, recv));
  }
  Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                         const std::vector<size_t>& offsets) override {
    size_t end = 0;
    for (size_t r = 0; r < bytes.size(); ++r) end = std::max(end, offsets[r] + bytes[r]);
    CheckStart("an allgatherv", {{send, bytes[rank()]}, {recv, end}});
    return Count(group_->StartAllgatherV(send, recv, bytes, offsets));
  }
  Status StartAlltoall(const void* send, size_t bytes, void* recv) override {
    size_t all = bytes * static_cast<size_t>(size());
    CheckStart("an alltoall", {{send, all}, {recv, all}});
    return Count(group_->StartAlltoall(send, bytes, recv));
  }
  Status StartAlltoallV(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                        const std::vector<size_t>& recv_bytes) override {
    CheckStart("an alltoallv", {{send, Sum(send_bytes)}, {recv, Sum(recv_bytes)}});
    return Count(group_->StartAlltoallV(send, send_bytes, recv, recv_bytes));
  }
  Status StartBroadcast(void* buffer, size_t bytes, int root) override {
    CheckStart("a broadcast", {{buffer, bytes}});
    return Count(group_->StartBroadcast(buffer, bytes, root));
  }
  Status Test(bool* done) override {
    Status status = group_->Test(done);
    if (*done && under_way_ > 0) --under_way_;
    return status;
  }

 private:
  struct Area {
    const void* at;
    size_t bytes;
  };

  static size_t Sum(const std::vector<size_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
  }

  void CheckStart(const std::string& what, std::initializer_list<Area> areas) const {
    if (under_way_ == kDepth) mpi_.Report("starts " + what + " while kDepth are under way");
    for (const Area& area : areas) {
      auto* at = static_cast<const char*>(area.at);
      bool inside = at >= memory_ && at + area.bytes <= memory_ + bytes_;
      if (area.bytes > 0 && !inside) mpi_.Report("starts " + what + " outside the group's memory");
    }
  }
  Status Count(Status status) {
    under_way_ += status.ok();
    return status;
  }

  SimMpi mpi_;
  std::unique_ptr<PeerGroup> group_;
  const char* memory_ = nullptr;
  size_t bytes_ = 0, under_way_ = 0;
};

// How messages of failures go over MPI: to the first rank of each other node, unless the network of
// either is gone.
class SimAlarm : public smddp::Alarm {
 public:
  struct Message {
    bool told = false;
    int code = 0;
    std::string text;
  };
  struct Board {
    Network* network;
    std::vector<int> firsts;  // by node
    std::vector<Message> heard;
  };

  SimAlarm(std::shared_ptr<Board> board, size_t node, int rank)
      : board_(std::move(board)), node_(node), rank_(rank) {}

  bool Raise(int code, const std::string& text) override {
    if (raised_) return true;
    raised_ = true;
    if (board_->network->broken(rank_)) return true;
    Scheduler* scheduler = board_->network->scheduler();
    for (size_t other = 0; other < board_->firsts.size(); ++other) {
      if (other == node_) continue;
      double delay = board_->network->style().longest_delay * scheduler->random().Unit();
      scheduler->At(scheduler->now() + delay, [board = board_, other, code, text] {
        Message& heard = board->heard[other];
        if (!heard.told) heard = {true, code, text};
      });
    }
    return true;
  }
  bool Heard(int* code, std::string* text) override {
    const Message& heard = board_->heard[node_];
    const bool listens = rank_ == board_->firsts[node_] && !board_->network->broken(rank_);
    if (!heard.told || !listens) return false;
    *code = heard.code;
    *text = heard.text;
    return true;
  }

 private:
  std::shared_ptr<Board> board_;
  size_t node_;
  int rank_;
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

std::vector<std::unique_ptr<smddp::Alarm>> Network::ConnectAlarms(
    const std::vector<std::vector<int>>& nodes) {
  auto board = std::make_shared<SimAlarm::Board>();
  board->network = this;
  board->heard.resize(nodes.size());
  std::vector<std::unique_ptr<smddp::Alarm>> alarms(broken_.size());
  for (size_t node = 0; node < nodes.size(); ++node) {
    board->firsts.push_back(nodes[node][0]);
    for (int rank : nodes[node]) alarms[rank] = std::make_unique<SimAlarm>(board, node, rank);
  }
  return alarms;
}

void Network::Break(int rank) { broken_[rank] = 1; }

}  // namespace smddp_sim

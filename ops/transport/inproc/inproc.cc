#include "transport/inproc/inproc.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>  // for move

#include "transport/inproc/mpi_part.h"
#include "transport/mpi/mpi_calls.h"
#include "transport/mpi/mpi_group.h"

namespace smddp {
namespace {

// One collective: each rank's part, and how many ranks have received what they need.
struct Exchange {
  std::vector<MpiPart> parts;
  int arrived = 0;
  int taken = 0;
  int left = 0;  // the last to leave erases the exchange
};

// What the ranks share.
struct Hub {
  std::mutex mutex;
  std::map<size_t, Exchange> exchanges;     // by sequence number
  std::vector<std::shared_ptr<void>> left;  // peers may read it after its rank has gone
};

// The MPI library of one rank, with one communicator.
class InprocMpi : public MpiCalls {
 public:
  InprocMpi(std::shared_ptr<Hub> hub, int rank, int size)
      : hub_(std::move(hub)), rank_(rank), size_(size) {
    iallgather = [](const void* send, int n, MpiHandle, void* recv, int, MpiHandle, MpiHandle comm,
                    MpiHandle* request) {
      InprocMpi* own = Of(comm);
      return own->Start(MpiPart::Allgather(send, n, recv, own->rank_, own->size_), request);
    };
    iallgatherv = [](const void* send, int n, MpiHandle, void* recv, const int* counts,
                     const int* offsets, MpiHandle, MpiHandle comm, MpiHandle* request) {
      InprocMpi* own = Of(comm);
      return own->Start(MpiPart::AllgatherV(send, n, recv, counts, offsets, own->rank_, own->size_),
                        request);
    };
    ialltoallv = [](const void* send, const int* counts, const int* offsets, MpiHandle, void* recv,
                    const int* recv_counts, const int* recv_offsets, MpiHandle, MpiHandle comm,
                    MpiHandle* request) {
      InprocMpi* own = Of(comm);
      return own->Start(
          MpiPart::AlltoallV(send, counts, offsets, recv, recv_counts, recv_offsets, own->size_),
          request);
    };
    ibcast = [](void* buffer, int n, MpiHandle, int root, MpiHandle comm, MpiHandle* request) {
      InprocMpi* own = Of(comm);
      return own->Start(MpiPart::Broadcast(buffer, n, root, own->rank_, own->size_), request);
    };
    test = [](MpiHandle* request, int* flag, void*) {
      auto* operation = reinterpret_cast<Operation*>(*request);
      return operation->mpi->Test(operation, flag);
    };
    comm_rank = [](MpiHandle comm, int* rank) { return *rank = Of(comm)->rank_, 0; };
    comm_size = [](MpiHandle comm, int* size) { return *size = Of(comm)->size_, 0; };
    comm_free_ = [](MpiHandle*) { return 0; };
    error_string_ = [](int, char* text, int*) {
      std::strncpy(text, last_error.c_str(), 255);
      return 0;
    };
    in_place_ = MpiPart::InPlace();
  }

  MpiHandle comm() { return reinterpret_cast<MpiHandle>(this); }

  void LeaveBehind(std::shared_ptr<void> what) const override {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    hub_->left.push_back(std::move(what));
  }

 private:
  struct Operation {
    InprocMpi* mpi;
    size_t number;
    bool taken = false;
  };

  static InprocMpi* Of(MpiHandle comm) { return reinterpret_cast<InprocMpi*>(comm); }

  static int Fail(const std::string& why) {
    last_error = why;
    return 1;
  }

  int Start(MpiPart part, MpiHandle* request) {
    if (!part.misuse.empty()) return Fail(part.misuse);
    std::lock_guard<std::mutex> lock(hub_->mutex);
    Exchange& exchange = hub_->exchanges[started_];
    exchange.parts.resize(size_);
    exchange.parts[rank_] = std::move(part);
    ++exchange.arrived;
    operations_.push_back({this, started_++});
    *request = reinterpret_cast<MpiHandle>(&operations_.back());
    return 0;
  }

  int Test(Operation* operation, int* flag) {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    Exchange& exchange = hub_->exchanges[operation->number];
    if (exchange.arrived == size_ && !operation->taken) {
      std::string problem = Take(exchange);
      if (!problem.empty()) return Fail(problem);
      operation->taken = true;
      ++exchange.taken;
    }
    // Send buffers must not change until all peers have read them.
    *flag = exchange.taken == size_;
    if (*flag == 0) return 0;
    if (++exchange.left == size_) hub_->exchanges.erase(operation->number);
    operations_.pop_front();  // they end in order, since MpiGroup tests the oldest
    return 0;
  }

  std::string Take(const Exchange& exchange) const {
    const MpiPart& own = exchange.parts[rank_];
    for (int r = 0; r < size_; ++r) {
      const MpiPart& peer = exchange.parts[r];
      std::string differs = MpiPart::Differs(peer, r, own, rank_);
      if (!differs.empty()) return differs;
      MpiBlock to = own.from[r];
      if (to.bytes > 0) std::memmove(own.recv + to.at, peer.send + peer.to[rank_].at, to.bytes);
    }
    return "";
  }

  static thread_local std::string last_error;
  std::shared_ptr<Hub> hub_;
  int rank_, size_;
  size_t started_ = 0;
  std::deque<Operation> operations_;
};

thread_local std::string InprocMpi::last_error;

// MpiGroup, with the library that it calls.
class InprocGroup : public PeerGroup {
 public:
  InprocGroup(std::shared_ptr<Hub> hub, int rank, int size, size_t limit)
      : mpi_(std::move(hub), rank, size), group_(MakeMpiGroup(&mpi_, mpi_.comm(), limit)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  char* Memory(size_t bytes) override { return group_->Memory(bytes); }
  Status StartAllgather(const void* send, size_t bytes, void* recv) override {
    return group_->StartAllgather(send, bytes, recv);
  }
  Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                         const std::vector<size_t>& offsets) override {
    return group_->StartAllgatherV(send, recv, bytes, offsets);
  }
  Status StartAlltoall(const void* send, size_t bytes, void* recv) override {
    return group_->StartAlltoall(send, bytes, recv);
  }
  Status StartAlltoallV(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                        const std::vector<size_t>& recv_bytes) override {
    return group_->StartAlltoallV(send, send_bytes, recv, recv_bytes);
  }
  Status StartBroadcast(void* buffer, size_t bytes, int root) override {
    return group_->StartBroadcast(buffer, bytes, root);
  }
  Status Test(bool* done) override { return group_->Test(done); }

 private:
  InprocMpi mpi_;
  std::unique_ptr<PeerGroup> group_;
};

}  // namespace

std::vector<std::unique_ptr<PeerGroup>> MakeInprocGroups(int size, size_t limit) {
  auto hub = std::make_shared<Hub>();
  std::vector<std::unique_ptr<PeerGroup>> groups;
  for (int r = 0; r < size; ++r) {
    groups.push_back(std::make_unique<InprocGroup>(hub, r, size, limit));
  }
  return groups;
}

}  // namespace smddp

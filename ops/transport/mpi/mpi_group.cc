#include "transport/mpi/mpi_group.h"

#include <deque>
#include <mutex>
#include <numeric>  // for accumulate
#include <string>
#include <utility>  // for move

#include "transport/mpi/idle_waits.h"

namespace smddp {
namespace {

// Where an empty buffer lies for MPI. Open MPI takes equal addresses in its non-blocking
// collectives for MPI_IN_PLACE, even if one of the buffers is empty: it would then send what it
// should receive.
char nothing;

// Gives an empty buffer an address of its own. Buffers that both have bytes may not lie in one
// place.
Status KeepApart(const void** send, size_t sent, void** recv, size_t received) {
  if (sent == 0) *send = &nothing;
  if (received == 0 && sent > 0) *recv = &nothing;
  if (*send != *recv) return {};
  return {Code::kSystem, "an exchange would receive " + std::to_string(received) +
                             " bytes where the " + std::to_string(sent) +
                             " bytes lie that it sends; this is a bug of smddp_tf"};
}

// An operation in flight. MPI uses the count arrays until it has finished.
struct Exchange {
  MpiHandle request = 0;
  std::vector<int> counts, offsets, recv_counts, recv_offsets;
};

// Everything of a destroyed group that MPI may still use.
struct LeftBehind {
  LeftBehind(std::shared_ptr<char[]> m, std::deque<Exchange> e)
      : memory(std::move(m)), exchanges(std::move(e)) {}
  std::shared_ptr<char[]> memory;
  std::deque<Exchange> exchanges;
};

class MpiGroup : public PeerGroup {
 public:
  MpiGroup(const MpiCalls* mpi, MpiHandle comm, size_t limit)
      : mpi_(mpi), comm_(comm), limit_(limit) {
    mpi_->comm_rank(comm_, &rank_);
    mpi_->comm_size(comm_, &size_);
  }
  ~MpiGroup() override {
    if (exchanges_.empty()) {
      mpi_->Free(comm_);
    } else {
      // The communicator is leaked, too.
      mpi_->LeaveBehind(std::make_shared<LeftBehind>(memory(), std::move(exchanges_)));
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status StartAllgather(const void* send, size_t bytes, void* recv) override {
    Status fits = Fits(bytes, "an allgather");
    if (!fits.ok()) return fits;
    int n = static_cast<int>(bytes);
    bool in_place = bytes == 0 || send == static_cast<char*>(recv) + rank_ * bytes;
    if (!in_place) fits = KeepApart(&send, bytes, &recv, bytes * static_cast<size_t>(size_));
    if (!fits.ok()) return fits;
    return Start({}, "MPI_Iallgather", [&](Exchange* exchange) {
      return mpi_->iallgather(in_place ? mpi_->in_place() : send, n, Byte(), recv, n, Byte(), comm_,
                              &exchange->request);
    });
  }

  Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                         const std::vector<size_t>& offsets) override {
    Status fits = Fits(offsets.back() + bytes.back(), "an allgather");
    if (!fits.ok()) return fits;
    bool in_place = bytes[rank_] == 0 || send == static_cast<char*>(recv) + offsets[rank_];
    if (!in_place) fits = KeepApart(&send, bytes[rank_], &recv, offsets.back() + bytes.back());
    if (!fits.ok()) return fits;
    Exchange exchange;
    exchange.counts.assign(bytes.begin(), bytes.end());
    exchange.offsets.assign(offsets.begin(), offsets.end());
    return Start(std::move(exchange), "MPI_Iallgatherv", [&](Exchange* own) {
      return mpi_->iallgatherv(in_place ? mpi_->in_place() : send, own->counts[rank_], Byte(), recv,
                               own->counts.data(), own->offsets.data(), Byte(), comm_,
                               &own->request);
    });
  }

  Status StartAlltoall(const void* send, size_t bytes, void* recv) override {
    size_t all = bytes * static_cast<size_t>(size_);
    Status fits = Fits(all, "an exchange");
    if (fits.ok()) fits = KeepApart(&send, all, &recv, all);
    if (!fits.ok()) return fits;
    Exchange exchange;
    exchange.counts.assign(size_, static_cast<int>(bytes));
    exchange.counts[rank_] = 0;
    for (int r = 0; r < size_; ++r) exchange.offsets.push_back(static_cast<int>(r * bytes));
    return Start(std::move(exchange), "MPI_Ialltoallv", [&](Exchange* own) {
      return mpi_->ialltoallv(send, own->counts.data(), own->offsets.data(), Byte(), recv,
                              own->counts.data(), own->offsets.data(), Byte(), comm_,
                              &own->request);
    });
  }

  Status StartAlltoallV(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                        const std::vector<size_t>& recv_bytes) override {
    Exchange exchange;
    Status fits = Layout(send_bytes, &exchange.counts, &exchange.offsets);
    if (fits.ok()) fits = Layout(recv_bytes, &exchange.recv_counts, &exchange.recv_offsets);
    if (fits.ok()) fits = KeepApart(&send, Sum(send_bytes), &recv, Sum(recv_bytes));
    if (!fits.ok()) return fits;
    return Start(std::move(exchange), "MPI_Ialltoallv", [&](Exchange* own) {
      return mpi_->ialltoallv(send, own->counts.data(), own->offsets.data(), Byte(), recv,
                              own->recv_counts.data(), own->recv_offsets.data(), Byte(), comm_,
                              &own->request);
    });
  }

  Status StartBroadcast(void* buffer, size_t bytes, int root) override {
    Status fits = Fits(bytes, "a broadcast");
    if (!fits.ok()) return fits;
    int n = static_cast<int>(bytes);
    return Start({}, "MPI_Ibcast", [&](Exchange* exchange) {
      return mpi_->ibcast(buffer, n, Byte(), root, comm_, &exchange->request);
    });
  }

  Status Test(bool* done) override {
    std::lock_guard<std::mutex> lock(mpi_->mutex());
    IdleWaits none(IdleWaits::kLookOnly);
    *done = exchanges_.empty();
    if (*done) return {};
    int flag = 0;
    // MPI_Status has 20 bytes in MPICH and 24 in Open MPI; it is never read.
    alignas(8) char status[64];
    Status tested =
        mpi_->CheckError(mpi_->test(&exchanges_.front().request, &flag, status), "MPI_Test");
    *done = flag != 0;
    if (*done) exchanges_.pop_front();
    return tested;
  }

 private:
  // The algorithms split larger payloads (ChannelResources::piece_bytes, chunks).
  Status Fits(size_t bytes, const char* what) const {
    if (bytes <= limit_) return {};
    return {Code::kSystem, std::string(what) + " of " + std::to_string(bytes) +
                               " bytes at once is over MPI's limit of " + std::to_string(limit_) +
                               "; lower SMDDP_CHUNK_BYTES"};
  }

  MpiHandle Byte() const { return mpi_->byte_type(); }

  // call(exchange) calls the MPI function; `exchange` must not move until the operation has
  // finished.
  template <typename Call>
  Status Start(Exchange exchange, const char* what, Call&& call) {
    std::lock_guard<std::mutex> lock(mpi_->mutex());
    IdleWaits none(IdleWaits::kLookOnly);
    exchanges_.push_back(std::move(exchange));
    Status status = mpi_->CheckError(call(&exchanges_.back()), what);
    if (!status.ok()) exchanges_.pop_back();
    return status;
  }

  static size_t Sum(const std::vector<size_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
  }

  Status Layout(const std::vector<size_t>& bytes, std::vector<int>* counts,
                std::vector<int>* offsets) const {
    size_t total = 0;
    for (size_t n : bytes) {
      Status fits = Fits(total + n, "an alltoall");
      if (!fits.ok()) return fits;
      counts->push_back(static_cast<int>(n));
      offsets->push_back(static_cast<int>(total));
      total += n;
    }
    return {};
  }

  const MpiCalls* mpi_;
  MpiHandle comm_;
  size_t limit_;
  int rank_ = 0, size_ = 1;
  std::deque<Exchange> exchanges_;  // in flight, the oldest first
};

}  // namespace

std::unique_ptr<PeerGroup> MakeMpiGroup(const MpiCalls* mpi, MpiHandle comm, size_t limit) {
  return std::make_unique<MpiGroup>(mpi, comm, limit);
}

}  // namespace smddp

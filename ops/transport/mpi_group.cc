#include "transport/mpi_group.h"

#include <algorithm>
#include <climits>
#include <mutex>
#include <string>

namespace smddp {
namespace {

// MPI counts in int. Larger payloads are cut by the algorithms (chunks), except those of WorldMove.
Status FitsInt(size_t bytes, const char* what) {
  if (bytes <= INT_MAX) return {};
  return {Code::kUsage, std::string(what) + " of " + std::to_string(bytes) +
                            " bytes between nodes is over MPI's limit of 2147483647; split it"};
}

class MpiGroup : public PeerGroup {
 public:
  MpiGroup(const MpiLibrary* mpi, MpiHandle comm) : mpi_(mpi), comm_(comm) {
    mpi_->comm_rank(comm_, &rank_);
    mpi_->comm_size(comm_, &size_);
  }
  ~MpiGroup() override { mpi_->Free(comm_); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status StartAllgather(const void* send, size_t bytes, void* recv) override {
    Status fits = FitsInt(bytes, "an allgather");
    if (!fits.ok()) return fits;
    std::lock_guard<std::mutex> lock(mpi_->mutex());
    int n = static_cast<int>(bytes);
    return mpi_->CheckError(mpi_->iallgather(send, n, Byte(), recv, n, Byte(), comm_, &request_),
                            "MPI_Iallgather");
  }

  Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                         const std::vector<size_t>& offsets) override {
    counts_.assign(bytes.begin(), bytes.end());
    offsets_.assign(offsets.begin(), offsets.end());
    Status fits = FitsInt(offsets.back() + bytes.back(), "an allgather");
    if (!fits.ok()) return fits;
    std::lock_guard<std::mutex> lock(mpi_->mutex());
    return mpi_->CheckError(mpi_->iallgatherv(send, counts_[rank_], Byte(), recv, counts_.data(),
                                              offsets_.data(), Byte(), comm_, &request_),
                            "MPI_Iallgatherv");
  }

  Status StartAlltoall(const void* send, size_t bytes, void* recv) override {
    Status fits = FitsInt(bytes, "an exchange");
    if (!fits.ok()) return fits;
    std::lock_guard<std::mutex> lock(mpi_->mutex());
    int n = static_cast<int>(bytes);
    return mpi_->CheckError(mpi_->ialltoall(send, n, Byte(), recv, n, Byte(), comm_, &request_),
                            "MPI_Ialltoall");
  }

  Status StartAlltoallV(const void* send, const std::vector<size_t>& bytes, void* recv) override {
    size_t n = static_cast<size_t>(size_), send_total = 0, recv_total = 0;
    for (auto* list : {&counts_, &offsets_, &recv_counts_, &recv_offsets_}) list->resize(n);
    for (size_t p = 0; p < n; ++p) {
      size_t to = bytes[rank_ * n + p], from = bytes[p * n + rank_];
      Status fits = FitsInt(std::max(send_total + to, recv_total + from), "an alltoall");
      if (!fits.ok()) return fits;
      counts_[p] = static_cast<int>(to);
      offsets_[p] = static_cast<int>(send_total);
      recv_counts_[p] = static_cast<int>(from);
      recv_offsets_[p] = static_cast<int>(recv_total);
      send_total += to;
      recv_total += from;
    }
    std::lock_guard<std::mutex> lock(mpi_->mutex());
    return mpi_->CheckError(
        mpi_->ialltoallv(send, counts_.data(), offsets_.data(), Byte(), recv, recv_counts_.data(),
                         recv_offsets_.data(), Byte(), comm_, &request_),
        "MPI_Ialltoallv");
  }

  Status StartBroadcast(void* buffer, size_t bytes, int root) override {
    Status fits = FitsInt(bytes, "a broadcast");
    if (!fits.ok()) return fits;
    std::lock_guard<std::mutex> lock(mpi_->mutex());
    return mpi_->CheckError(
        mpi_->ibcast(buffer, static_cast<int>(bytes), Byte(), root, comm_, &request_),
        "MPI_Ibcast");
  }

  Status Test(bool* done) override {
    std::lock_guard<std::mutex> lock(mpi_->mutex());
    int flag = 0;
    // MPI_Status has 20 bytes in MPICH and 24 in Open MPI; nothing reads it.
    alignas(8) char status[64];
    Status tested = mpi_->CheckError(mpi_->test(&request_, &flag, status), "MPI_Test");
    *done = flag != 0;
    return tested;
  }

 private:
  MpiHandle Byte() const { return mpi_->byte_type(); }

  const MpiLibrary* mpi_;
  MpiHandle comm_;
  MpiHandle request_ = 0;
  int rank_ = 0, size_ = 1;
  std::vector<int> counts_, offsets_, recv_counts_, recv_offsets_;  // live until Test says done
};

}  // namespace

std::unique_ptr<PeerGroup> MakeMpiGroup(const MpiLibrary* mpi, MpiHandle comm) {
  return std::make_unique<MpiGroup>(mpi, comm);
}

}  // namespace smddp

// Counts what a rank exchanges through a group.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "transport/peer_group.h"

namespace smddp_test {

class CountedGroup : public smddp::PeerGroup {
 public:
  using Status = smddp::Status;
  explicit CountedGroup(std::unique_ptr<PeerGroup> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  char* Memory(size_t bytes) override { return group_->Memory(bytes); }
  Status StartAllgather(const void* send, size_t bytes, void* recv) override {
    messages += static_cast<size_t>(size()) - 1;
    this->bytes += bytes * (static_cast<size_t>(size()) - 1);
    return Count(group_->StartAllgather(send, bytes, recv));
  }
  Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                         const std::vector<size_t>& offsets) override {
    return Count(group_->StartAllgatherV(send, recv, bytes, offsets));
  }
  Status StartAlltoall(const void* send, size_t bytes, void* recv) override {
    this->bytes += bytes * (static_cast<size_t>(size()) - 1);
    if (before_alltoall) before_alltoall();
    return Count(group_->StartAlltoall(send, bytes, recv));
  }
  Status StartAlltoallV(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                        const std::vector<size_t>& recv_bytes) override {
    sent.push_back(send_bytes);
    if (before_alltoall) before_alltoall();
    for (size_t bytes : send_bytes) messages += bytes > 0;
    return Count(group_->StartAlltoallV(send, send_bytes, recv, recv_bytes));
  }
  Status StartBroadcast(void* buffer, size_t bytes, int root) override {
    return Count(group_->StartBroadcast(buffer, bytes, root));
  }
  Status Test(bool* done) override {
    Status status = group_->Test(done);
    if (*done && in_flight > 0) --in_flight;
    return status;
  }
  size_t started = 0, in_flight = 0, most = 0;
  // Of allgathers, in which each rank sends to each other as Open MPI's do, and of uneven
  // alltoalls.
  size_t messages = 0;
  size_t bytes = 0;                       // sent by allgathers and alltoalls of equal parts
  std::function<void()> before_alltoall;  // may be null
  std::vector<std::vector<size_t>> sent;  // of each uneven alltoall: the bytes for each rank

 private:
  Status Count(Status status) {
    ++started;
    most = std::max(most, ++in_flight);
    return status;
  }
  std::unique_ptr<PeerGroup> group_;
};

}  // namespace smddp_test

#include "transport/inproc/inproc.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>  // for move

namespace smddp {
namespace {

// One rank's contribution to an exchange.
struct Offer {
  std::shared_ptr<char[]> memory;  // keeps it alive if the rank is gone before its peers have read
  const char* bytes = nullptr;
  std::vector<size_t> parts;  // of an alltoall with uneven parts
};

// One exchange: each rank's offer, and how many ranks have read what they need.
struct Exchange {
  std::vector<Offer> offers;
  int arrived = 0;
  int taken = 0;
  int left = 0;  // the last to leave erases the exchange
};

struct Hub {
  std::mutex mutex;
  std::map<size_t, Exchange> exchanges;  // by sequence number
};

using Take = std::function<void(const std::vector<Offer>&)>;

class InprocGroup : public PeerGroup {
 public:
  InprocGroup(std::shared_ptr<Hub> hub, int rank, int size, size_t limit)
      : hub_(std::move(hub)), rank_(rank), size_(size), limit_(limit) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status StartAllgather(const void* send, size_t bytes, void* recv) override {
    return Start(send, bytes, [=](const std::vector<Offer>& offers) {
      for (int r = 0; r < size_; ++r) Copy(recv, r * bytes, offers[r].bytes, bytes);
    });
  }
  Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                         const std::vector<size_t>& offsets) override {
    return Start(send, Sum(bytes), [=](const std::vector<Offer>& offers) {
      for (int r = 0; r < size_; ++r) Copy(recv, offsets[r], offers[r].bytes, bytes[r]);
    });
  }
  Status StartAlltoall(const void* send, size_t bytes, void* recv) override {
    return Start(send, bytes, [=](const std::vector<Offer>& offers) {
      for (int r = 0; r < size_; ++r) {
        if (r != rank_) Copy(recv, r * bytes, offers[r].bytes + rank_ * bytes, bytes);
      }
    });
  }
  Status StartAlltoallV(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                        const std::vector<size_t>& recv_bytes) override {
    auto take = [=](const std::vector<Offer>& offers) {
      size_t to = 0;
      for (int r = 0; r < size_; ++r) {
        const auto& parts = offers[r].parts;
        size_t from = std::accumulate(parts.begin(), parts.begin() + rank_, size_t{0});
        Copy(recv, to, offers[r].bytes + from, recv_bytes[r]);
        to += recv_bytes[r];
      }
    };
    return Start(send, std::max(Sum(send_bytes), Sum(recv_bytes)), take, send_bytes);
  }
  Status StartBroadcast(void* buffer, size_t bytes, int root) override {
    return Start(buffer, bytes, [=](const std::vector<Offer>& offers) {
      if (rank_ != root) Copy(buffer, 0, offers[root].bytes, bytes);
    });
  }

  Status Test(bool* done) override {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    *done = pending_.empty();
    if (*done) return {};
    Exchange& exchange = hub_->exchanges[oldest_];
    Take& take = pending_.front();
    if (exchange.arrived == size_ && take != nullptr) {
      take(exchange.offers);
      take = nullptr;
      ++exchange.taken;
    }
    // Send buffers must not change until all peers have read them.
    *done = exchange.taken == size_;
    if (*done) {
      if (++exchange.left == size_) hub_->exchanges.erase(oldest_);
      pending_.pop_front();
      ++oldest_;
    }
    return {};
  }

 private:
  Status Start(const void* send, size_t bytes, Take take, std::vector<size_t> parts = {}) {
    if (bytes > limit_) {
      return {Code::kSystem, std::to_string(bytes) + " bytes at once are over the limit of " +
                                 std::to_string(limit_)};
    }
    std::lock_guard<std::mutex> lock(hub_->mutex);
    Exchange& exchange = hub_->exchanges[oldest_ + pending_.size()];
    exchange.offers.resize(size_);
    exchange.offers[rank_] = {memory(), static_cast<const char*>(send), std::move(parts)};
    ++exchange.arrived;
    pending_.push_back(std::move(take));
    return {};
  }

  static size_t Sum(const std::vector<size_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
  }

  static void Copy(void* to, size_t offset, const char* from, size_t bytes) {
    char* at = static_cast<char*>(to) + offset;
    if (bytes > 0 && at != from) std::memmove(at, from, bytes);
  }

  std::shared_ptr<Hub> hub_;
  int rank_, size_;
  size_t limit_;
  size_t oldest_ = 0;         // sequence number of pending_.front()
  std::deque<Take> pending_;  // null: this rank has read, but not all others have
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

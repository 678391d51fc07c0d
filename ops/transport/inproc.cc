#include "transport/inproc.h"

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>

namespace smddp {
namespace {

// One exchange: what each rank offered, and how many have taken what they need.
struct Exchange {
  std::vector<const char*> sends;
  int arrived = 0;
  int taken = 0;
  int left = 0;  // the last to leave erases the exchange
};

struct Hub {
  std::mutex mutex;
  std::map<size_t, Exchange> exchanges;  // by sequence number
};

class InprocGroup : public PeerGroup {
 public:
  InprocGroup(std::shared_ptr<Hub> hub, int rank, int size)
      : hub_(std::move(hub)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status StartAllgather(const void* send, size_t bytes, void* recv) override {
    return Start(send, [=](const std::vector<const char*>& sends) {
      for (int r = 0; r < size_; ++r) Copy(recv, r * bytes, sends[r], bytes);
    });
  }
  Status StartAllgatherV(const void* send, void* recv, const std::vector<size_t>& bytes,
                         const std::vector<size_t>& offsets) override {
    return Start(send, [=](const std::vector<const char*>& sends) {
      for (int r = 0; r < size_; ++r) Copy(recv, offsets[r], sends[r], bytes[r]);
    });
  }
  Status StartAlltoall(const void* send, size_t bytes, void* recv) override {
    return Start(send, [=](const std::vector<const char*>& sends) {
      for (int r = 0; r < size_; ++r) Copy(recv, r * bytes, sends[r] + rank_ * bytes, bytes);
    });
  }
  Status StartAlltoallV(const void* send, const std::vector<size_t>& bytes, void* recv) override {
    return Start(send, [=](const std::vector<const char*>& sends) {
      size_t to = 0;
      for (int r = 0; r < size_; ++r) {
        const size_t* row = bytes.data() + r * size_;
        size_t from = std::accumulate(row, row + rank_, size_t{0});
        Copy(recv, to, sends[r] + from, row[rank_]);
        to += row[rank_];
      }
    });
  }
  Status StartBroadcast(void* buffer, size_t bytes, int root) override {
    return Start(buffer, [=](const std::vector<const char*>& sends) {
      if (rank_ != root) Copy(buffer, 0, sends[root], bytes);
    });
  }

  Status Test(bool* done) override {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    Exchange& exchange = hub_->exchanges[sequence_];
    if (exchange.arrived == size_ && !taken_) {
      take_(exchange.sends);
      taken_ = true;
      ++exchange.taken;
    }
    // Send buffers must stay as they are until everybody has read them.
    *done = exchange.taken == size_;
    if (*done) {
      if (++exchange.left == size_) hub_->exchanges.erase(sequence_);
      ++sequence_;
    }
    return {};
  }

 private:
  using Take = std::function<void(const std::vector<const char*>&)>;

  Status Start(const void* send, Take take) {
    std::lock_guard<std::mutex> lock(hub_->mutex);
    Exchange& exchange = hub_->exchanges[sequence_];
    exchange.sends.resize(size_);
    exchange.sends[rank_] = static_cast<const char*>(send);
    ++exchange.arrived;
    take_ = std::move(take);
    taken_ = false;
    return {};
  }

  static void Copy(void* to, size_t offset, const char* from, size_t bytes) {
    char* at = static_cast<char*>(to) + offset;
    if (bytes > 0 && at != from) std::memmove(at, from, bytes);
  }

  std::shared_ptr<Hub> hub_;
  int rank_, size_;
  size_t sequence_ = 0;
  Take take_;
  bool taken_ = false;
};

}  // namespace

std::vector<std::unique_ptr<PeerGroup>> MakeInprocGroups(int size) {
  auto hub = std::make_shared<Hub>();
  std::vector<std::unique_ptr<PeerGroup>> groups;
  for (int r = 0; r < size; ++r) groups.push_back(std::make_unique<InprocGroup>(hub, r, size));
  return groups;
}

}  // namespace smddp

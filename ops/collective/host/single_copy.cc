#include "collective/host/single_copy.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "collective/host/exchange.h"
#include "collective/host/move.h"
#include "core/log.h"
#include "kernels/cpu/copy.h"
#include "transport/shm/peer_memory.h"

namespace smddp {

namespace {

// The contents of a slot. A joined rank leaves it zeroed: pid 0 stands for a rank that contributes
// zeros.
struct Table {
  int64_t pid;
  uint64_t inputs[];  // addresses of the parts, by target
};

constexpr uint64_t kRefused = 2;  // SlotHeader::verdict: this rank could not read a peer's memory

// Warns once: a refusal costs performance only.
void TellOfRefusal(const std::string& what) {
  static std::atomic<bool> told{false};
  std::string text = what + "; the ranks copy through the memory that they share instead";
  if (told.exchange(true)) {
    LogDebug(text);
  } else {
    LogWarning(text);
  }
}

}  // namespace

class SingleCopyMove::Reading : public Pipeline {
 public:
  Reading(ChannelResources* resources, const Request* request)
      : Pipeline(resources, request, 1, true),
        inputs_(request->PartInputs(topo_.rank, topo_.size)),
        outputs_(request->PartOutputs(topo_.rank, topo_.size)),
        large_(request->moved_bytes() >= kPastCachesBytes) {
    LendMemory();
  }
  // Valid once done: some rank could not read.
  bool refused() const { return refused_; }

 protected:
  void Stage(size_t) override;
  bool Combine(size_t) override;
  bool Conclude(bool* moved) override;

 private:
  Status ReadPart(const Table& source, int rank);
  bool AnyGaveUp() const;
  std::vector<const char*> inputs_;  // by target
  std::vector<char*> outputs_;       // by source
  bool large_;
  bool refused_ = false;
};

std::string SingleCopyMove::Cannot(const ChannelResources& resources, const Request&) {
  if (resources.topology->num_nodes > 1) return "works inside one node only";
  if (!resources.reads_peers) return "the ranks cannot read each other's memory";
  bool fits =
      sizeof(Table) + sizeof(uint64_t) * resources.topology->size <= resources.shm->chunk_bytes();
  return fits ? "" : "there are too many ranks";
}

void SingleCopyMove::Reading::Stage(size_t i) {
  Table* own = reinterpret_cast<Table*>(Slot(shm_->rank(), i));
  own->pid = ::getpid();
  for (int r = 0; r < topo_.size; ++r) own->inputs[r] = reinterpret_cast<uintptr_t>(inputs_[r]);
}

bool SingleCopyMove::Reading::Combine(size_t i) {
  // On one node, so the ranks of the set are the local ranks, in the same order.
  auto table = [&](int rank) -> const Table& { return *reinterpret_cast<Table*>(Slot(rank, i)); };
  Status read;
  // Every rank starts with itself and goes on with the next one, so they read different peers.
  for (int step = 0; step < topo_.size && read.ok(); ++step) {
    int rank = (topo_.rank + step) % topo_.size;
    read = ReadPart(table(rank), rank);
  }
  // The engine reports that a peer is gone, since it knows how it ended. A peer that has given up
  // reuses its memory, so data read from it is not valid.
  if (read.code() == Code::kRemote || AnyGaveUp()) return false;
  if (!read.ok()) {
    TellOfRefusal(request_->Title() + ": " + read.message());
    Header(shm_->rank()).verdict = kRefused;
  }
  return true;
}

bool SingleCopyMove::Reading::AnyGaveUp() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // what was read was read before; see Fail()
  for (int p = 0; p < shm_->size(); ++p) {
    if (shm_->channel_cell(p, resources_->index).given_up.load(std::memory_order_acquire) != 0)
      return true;
  }
  return false;
}

// All verdicts are final now: a header is not overwritten before this rank's next operation.
bool SingleCopyMove::Reading::Conclude(bool*) {
  for (int p = 0; p < shm_->size(); ++p) refused_ |= Header(p).verdict == kRefused;
  return true;
}

// Reads the part that `rank` has for this rank: of an allgather its whole input, of an alltoall one
// part of it.
Status SingleCopyMove::Reading::ReadPart(const Table& source, int rank) {
  const size_t bytes = request_->PartBytes(rank, topo_.rank, topo_.size);
  char* out = outputs_[rank];
  if (bytes == 0) return {};
  if (source.pid == 0) {
    std::memset(out, 0, bytes);
    return {};
  }
  if (rank != topo_.rank) {
    return ReadPeer(static_cast<int>(source.pid), {{out, source.inputs[topo_.rank], bytes}});
  }
  if (out != inputs_[rank]) CopyBytes(out, inputs_[rank], bytes, large_);
  return {};
}

SingleCopyMove::SingleCopyMove(ChannelResources* resources, const Request* request)
    : resources_(resources),
      request_(request),
      reading_(std::make_unique<Reading>(resources, request)) {}

SingleCopyMove::~SingleCopyMove() = default;

Progress SingleCopyMove::Advance() {
  if (through_slots_ != nullptr) return through_slots_->Advance();
  Progress progress = reading_->Advance();
  if (progress != Progress::kDone || !reading_->status().ok() || !reading_->refused()) {
    return progress;
  }
  if (request_->kind == Kind::kAlltoall) {
    through_slots_ = std::make_unique<ShmAlltoall>(resources_, request_);
  } else {
    through_slots_ = std::make_unique<ShmAllgather>(resources_, request_);
  }
  progress = through_slots_->Advance();
  return progress == Progress::kDone ? progress : Progress::kSome;
}

const Status& SingleCopyMove::status() const {
  return through_slots_ != nullptr ? through_slots_->status() : reading_->status();
}

double SingleCopyMove::met_at() const { return reading_->met_at(); }

std::vector<int> SingleCopyMove::Missing() const {
  return through_slots_ != nullptr ? through_slots_->Missing() : reading_->Missing();
}

}  // namespace smddp

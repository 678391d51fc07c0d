// Two-hop allreduce inside a node, whose results return in the slots that the inputs came in.
//
// Chunks and shares are ShmAllreduce's, and so is the work of a rank, but the owner of a share
// writes the result into each peer's slot, over what that peer staged, and a rank unpacks from its
// own slot. So the two ranks that use a line of a slot take turns in reading and overwriting it,
// and with each turn the line moves to the other's cache as a whole. Where the result lies in the
// owner's slot, the writer of every line must take it back from all caches that have read it, twice
// a chunk: that alone takes several times as long as the copies.
//
// With n ranks and B bytes, an owner writes n - 1 results of B / n bytes instead of one.
#include <cstring>

#include "collective/host/allreduce.h"

namespace smddp {

TwoRankAllreduce::TwoRankAllreduce(ChannelResources* resources, const Request* request)
    : ShmAllreduce(resources, request) {
  // Past the cache the lines would not move, but come from memory.
  ChooseNoStaging();
}

char* TwoRankAllreduce::Place(int local_rank, size_t i, int owner) const {
  return Slot(local_rank, i) + (Share(i, owner).begin - ChunkBegin(i)) * element_;
}

bool TwoRankAllreduce::Combine(size_t i) {
  ReduceFn reduce = FindReduce(request_->dtype, plan_.combine, ReduceStage::kFull);
  ReduceArgs base;
  base.scale = plan_.scale;
  base.divisor = plan_.divisor;
  int self = shm_->rank(), first_peer = self == 0 ? 1 : 0;
  ReduceOwnShare(i, reduce, base, [&](ReduceArgs* args, char* tensor_out, size_t first) {
    args->out = tensor_out;
    args->copy = Place(first_peer, i, self) + first * element_;
  });
  // The result is in the cache, as are the lines that it goes to.
  Range share = Share(i, self);
  for (int p = first_peer + 1; p < shm_->size(); ++p) {
    if (p == self) continue;
    spans_.ForEach(share, [&](const char*, char* out, size_t first, size_t n) {
      std::memcpy(Place(p, i, self) + first * element_, out, n * element_);
    });
  }
  return true;
}

void TwoRankAllreduce::Unpack(size_t i, int owner) {
  const char* from = Place(shm_->rank(), i, owner);
  spans_.ForEach(Share(i, owner), [&](const char*, char* out, size_t first, size_t n) {
    std::memcpy(out, from + first * element_, n * element_);
  });
}

}  // namespace smddp

// Two-hop allreduce inside a node, without a fusion buffer.
//
// Every chunk is divided into one share per owner (all ranks of the node, if nodes are of equal
// size). With n ranks and B bytes, a rank
//   stages    the (n - 1) / n of B that others own, directly from its tensors,
//   combines  its own share: its tensor and the n - 1 staged copies, in rank order, written to its
//             tensor and to its slot in one pass,
//   unpacks   the other shares' results from the owners' slots into its tensors.
// Chunks fit the cache, so each gradient is read from memory once and written once; all other
// traffic hits the cache, unless the readers are far from it (collective/staging.h). A share has
// the same offset in every slot, and its owner publishes the result there, so a slot needs no
// second buffer.
#include <cstring>

#include "collective/host/allreduce.h"

namespace smddp {
namespace {

constexpr size_t kCacheLine = 64;

}  // namespace

ShmAllreduce::ShmAllreduce(ChannelResources* resources, const Request* request)
    : Pipeline(
          resources, request,
          ChunksOf(request->count(), resources->shm->chunk_bytes() / Info(request->dtype).size),
          false),
      spans_(request->Spans()),
      plan_(*request, topo_.size),
      element_(Info(request->dtype).size),
      chunk_elements_(resources->shm->chunk_bytes() / element_) {}

Range ShmAllreduce::Share(size_t i, int owner) const {
  size_t begin = ChunkBegin(i), end = std::min(begin + chunk_elements_, spans_.count());
  if (owner >= topo_.owners || begin >= end) return {begin, begin};
  Range part = PartOf(end - begin, topo_.owners, owner, kCacheLine / element_);
  return {begin + part.begin, begin + part.end};
}

void ShmAllreduce::Stage(size_t i) {
  char* slot = Slot(shm_->rank(), i);
  for (int owner = 0; owner < topo_.owners; ++owner) {
    if (owner == shm_->rank()) continue;
    Range share = Share(i, owner);
    char* at = slot + (share.begin - ChunkBegin(i)) * element_;
    spans_.ForEach(share, [&](const char* in, char*, size_t first, size_t n) {
      Write(i, at + first * element_, in, n * element_);
    });
  }
}

bool ShmAllreduce::Combine(size_t i) {
  ReduceFn reduce = FindReduce(request_->dtype, plan_.combine, ReduceStage::kFull);
  ReduceArgs base;
  base.scale = plan_.scale;
  base.divisor = plan_.divisor;
  base.stream_copy = Streams(i);
  size_t offset = (Share(i, shm_->rank()).begin - ChunkBegin(i)) * element_;
  char* slot = Slot(shm_->rank(), i) + offset;
  ReduceOwnShare(i, reduce, base, [&](ReduceArgs* args, char* tensor_out, size_t first) {
    args->out = tensor_out;
    args->copy = slot + first * element_;
  });
  return true;
}

void ShmAllreduce::Unpack(size_t i, int owner) {
  Range share = Share(i, owner);
  const char* from = Slot(owner, i) + (share.begin - ChunkBegin(i)) * element_;
  spans_.ForEach(share, [&](const char*, char* out, size_t first, size_t n) {
    std::memcpy(out, from + first * element_, n * element_);
  });
  CountRead(share.size() * element_);
}

}  // namespace smddp

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

size_t Chunks(size_t count, size_t per_chunk) {
  return count == 0 ? 1 : (count + per_chunk - 1) / per_chunk;
}

}  // namespace

ShmAllreduce::ShmAllreduce(ChannelResources* resources, const Request* request)
    : Pipeline(resources, request,
               Chunks(request->count(), resources->shm->chunk_bytes() / Info(request->dtype).size),
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

template <typename Out>
void ShmAllreduce::ReduceOwnShare(size_t i, ReduceFn reduce, const ReduceArgs& base, Out&& out) {
  Range share = Share(i, shm_->rank());
  size_t offset = (share.begin - ChunkBegin(i)) * element_;
  std::vector<const void*> sources(shm_->size());
  spans_.ForEach(share, [&](const char* in, char* tensor_out, size_t first, size_t n) {
    for (int p = 0; p < shm_->size(); ++p) {
      sources[p] = p == shm_->rank() ? in : Slot(p, i) + offset + first * element_;
    }
    ReduceArgs args = base;
    args.sources = sources.data();
    args.num_sources = shm_->size();
    args.count = n;
    out(&args, tensor_out, first);
    reduce(args);
  });
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

// Hierarchical allreduce: with m nodes, the node's sum of the own share is divided into m parts, in
// the accumulator type; if every node has a single rank, the sum is the rank's own values, sent in
// the tensor's type. An alltoall sends each node's part k to node k, which reduces the parts in
// node order (each element is computed in one place, so all ranks hold the same bits), and an
// allgather distributes the finished parts, in the tensor's type. Each share has its own group, so
// all owners of a node use the network at once. A rank sends 2 (m - 1) / m of its share, which is
// optimal.

HierarchicalAllreduce::HierarchicalAllreduce(ChannelResources* resources, const Request* request)
    : ShmAllreduce(resources, request),
      sums_in_node_(topo_.num_nodes < topo_.size),
      accum_(sums_in_node_ ? Info(request->dtype).accum_size : element_) {}

bool HierarchicalAllreduce::Combine(size_t i) {
  if (shm_->rank() >= topo_.owners || Share(i, shm_->rank()).size() == 0) return true;
  if (step_ == Step::kReduceInNode) {
    StartScatter(i);
    step_ = Step::kScatter;
  }
  bool done = false;
  Status tested = resources_->share_peers->Test(&done);
  if (!tested.ok()) Fail(tested);
  if (!tested.ok() || !done) return false;
  if (step_ == Step::kScatter) {
    StartGather(i);
    step_ = Step::kGather;
    return Combine(i);
  }
  StoreResult(i);
  step_ = Step::kReduceInNode;
  return true;
}

void HierarchicalAllreduce::StartScatter(size_t i) {
  size_t nodes = static_cast<size_t>(topo_.num_nodes);
  part_ = (Share(i, shm_->rank()).size() + nodes - 1) / nodes;
  size_t wide = part_ * nodes * accum_, narrow = part_ * element_;
  partial_ = resources_->share_peers->Memory(2 * wide + narrow + narrow * nodes);
  received_ = partial_ + wide;
  own_ = received_ + wide;
  gathered_ = own_ + narrow;

  ReduceStage stage = sums_in_node_ ? ReduceStage::kPartial : ReduceStage::kFull;
  ReduceFn reduce = FindReduce(request_->dtype, plan_.combine, stage);
  ReduceOwnShare(i, reduce, {}, [&](ReduceArgs* args, char*, size_t first) {
    args->out = partial_ + first * accum_;
  });

  Status started = resources_->share_peers->StartAlltoall(partial_, part_ * accum_, received_);
  if (!started.ok()) Fail(started);
}

void HierarchicalAllreduce::StartGather(size_t) {
  ReduceArgs args;
  std::vector<const void*> sources(topo_.num_nodes);
  for (int m = 0; m < topo_.num_nodes; ++m) sources[m] = received_ + m * part_ * accum_;
  args.sources = sources.data();
  args.num_sources = topo_.num_nodes;
  args.count = part_;
  args.out = own_;
  args.scale = plan_.scale;
  args.divisor = plan_.divisor;

  ReduceStage stage = sums_in_node_ ? ReduceStage::kFinish : ReduceStage::kFull;
  FindReduce(request_->dtype, plan_.combine, stage)(args);
  Status started = resources_->share_peers->StartAllgather(own_, part_ * element_, gathered_);
  if (!started.ok()) Fail(started);
}

void HierarchicalAllreduce::StoreResult(size_t i) {
  Range share = Share(i, shm_->rank());
  char* slot = Slot(shm_->rank(), i) + (share.begin - ChunkBegin(i)) * element_;
  Write(i, slot, gathered_, share.size() * element_);
  spans_.ForEach(share, [&](const char*, char* out, size_t first, size_t n) {
    std::memcpy(out, gathered_ + first * element_, n * element_);
  });
}

}  // namespace smddp

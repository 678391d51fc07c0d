// Allreduce between nodes.
//
// With m nodes, the node's sum of the own share of a chunk is divided into m parts. An alltoall
// (scatter) sends each node's part k to node k, which reduces the parts in node order (each element
// is computed in one place, so all ranks hold the same bits), and an allgather distributes the
// finished parts, in the tensor's type. Each share has its own group, so all owners of a node use
// the network at once. A rank sends 2 (m - 1) / m of its share, which is optimal.
//
// The network never waits for a rank to add: the scatters of the next kAhead chunks are under way
// while a chunk is reduced and gathered. Exchanges start in one order on all nodes:
//
//   scatter 0, scatter 1, gather 0, scatter 2, gather 1, scatter 3, ...
//
// A payload that fits beside the header travels there: all owners then have the sums of all nodes,
// and each reduces them, in node order again. That is one exchange instead of three.
//
// Partial sums travel in the accumulator's type where nodes have several ranks, so that 16-bit
// floats are summed in float32 as on one node. Where the tensor's type holds them as well, they
// travel in that: if every node has a single rank, whose own values they are; minima and maxima;
// and integers, whose sums wrap, unless they are divided.
#include <algorithm>
#include <cstring>

#include "collective/host/allreduce.h"

namespace smddp {
namespace {

constexpr size_t kAhead = 2;
constexpr size_t kLine = 64;
// A chunk is staged when its predecessor in the slot has been unpacked, so that one's region is
// free.
constexpr size_t kRegions = kSlots;
static_assert(2 * kAhead <= PeerGroup::kDepth);

}  // namespace

HierarchicalAllreduce::HierarchicalAllreduce(ChannelResources* resources, const Request* request)
    : ShmAllreduce(resources, request),
      wide_(topo_.num_nodes < topo_.size && plan_.partials_are_wide),
      accum_(wide_ ? Info(request->dtype).accum_size : element_) {
  if (shm_->rank() >= topo_.owners) return;
  exchanged_chunks_ = num_chunks();
  if (Share(num_chunks() - 1, shm_->rank()).size() == 0) --exchanged_chunks_;
  size_t share = Share(0, shm_->rank()).size();
  // A vote's result waits for the first rank to combine, whereas headers are sent before.
  bool fits = share > 0 && share * accum_ <= HeaderExchange::PayloadBytes(topo_.num_nodes);
  with_header_ = num_chunks() == 1 && fits && request->kind != Kind::kVote;
}

bool HierarchicalAllreduce::Combine(size_t i) {
  if (i >= exchanged_chunks_) return true;
  if (with_header_) {
    CombineFromHeaders();
    return true;
  }
  while (status().ok() && finished_ <= i && (StartNext() || FinishOldest())) NoteProgress();
  return status().ok() && finished_ > i;
}

// Returns false if the next exchange cannot start yet. Which one is next depends on nothing that
// differs between nodes.
bool HierarchicalAllreduce::StartNext() {
  if (scatters_ < std::min(exchanged_chunks_, gathers_ + kAhead)) {
    if (!StagedByAll(scatters_)) return false;
    StartScatter(scatters_++);
    return true;
  }
  if (gathers_ == exchanged_chunks_ || scattered_ <= gathers_) return false;
  StartGather(gathers_++);
  return true;
}

// Returns false if it is still under way.
bool HierarchicalAllreduce::FinishOldest() {
  if (in_flight_.empty() || !ExchangeHasEnded()) return false;
  Exchange oldest = in_flight_.front();
  in_flight_.pop_front();
  if (oldest.scatter) {
    ++scattered_;
  } else {
    StoreResult(oldest.chunk, RegionOf(oldest.chunk).gathered);
    ++finished_;
  }
  return true;
}

HierarchicalAllreduce::Region HierarchicalAllreduce::RegionOf(size_t i) const {
  size_t nodes = static_cast<size_t>(topo_.num_nodes);
  size_t part = (Share(i, shm_->rank()).size() + nodes - 1) / nodes;
  char* at = memory_ + i % kRegions * region_bytes_;
  return {part, at, at + part * nodes * accum_, at + 2 * part * nodes * accum_};
}

void HierarchicalAllreduce::StartScatter(size_t i) {
  if (memory_ == nullptr) {  // the first chunk has the largest share
    size_t nodes = static_cast<size_t>(topo_.num_nodes);
    size_t part = RegionOf(0).part;
    region_bytes_ = (part * nodes * (2 * accum_ + element_) + kLine - 1) / kLine * kLine;
    size_t regions = std::min(kRegions, exchanged_chunks_);
    memory_ = resources_->share_peers->Memory(regions * region_bytes_);
  }
  Region region = RegionOf(i);
  ReduceInNode(i, region.partial);
  PeerGroup* peers = resources_->share_peers.get();
  Status started = peers->StartAlltoall(region.partial, region.part * accum_, region.received);
  if (!started.ok()) Fail(started);
  in_flight_.push_back({true, i});
}

void HierarchicalAllreduce::StartGather(size_t i) {
  Region region = RegionOf(i);
  size_t wide = region.part * accum_, narrow = region.part * element_;
  std::vector<const void*> sources(topo_.num_nodes);
  for (int m = 0; m < topo_.num_nodes; ++m) {
    sources[m] = (m == topo_.node ? region.partial : region.received) + m * wide;
  }
  char* own = region.gathered + topo_.node * narrow;
  ReduceBetweenNodes(sources, region.part, own);
  Status started = resources_->share_peers->StartAllgather(own, narrow, region.gathered);
  if (!started.ok()) Fail(started);
  in_flight_.push_back({false, i});
}

void HierarchicalAllreduce::SendWithHeader(char* to) {
  if (with_header_) ReduceInNode(0, to);
}

// A node whose ranks have all joined did not know what to send.
void HierarchicalAllreduce::CombineFromHeaders() {
  size_t count = Share(0, shm_->rank()).size();
  std::vector<char> zeros(count * accum_), result(count * element_);
  std::vector<const void*> sources(topo_.num_nodes);
  for (int m = 0; m < topo_.num_nodes; ++m) {
    bool joined = resources_->exchange.headers()[m].presence == Presence::kJoined;
    sources[m] = joined ? zeros.data() : resources_->exchange.payload(m);
  }
  ReduceBetweenNodes(sources, count, result.data());
  StoreResult(0, result.data());
}

void HierarchicalAllreduce::ReduceInNode(size_t i, char* out) {
  ReduceStage stage = wide_ ? ReduceStage::kPartial : ReduceStage::kFull;
  ReduceFn reduce = FindReduce(request_->dtype, plan_.combine, stage);
  ReduceOwnShare(i, reduce, {},
                 [&](ReduceArgs* args, char*, size_t first) { args->out = out + first * accum_; });
}

void HierarchicalAllreduce::ReduceBetweenNodes(const std::vector<const void*>& sources,
                                               size_t count, char* out) const {
  ReduceArgs args;
  args.sources = sources.data();
  args.num_sources = topo_.num_nodes;
  args.count = count;
  args.out = out;
  args.scale = plan_.scale;
  args.divisor = plan_.divisor;
  ReduceStage stage = wide_ ? ReduceStage::kFinish : ReduceStage::kFull;
  FindReduce(request_->dtype, plan_.combine, stage)(args);
}

void HierarchicalAllreduce::StoreResult(size_t i, const char* result) {
  Range share = Share(i, shm_->rank());
  if (shm_->size() > 1) {
    char* slot = Slot(shm_->rank(), i) + (share.begin - ChunkBegin(i)) * element_;
    Write(i, slot, result, share.size() * element_);
  }
  spans_.ForEach(share, [&](const char*, char* out, size_t first, size_t n) {
    std::memcpy(out, result + first * element_, n * element_);
  });
}

}  // namespace smddp

// A slot is divided into one stripe for each rank of the job. Chunk by chunk, each rank stages in
// its stripes what the others will receive. The owners of a node divide the ranks of every node:
// owner j carries those whose local rank is j, j + owners, and so on. It reduces what its node has
// staged for them, exchanges these partial sums with the owners j of the other nodes (an alltoall),
// reduces what arrives, in node order, and writes the result to its tensor, or for another rank
// that it carries to that rank's stripe. With B bytes of input on m nodes, a node sends
// (m - 1) / m of B, where an allreduce sends twice that.
#include "collective/host/hierarchical_reduce_scatter.h"

#include <algorithm>
#include <cstring>

#include "collective/host/exchange.h"
#include "core/ranges.h"

namespace smddp {
namespace {

constexpr size_t kLine = 64;

size_t StripeBytes(const ChannelResources& resources, size_t element) {
  size_t bytes = resources.shm->chunk_bytes() / static_cast<size_t>(resources.topology->size);
  return bytes < kLine ? bytes / element * element : bytes / kLine * kLine;
}

size_t Chunks(const ChannelResources& resources, const Request& request) {
  size_t element = Info(request.dtype).size;
  size_t per_chunk = StripeBytes(resources, element) / element;
  // Rank 0 has the most rows.
  size_t largest = PartOfOwner(request, *resources.topology, 0).count();
  return largest == 0 ? 1 : (largest + per_chunk - 1) / per_chunk;
}

}  // namespace

HierarchicalReduceScatter::HierarchicalReduceScatter(ChannelResources* resources,
                                                     const Request* request)
    : Pipeline(resources, request, Chunks(*resources, *request), false),
      plan_(*request, topo_.size),
      wide_(topo_.num_nodes < topo_.size && plan_.partials_are_wide),
      element_(Info(request->dtype).size),
      accum_(wide_ ? Info(request->dtype).accum_size : element_),
      stripe_(StripeBytes(*resources, element_)) {
  for (int r = 0; r < topo_.size; ++r) parts_.push_back(PartOfOwner(*request, topo_, r));
}

Range HierarchicalReduceScatter::Piece(size_t i, int r) const {
  size_t per_chunk = stripe_ / element_, count = parts_[r].count();
  return {std::min(i * per_chunk, count), std::min((i + 1) * per_chunk, count)};
}

size_t HierarchicalReduceScatter::Carried(size_t i, int node) const {
  size_t count = 0;
  const auto& ranks = topo_.nodes[node];
  for (size_t l = shm_->rank(); l < ranks.size(); l += topo_.owners) {
    count += Piece(i, ranks[l]).size();
  }
  return count;
}

void HierarchicalReduceScatter::Stage(size_t i) {
  for (const auto& node : topo_.nodes) {
    for (size_t local = 0; local < node.size(); ++local) {
      if (Carrier(static_cast<int>(local)) == shm_->rank()) continue;
      int r = node[local];
      char* at = Stripe(i, shm_->rank(), r);
      parts_[r].ForEach(Piece(i, r), [&](const char* in, char*, size_t first, size_t n) {
        Write(i, at + first * element_, in, n * element_);
      });
    }
  }
}

bool HierarchicalReduceScatter::Combine(size_t i) {
  if (shm_->rank() >= topo_.owners) return true;
  while (status().ok() && finished_ <= i && (StartNext() || FinishOldest())) NoteProgress();
  return status().ok() && finished_ > i;
}

HierarchicalReduceScatter::Region HierarchicalReduceScatter::RegionOf(size_t i) const {
  size_t nodes = static_cast<size_t>(topo_.num_nodes), block = largest_carried_ * accum_;
  char* at = memory_ + i % kSlots * (2 * nodes - 1) * block;
  return {at, at + block, at + nodes * block};
}

// Returns false if it cannot start yet, or if all have.
bool HierarchicalReduceScatter::StartNext() {
  size_t i = started_;
  bool room = i < num_chunks() && i - finished_ < kSlots;
  if (!room || !StagedByAll(i)) return false;
  PeerGroup* peers = resources_->share_peers.get();
  if (memory_ == nullptr) {  // the first chunk has the largest pieces
    for (int m = 0; m < topo_.num_nodes; ++m) {
      largest_carried_ = std::max(largest_carried_, Carried(0, m));
    }
    size_t blocks = 2 * static_cast<size_t>(topo_.num_nodes) - 1;
    memory_ =
        peers->Memory(std::min<size_t>(kSlots, num_chunks()) * blocks * largest_carried_ * accum_);
  }
  Region region = RegionOf(i);
  std::vector<size_t> send, receive;
  char* at = region.sent;
  for (int m = 0; m < topo_.num_nodes; ++m) {
    bool own = m == topo_.node;
    send.push_back(own ? 0 : Carried(i, m) * accum_);
    receive.push_back(own ? 0 : Carried(i, topo_.node) * accum_);
    char* to = own ? region.own : at;
    const auto& ranks = topo_.nodes[m];
    for (size_t l = shm_->rank(); l < ranks.size(); l += topo_.owners) {
      ReduceInNode(i, ranks[l], to);
      to += Piece(i, ranks[l]).size() * accum_;
    }
    at += send.back();
  }
  Status status = peers->StartAlltoallV(region.sent, send, region.received, receive);
  if (!status.ok()) Fail(status);
  ++started_;
  return true;
}

// Returns false if it is still under way, or if there is none.
bool HierarchicalReduceScatter::FinishOldest() {
  if (finished_ == started_ || !ExchangeHasEnded()) return false;
  ReduceBetweenNodes(finished_++);
  return true;
}

void HierarchicalReduceScatter::ReduceInNode(size_t i, int r, char* out) {
  ReduceStage stage = wide_ ? ReduceStage::kPartial : ReduceStage::kFull;
  ReduceFn reduce = FindReduce(request_->dtype, plan_.combine, stage);
  std::vector<const void*> sources(shm_->size());
  parts_[r].ForEach(Piece(i, r), [&](const char* in, char*, size_t first, size_t n) {
    for (int p = 0; p < shm_->size(); ++p) {
      sources[p] = p == shm_->rank() ? in : Stripe(i, p, r) + first * element_;
    }
    ReduceArgs args;
    args.sources = sources.data();
    args.num_sources = shm_->size();
    args.count = n;
    args.out = out + first * accum_;
    reduce(args);
  });
}

void HierarchicalReduceScatter::ReduceBetweenNodes(size_t i) {
  ReduceStage stage = wide_ ? ReduceStage::kFinish : ReduceStage::kFull;
  ReduceFn reduce = FindReduce(request_->dtype, plan_.combine, stage);
  Region region = RegionOf(i);
  size_t block = Carried(i, topo_.node) * accum_, offset = 0;
  std::vector<const void*> sources(topo_.num_nodes);
  const auto& ranks = topo_.nodes[topo_.node];
  for (int local = shm_->rank(); local < shm_->size(); local += topo_.owners) {
    int r = ranks[local];
    parts_[r].ForEach(Piece(i, r), [&](const char*, char* out, size_t first, size_t n) {
      const char* others = region.received + offset + first * accum_;
      for (int m = 0; m < topo_.num_nodes; ++m) {
        bool own = m == topo_.node;
        sources[m] = own ? region.own + offset + first * accum_ : others;
        if (!own) others += block;
      }
      bool mine = local == shm_->rank();
      ReduceArgs args;
      args.sources = sources.data();
      args.num_sources = topo_.num_nodes;
      args.count = n;
      args.out = mine ? out : Stripe(i, shm_->rank(), r) + first * element_;
      args.scale = plan_.scale;
      args.divisor = plan_.divisor;
      reduce(args);
    });
    offset += Piece(i, r).size() * accum_;
  }
}

void HierarchicalReduceScatter::Unpack(size_t i, int owner) {
  if (owner != Carrier(shm_->rank())) return;
  const char* from = Stripe(i, owner, topo_.rank);
  parts_[topo_.rank].ForEach(Piece(i, topo_.rank),
                             [&](const char*, char* out, size_t first, size_t n) {
                               std::memcpy(out, from + first * element_, n * element_);
                               CountRead(n * element_);
                             });
}

}  // namespace smddp

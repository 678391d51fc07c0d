// Allreduce inside a node whose ranks sit on several sockets.
//
// ShmAllreduce has each rank read from all others: with k ranks on each of two sockets a chunk
// crosses from one to the other k / 2 times to be reduced and k / 2 times to be gathered. Here each
// socket first reduces its own inputs, and sockets exchange sums, so that half a chunk crosses for
// each.
//
// A chunk is divided into one share for each owner of a socket, and share j into one part for each
// socket: part t is summed on socket t, by owner j there. So each element is computed in one place,
// and all ranks hold the same bits. For 2 sockets of 2 ranks, owner 0 of socket 0
//
//   stages    share 1, which owner 1 of its socket owns;
//   reduces   part 1 of share 0 over its socket, for owner 0 of socket 1;
//   sums      part 0 of share 0: over its socket, and then with what owner 0 of socket 1 reduced;
//   gathers   part 1 of share 0, which owner 0 of socket 1 has summed;
//   unpacks   share 1, from owner 1 of its socket.
//
// Reduce, sum and gather are what Pipeline calls combine; reduce runs ahead while sums and results
// are on their way between sockets. A slot is in two halves. What ranks of the same socket read is
// in the near one, at the offset that it has in the chunk, as in ShmAllreduce, and is written
// through the cache. What other sockets read is in the far one, on lines that nobody else reads,
// and bypasses the cache.
//
// So a rank waits for those of its socket, as ShmAllreduce does for all, and for its counterparts
// to have reduced and summed a chunk. That keeps the far half as well until it has been read: a
// rank that stages into a slot again has gathered the slot's last chunk, so its counterparts had
// summed it; and one that sums into it again has seen that its counterparts reduced the new chunk,
// so they had gathered the last one.
//
// Partial sums are in the accumulator's type, as between nodes. If sockets have different numbers
// of ranks, all have as many owners as the smallest.
#include "collective/host/sockets_allreduce.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/copy.h"

namespace smddp {
namespace {

constexpr size_t kLine = 64;

}  // namespace

SocketsAllreduce::Layout::Layout(const ChannelResources& resources, const Request& request)
    : element(Info(request.dtype).size) {
  const Topology& topo = *resources.topology;
  wide = ReducePlan(request, topo.size).partials_are_wide;
  partial = wide ? Info(request.dtype).accum_size : element;
  // With one line for each part the near half has a line for each, and the far half, of one share's
  // parts, partial / element of them.
  size_t sockets = topo.sockets.size(), owners = static_cast<size_t>(topo.socket_owners);
  size_t lines = resources.shm->chunk_bytes() / (kLine * sockets * (owners + partial / element));
  chunk = lines * (kLine / element) * sockets * owners;
  partial_bytes = lines * kLine * (partial / element);
}

std::string SocketsAllreduce::Cannot(const ChannelResources& resources, const Request& request) {
  const Topology& topo = *resources.topology;
  if (topo.num_nodes > 1) return "works inside one node only";
  // In a barrier a joined rank does not take these steps.
  if (request.count() == 0) return "there is nothing to reduce";
  if (topo.sockets.size() < 2) return "the ranks are on one socket, or not each bound to one";
  return Layout(resources, request).chunk == 0 ? "the slots are too small" : "";
}

// With k owners a socket and partial sums r times as wide as the tensor, (r + 1) / 2k of the bytes
// cross.
std::string SocketsAllreduce::DoesNotPay(const ChannelResources& resources, const Request& request,
                                         double share) {
  Layout layout(resources, request);
  auto owners = static_cast<double>(resources.topology->socket_owners);
  auto crosses = static_cast<double>(1 + layout.partial / layout.element) / (2 * owners);
  return crosses > share ? "a socket has too few ranks" : "";
}

SocketsAllreduce::SocketsAllreduce(ChannelResources* resources, const Request* request)
    : SocketsAllreduce(resources, request, Layout(*resources, *request)) {}

SocketsAllreduce::SocketsAllreduce(ChannelResources* resources, const Request* request,
                                   const Layout& layout)
    : Pipeline(resources, request, ChunksOf(request->count(), layout.chunk), false),
      layout_(layout),
      spans_(request->Spans()),
      plan_(*request, topo_.size),
      owner_(topo_.socket_rank < topo_.socket_owners),
      streams_(kHasStreamingStores && resources->staging_choice.mode() != StagingMode::kCached) {
  AwaitOnly(topo_.sockets[topo_.socket]);
  ChooseNoStaging();
  if (owner_) scratch_.reset(new char[layout_.partial_bytes]);
}

Range SocketsAllreduce::Part(size_t i, int j, int t) const {
  size_t begin = ChunkBegin(i), end = std::min(begin + layout_.chunk, spans_.count());
  int sockets = static_cast<int>(topo_.sockets.size());
  Range part =
      PartOf(end - begin, topo_.socket_owners * sockets, j * sockets + t, kLine / layout_.element);
  return {begin + part.begin, begin + part.end};
}

Range SocketsAllreduce::Share(size_t i, int j) const {
  int last = static_cast<int>(topo_.sockets.size()) - 1;
  return {Part(i, j, 0).begin, Part(i, j, last).end};
}

char* SocketsAllreduce::Near(int local_rank, size_t i, Range range) const {
  return Slot(local_rank, i) + (range.begin - ChunkBegin(i)) * layout_.element;
}

char* SocketsAllreduce::Far(int local_rank, size_t i, int t) const {
  size_t near = layout_.chunk * layout_.element;
  return Slot(local_rank, i) + near + static_cast<size_t>(t) * layout_.partial_bytes;
}

bool SocketsAllreduce::CounterpartsAre(std::atomic<uint64_t> SocketCell::* counter,
                                       size_t i) const {
  for (int t = 0; t < static_cast<int>(topo_.sockets.size()); ++t) {
    if (t == topo_.socket) continue;
    const SocketCell& cell = shm_->socket_cell(Counterpart(t), resources_->index);
    if ((cell.*counter).load(std::memory_order_acquire) <= ChunkNumber(i)) return false;
  }
  return true;
}

void SocketsAllreduce::Stage(size_t i) {
  for (int j = 0; j < topo_.socket_owners; ++j) {
    if (j == topo_.socket_rank) continue;
    Range share = Share(i, j);
    char* at = Near(shm_->rank(), i, share);
    spans_.ForEach(share, [&](const char* in, char*, size_t first, size_t n) {
      Write(i, at + first * layout_.element, in, n * layout_.element);
    });
  }
}

bool SocketsAllreduce::Combine(size_t i) {
  if (!owner_) return true;
  while (gathered_ <= i && (TryGather() || TrySum() || TryReduce())) NoteProgress();
  return gathered_ > i;
}

// Reduces this socket's inputs of `part`, in rank order, to `to`, or past the cache to there by way
// of the scratch.
void SocketsAllreduce::ReduceOnSocket(size_t i, Range part, char* to, bool streams) {
  const std::vector<int>& ranks = topo_.sockets[topo_.socket];
  ReduceStage stage = layout_.wide ? ReduceStage::kPartial : ReduceStage::kFull;
  ReduceFn reduce = FindReduce(request_->dtype, plan_.combine, stage);
  std::vector<const void*> sources(ranks.size());
  spans_.ForEach(part, [&](const char* in, char*, size_t first, size_t n) {
    for (size_t k = 0; k < ranks.size(); ++k) {
      bool own = ranks[k] == shm_->rank();
      sources[k] = own ? in : Near(ranks[k], i, part) + first * layout_.element;
    }
    ReduceArgs args;
    args.sources = sources.data();
    args.num_sources = static_cast<int>(ranks.size());
    args.count = n;
    char* at = to + first * layout_.partial;
    args.out = streams ? scratch_.get() + first * layout_.partial : at;
    args.copy = streams ? at : nullptr;
    args.stream_copy = streams;
    reduce(args);
  });
}

bool SocketsAllreduce::TryReduce() {
  size_t i = reduced_;
  if (i == num_chunks() || !StagedByAll(i)) return false;
  for (int t = 0; t < static_cast<int>(topo_.sockets.size()); ++t) {
    if (t == topo_.socket) continue;
    Range part = Part(i, topo_.socket_rank, t);
    ReduceOnSocket(i, part, Far(shm_->rank(), i, t), streams_);
  }
  if (streams_) StreamFence();
  Publish(&shm_->socket_cell(shm_->rank(), resources_->index).reduced, ChunkNumber(i) + 1);
  ++reduced_;
  return true;
}

bool SocketsAllreduce::TrySum() {
  size_t i = summed_;
  if (i == reduced_ || !CounterpartsAre(&SocketCell::reduced, i)) return false;
  Range part = Part(i, topo_.socket_rank, topo_.socket);
  ReduceOnSocket(i, part, scratch_.get(), false);
  std::vector<const char*> partials;
  for (int t = 0; t < static_cast<int>(topo_.sockets.size()); ++t) {
    bool own = t == topo_.socket;
    partials.push_back(own ? scratch_.get() : Far(Counterpart(t), i, topo_.socket));
    if (!own) far_bytes_ += part.size() * layout_.partial;
  }
  ReduceStage stage = layout_.wide ? ReduceStage::kFinish : ReduceStage::kFull;
  ReduceFn reduce = FindReduce(request_->dtype, plan_.combine, stage);
  char* near = Near(shm_->rank(), i, part);
  char* far = Far(shm_->rank(), i, topo_.socket);
  std::vector<const void*> sources(partials.size());
  spans_.ForEach(part, [&](const char*, char* out, size_t first, size_t n) {
    for (size_t t = 0; t < sources.size(); ++t) sources[t] = partials[t] + first * layout_.partial;
    reduce({sources.data(), static_cast<int>(sources.size()), n, out, far + first * layout_.element,
            plan_.scale, plan_.divisor, streams_});
    std::memcpy(near + first * layout_.element, out, n * layout_.element);
  });
  if (streams_) StreamFence();
  Publish(&shm_->socket_cell(shm_->rank(), resources_->index).summed, ChunkNumber(i) + 1);
  ++summed_;
  return true;
}

bool SocketsAllreduce::TryGather() {
  size_t i = gathered_;
  if (i == summed_ || !CounterpartsAre(&SocketCell::summed, i)) return false;
  for (int t = 0; t < static_cast<int>(topo_.sockets.size()); ++t) {
    if (t == topo_.socket) continue;
    Range part = Part(i, topo_.socket_rank, t);
    char* near = Near(shm_->rank(), i, part);
    std::memcpy(near, Far(Counterpart(t), i, t), part.size() * layout_.element);
    far_bytes_ += part.size() * layout_.element;
    spans_.ForEach(part, [&](const char*, char* out, size_t first, size_t n) {
      std::memcpy(out, near + first * layout_.element, n * layout_.element);
    });
  }
  ++gathered_;
  return true;
}

void SocketsAllreduce::Unpack(size_t i, int owner) {
  const std::vector<int>& ranks = topo_.sockets[topo_.socket];
  auto place = std::lower_bound(ranks.begin(), ranks.end(), owner);
  if (place == ranks.end() || *place != owner) return;  // on another socket
  int j = static_cast<int>(place - ranks.begin());
  if (j >= topo_.socket_owners) return;
  Range share = Share(i, j);
  const char* from = Near(owner, i, share);
  spans_.ForEach(share, [&](const char*, char* out, size_t first, size_t n) {
    std::memcpy(out, from + first * layout_.element, n * layout_.element);
  });
}

}  // namespace smddp

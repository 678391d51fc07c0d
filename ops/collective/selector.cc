#include "collective/selector.h"

#include <algorithm>

#include "collective/device/host_copy.h"
#include "collective/device/on_device.h"
#include "collective/device/vote.h"
#include "collective/host/allreduce.h"
#include "collective/host/exchange.h"
#include "collective/host/hierarchical_allgather.h"
#include "collective/host/hierarchical_alltoall.h"
#include "collective/host/hierarchical_broadcast.h"
#include "collective/host/hierarchical_reduce_scatter.h"
#include "collective/host/joined_move.h"
#include "collective/host/move.h"
#include "collective/host/single_copy.h"
#include "kernels/cpu/copy.h"

namespace smddp {
namespace {

// An algorithm, and the reason why it cannot serve a request or should not; "" if it can.
struct Entry {
  const char* name;
  Kind kind;
  std::string (*cannot)(const ChannelResources&, const Request&);
  std::string (*reject_if)(const Selector&, const ChannelResources&, const Request&);
  std::unique_ptr<Collective> (*make)(ChannelResources*, const Request*);
};

template <typename T>
std::unique_ptr<Collective> New(ChannelResources* resources, const Request* request) {
  return std::make_unique<T>(resources, request);
}

std::string OneNodeOnly(const ChannelResources& resources, const Request&) {
  return resources.topology->num_nodes > 1 ? "works inside one node only" : "";
}
std::string SeveralOnOneNode(const ChannelResources& resources, const Request& request) {
  return resources.topology->size == 1 ? "there is a single rank" : OneNodeOnly(resources, request);
}
std::string SeveralNodes(const ChannelResources& resources, const Request&) {
  return resources.topology->num_nodes == 1 ? "there is a single node" : "";
}
std::string Always(const Selector&, const ChannelResources&, const Request&) { return ""; }
std::string SmallOnly(const Selector& selector, const ChannelResources& resources,
                      const Request& request) {
  size_t limit =
      resources.topology->size == 2 ? selector.oneshot_bytes_of_two : selector.oneshot_bytes;
  return request.bytes() > limit ? "the payload is large" : "";
}
// More ranks would write more copies of each result, which has not been measured.
std::string TwoRanksOnly(const Selector&, const ChannelResources& resources, const Request&) {
  return resources.topology->size > 2 ? "there are more than two ranks" : "";
}
std::string NotSmall(const Selector& selector, const ChannelResources&, const Request& request) {
  return request.moved_bytes() < selector.single_copy_bytes ? "the payload is small" : "";
}
// The kernel's copy takes up to twice as long as one of ours, for pages of 4 KiB. Through the slots
// n ranks make n copies of what each of them has, and with a single copy n - 1. Beyond the caches
// the slots win with two ranks as well.
std::string UnlessMidSizedOfTwo(const Selector& selector, const ChannelResources& resources,
                                const Request& request) {
  if (resources.topology->size > selector.single_copy_gathers) return "there are many ranks";
  return request.moved_bytes() >= kPastCachesBytes ? "the payload is large"
                                                   : NotSmall(selector, resources, request);
}

// Through the slots a rank copies what it sends and what it receives; with a single copy it only
// reads what it receives, which the kernel does slower. The busiest rank decides: a root of many
// that scatters should leave the work to them, one that gathers has all of it either way.
std::string UnlessSlotsBurdenOne(const Selector& selector, const ChannelResources& resources,
                                 const Request& request) {
  size_t moved = request.moved_bytes();
  if (moved < selector.single_copy_alltoall_bytes) return "the payload is small";
  int size = resources.topology->size;
  size_t most_received = 0, most_copied = 0;
  for (int r = 0; r < size; ++r) {
    size_t sent = 0, received = 0;
    for (int p = 0; p < size; ++p) {
      sent += p == r ? 0 : request.PartBytes(r, p, size);
      received += p == r ? 0 : request.PartBytes(p, r, size);
    }
    most_received = std::max(most_received, received);
    most_copied = std::max(most_copied, sent + received);
  }
  double cost = selector.kernel_copies * (moved >= kPastCachesBytes ? 0.75 : 1);
  return cost * static_cast<double>(most_received) < static_cast<double>(most_copied)
             ? ""
             : "the slots are faster";
}

// The first entry that can and should serve is chosen.
const Entry kTable[] = {
    {"oneshot", Kind::kAllreduce, OneNodeOnly, SmallOnly, New<OneshotAllreduce>},
    {"handback", Kind::kAllreduce, SeveralOnOneNode, TwoRanksOnly, New<TwoRankAllreduce>},
    {"shm", Kind::kAllreduce, OneNodeOnly, Always, New<ShmAllreduce>},
    {"hierarchical", Kind::kAllreduce, SeveralNodes, Always, New<HierarchicalAllreduce>},
    {"vote", Kind::kVote, OneNodeOnly, Always, New<VoteInNode>},
    {"cross_node_vote", Kind::kVote, SeveralNodes, Always, New<VoteAcrossNodes>},
    {"shm_broadcast", Kind::kBroadcast, OneNodeOnly, Always, New<ShmBroadcast>},
    {"hierarchical_broadcast", Kind::kBroadcast, SeveralNodes, Always, New<HierarchicalBroadcast>},
    {"single_copy_allgather", Kind::kAllgather, SingleCopyMove::Cannot, UnlessMidSizedOfTwo,
     New<SingleCopyMove>},
    {"shm_allgather", Kind::kAllgather, OneNodeOnly, Always, New<ShmAllgather>},
    {"hierarchical_allgather", Kind::kAllgather, SeveralNodes, Always, New<HierarchicalAllgather>},
    {"single_copy_alltoall", Kind::kAlltoall, SingleCopyMove::Cannot, UnlessSlotsBurdenOne,
     New<SingleCopyMove>},
    {"shm_alltoall", Kind::kAlltoall, OneNodeOnly, Always, New<ShmAlltoall>},
    {"hierarchical_alltoall", Kind::kAlltoall, SeveralNodes, Always, New<HierarchicalAlltoall>},
    {"shm_reducescatter", Kind::kReduceScatter, OneNodeOnly, Always, New<ShmReduceScatter>},
    {"hierarchical_reducescatter", Kind::kReduceScatter, SeveralNodes, Always,
     New<HierarchicalReduceScatter>},
};

}  // namespace

std::unique_ptr<Collective> Selector::Make(ChannelResources* resources, const Request* request,
                                           std::string* why) const {
  if (request->device != nullptr) {
    auto make_host = [this, resources](const Request* host) {
      return Make(resources, host, nullptr);
    };
    std::string reason = OnDevice::Cannot(*resources, *request);
    if (why != nullptr) {
      *why += "on device: " + (reason.empty() ? "put to the vote" : reason) + "\n";
      if (!reason.empty()) *why += "staged: taken\n";
    }
    if (reason.empty()) return std::make_unique<OnDevice>(resources, request, make_host);
    return std::make_unique<HostCopy>(resources, request, make_host);
  }
  // A joined rank contributes zeros to an allreduce, and nothing to any other collective.
  bool sums = request->kind == Kind::kAllreduce || request->kind == Kind::kVote;
  bool zeros = sums && !request->tensors.empty();
  if (request->has_joined() && !zeros) {
    return std::make_unique<JoinedMove>(resources, request);
  }
  // A barrier is an allreduce of zero elements.
  Kind kind = request->kind == Kind::kBarrier ? Kind::kAllreduce : request->kind;
  if (kind == Kind::kPartSizes) kind = Kind::kAllgather;
  bool forced = kind == Kind::kAllreduce && !forced_allreduce.empty();
  for (int pass = forced ? 0 : 1; pass < 2; ++pass) {
    for (const Entry& entry : kTable) {
      if (entry.kind != kind) continue;
      std::string reason = entry.cannot(*resources, *request);
      if (reason.empty() && pass == 0 && forced_allreduce != entry.name) reason = "not forced";
      if (reason.empty() && pass == 1) reason = entry.reject_if(*this, *resources, *request);
      if (why != nullptr) {
        *why += std::string(entry.name) + ": " + (reason.empty() ? "taken" : reason) + "\n";
      }
      if (reason.empty()) return entry.make(resources, request);
    }
  }
  return nullptr;  // unreachable: the table has an entry for each kind and topology
}

}  // namespace smddp

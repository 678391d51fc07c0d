#include "collective/selector.h"

#include "collective/allreduce.h"
#include "collective/exchange.h"
#include "collective/joined.h"
#include "collective/move.h"
#include "collective/single_copy.h"
#include "collective/world_move.h"
#include "kernels/copy.h"

namespace smddp {
namespace {

// An algorithm and the reason why it cannot or should not serve; "" when it can.
struct Entry {
  const char* name;
  Kind kind;
  std::string (*cannot)(const Lane&, const Request&);
  std::string (*should_not)(const Selector&, const Request&);
  std::unique_ptr<Collective> (*make)(Lane*, const Request*);
};

template <typename T>
std::unique_ptr<Collective> New(Lane* lane, const Request* request) {
  return std::make_unique<T>(lane, request);
}

std::string OneNodeOnly(const Lane& lane, const Request&) {
  return lane.topology->num_nodes > 1 ? "works inside one node only" : "";
}
std::string SeveralNodes(const Lane& lane, const Request&) {
  return lane.topology->num_nodes == 1 ? "there is a single node" : "";
}
std::string Always(const Selector&, const Request&) { return ""; }
std::string SmallOnly(const Selector& selector, const Request& request) {
  return request.bytes() > selector.oneshot_bytes ? "the payload is large" : "";
}

std::string NotSmall(const Selector& selector, const Request& request) {
  return request.moved_bytes() < selector.single_copy_bytes ? "the payload is small" : "";
}
// Root and readers copy at the same time, and the readers past their caches: faster than one copy.
std::string Middling(const Selector& selector, const Request& request) {
  return request.moved_bytes() >= kPastCachesBytes ? "the payload is large"
                                                   : NotSmall(selector, request);
}

// The first entry that can and should serve is taken.
const Entry kTable[] = {
    {"oneshot", Kind::kAllreduce, OneNodeOnly, SmallOnly, New<OneshotAllreduce>},
    {"shm", Kind::kAllreduce, OneNodeOnly, Always, New<ShmAllreduce>},
    {"hierarchical", Kind::kAllreduce, SeveralNodes, Always, New<HierarchicalAllreduce>},
    {"single_copy_broadcast", Kind::kBroadcast, SingleCopyMove::Cannot, Middling,
     New<SingleCopyMove>},
    {"shm_broadcast", Kind::kBroadcast, OneNodeOnly, Always, New<ShmBroadcast>},
    {"world_broadcast", Kind::kBroadcast, SeveralNodes, Always, New<WorldBroadcast>},
    {"single_copy_allgather", Kind::kAllgather, SingleCopyMove::Cannot, NotSmall,
     New<SingleCopyMove>},
    {"shm_allgather", Kind::kAllgather, OneNodeOnly, Always, New<ShmAllgather>},
    {"world_allgather", Kind::kAllgather, SeveralNodes, Always, New<WorldAllgather>},
    {"single_copy_alltoall", Kind::kAlltoall, SingleCopyMove::Cannot, NotSmall,
     New<SingleCopyMove>},
    {"shm_alltoall", Kind::kAlltoall, OneNodeOnly, Always, New<ShmAlltoall>},
    {"world_alltoall", Kind::kAlltoall, SeveralNodes, Always, New<WorldAlltoall>},
    {"shm_reducescatter", Kind::kReduceScatter, OneNodeOnly, Always, New<ShmReduceScatter>},
    {"world_reducescatter", Kind::kReduceScatter, SeveralNodes, Always, New<WorldReduceScatter>},
};

}  // namespace

std::unique_ptr<Collective> Selector::Make(Lane* lane, const Request* request,
                                           std::string* why) const {
  // An allreduce of a joined rank is like any other, of zeros; all else it does with nothing.
  bool zeros = request->kind == Kind::kAllreduce && !request->tensors.empty();
  if (request->joined.signature != 0 && !zeros) {
    return std::make_unique<JoinedMove>(lane, request);
  }
  // A barrier is an allreduce of nothing.
  Kind kind = request->kind == Kind::kBarrier ? Kind::kAllreduce : request->kind;
  bool forced = kind == Kind::kAllreduce && !forced_allreduce.empty();
  for (int pass = forced ? 0 : 1; pass < 2; ++pass) {
    for (const Entry& entry : kTable) {
      if (entry.kind != kind) continue;
      std::string reason = entry.cannot(*lane, *request);
      if (reason.empty() && pass == 0 && forced_allreduce != entry.name) reason = "not forced";
      if (reason.empty() && pass == 1) reason = entry.should_not(*this, *request);
      if (why != nullptr) {
        *why += std::string(entry.name) + ": " + (reason.empty() ? "taken" : reason) + "\n";
      }
      if (reason.empty()) return entry.make(lane, request);
    }
  }
  return nullptr;  // unreachable: the table has an entry for each kind and topology
}

}  // namespace smddp

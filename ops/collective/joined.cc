#include "collective/joined.h"

namespace smddp {

bool ServedByJoinedNodes(const Request& request) {
  bool sums = request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage;
  return request.kind == Kind::kBarrier || request.kind == Kind::kVote ||
         (request.kind == Kind::kAllreduce && sums);
}

Request JoinedRequest(const SlotHeader& peer, const Topology& topo, std::vector<char>* memory) {
  Request request;
  request.joined.signature = peer.signature;
  request.joined.key = peer.key;
  request.joined.chunks = peer.num_chunks;
  request.kind = static_cast<Kind>(peer.kind);
  request.dtype = static_cast<DType>(peer.dtype);
  request.op = static_cast<ReduceOp>(peer.op);
  request.root = peer.root;
  request.run = peer.run;
  request.prescale = peer.scale;  // for the share that this rank reduces
  // Part sizes fit into the zeros of JoinedMove; other allgathers work only if some rank
  // contributes nothing anyway.
  bool gathers = (request.kind == Kind::kAllgather && peer.count == 0) ||
                 (request.kind == Kind::kPartSizes && peer.count <= kPartSizesBytes);
  bool receives = request.kind == Kind::kBroadcast && request.root != topo.job_ranks[topo.rank];
  bool serves = ServedByJoinedNodes(request) || (topo.num_nodes == 1 && (gathers || receives));
  if (!serves) request.joined.signature = ~peer.signature;
  if (serves && (request.kind == Kind::kAllreduce || request.kind == Kind::kVote)) {
    memory->assign(peer.count * Info(request.dtype).size, 0);
    request.tensors = {{memory->data(), memory->data(), {static_cast<int64_t>(peer.count)}}};
  }
  return request;
}

}  // namespace smddp

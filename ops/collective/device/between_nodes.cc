#include "collective/device/between_nodes.h"

#include <algorithm>
#include <cstring>
#include <utility>  // for move

#include "collective/host/allreduce.h"

namespace smddp {
namespace {

using Part = DeviceCollective::Part;

ReduceOp OpOf(DeviceCollective::Op op) {
  switch (op) {
    case DeviceCollective::Op::kMin:
      return ReduceOp::kMin;
    case DeviceCollective::Op::kMax:
      return ReduceOp::kMax;
    case DeviceCollective::Op::kProduct:
      return ReduceOp::kProduct;
    default:
      return ReduceOp::kSum;
  }
}

// The allreduce between nodes without the part in the node: each owner has its share of the node's
// sum already. Chunk i has the i-th part of all slices.
class SlicesAllreduce : public HierarchicalAllreduce {
 public:
  // Elements of each slice in a chunk.
  static size_t PerChunk(const ChannelResources& resources, DType dtype) {
    size_t chunk = resources.shm->chunk_bytes() / Info(dtype).size;
    return std::max<size_t>(chunk / static_cast<size_t>(resources.topology->owners), 1);
  }

  // The request's tensor is the own slice, of `count` elements; its dims are those of all chunks.
  SlicesAllreduce(ChannelResources* resources, const Request* request, size_t count)
      : HierarchicalAllreduce(resources, request, Reduced{}),
        count_(count),
        per_chunk_(PerChunk(*resources, request->dtype)) {}

 protected:
  void Stage(size_t) override {}
  void Unpack(size_t, int) override {}
  Range Share(size_t i, int owner) const override {
    size_t begin = ChunkBegin(i) + static_cast<size_t>(owner) * per_chunk_;
    return {begin, begin + std::min(per_chunk_, count_ - i * per_chunk_)};
  }
  void ReduceInNode(size_t i, char* out) override {
    std::memcpy(out, Slice(i), Share(i, shm_->rank()).size() * element_);
  }
  void StoreResult(size_t i, const char* result) override {
    std::memcpy(Slice(i), result, Share(i, shm_->rank()).size() * element_);
  }

 private:
  char* Slice(size_t i) const {
    return static_cast<char*>(request_->tensors[0].out) + i * per_chunk_ * element_;
  }

  const size_t count_, per_chunk_;
};

}  // namespace

std::string BetweenNodes::Cannot(const Topology& topo, const Request& request) {
  if (request.kind != Kind::kAllreduce) return "only allreduces are shared by devices and host";
  bool equal = std::all_of(topo.nodes.begin(), topo.nodes.end(),
                           [&](const auto& ranks) { return ranks.size() == topo.nodes[0].size(); });
  return equal ? "" : "the nodes have different numbers of ranks";
}

BetweenNodes::BetweenNodes(ChannelResources* resources, const Request* request,
                           DeviceCollective collective)
    : resources_(resources),
      request_(request),
      collective_(std::move(collective)),
      slices_(resources->devices->SlicesOf(collective_)) {
  size_t most = *std::max_element(slices_.counts.begin(), slices_.counts.end());
  Status status =
      resources_->staging.Get(request_->device, most * Info(slices_.dtype).size, &memory_);
  if (!status.ok()) {
    Conclude({status.code(), "no host memory for what goes between nodes: " + status.message()});
    return;
  }
  collective_.slice = memory_.get();
  Submit(Part::kToHost);
}

BetweenNodes::~BetweenNodes() { Abort(); }

void BetweenNodes::Submit(Part part) {
  collective_.part = part;
  computed_ = std::make_shared<PendingWork>(resources_->shm, memory_);
  work_ = std::make_shared<PendingWork>(resources_->shm, memory_);
  resources_->devices->Submit(
      collective_, [work = computed_] { work->Finish({}); },
      [work = work_](const Status& status) { work->Finish(status); });
}

void BetweenNodes::StartExchange() {
  size_t count = slices_.counts[collective_.piece];
  size_t per_chunk = SlicesAllreduce::PerChunk(*resources_, slices_.dtype);
  size_t chunks = (count + per_chunk - 1) / per_chunk;
  size_t chunk = resources_->shm->chunk_bytes() / Info(slices_.dtype).size;
  host_request_ = Request();
  host_request_.dtype = slices_.dtype;
  host_request_.op = OpOf(collective_.op);
  host_request_.process_set = request_->process_set;
  host_request_.name = request_->name;
  host_request_.run = request_->run;
  host_request_.tensors = {{memory_.get(), memory_.get(), {static_cast<int64_t>(chunks * chunk)}}};
  exchange_ = std::make_unique<SlicesAllreduce>(resources_, &host_request_, count);
}

Progress BetweenNodes::Advance() {
  bool moved = false;
  while (!done_ && Step()) moved = true;
  if (done_) return Progress::kDone;
  return moved ? Progress::kSome : Progress::kNone;
}

bool BetweenNodes::Step() {
  if (exchange_ != nullptr) {
    Progress progress = exchange_->Advance();
    if (progress != Progress::kDone) return progress == Progress::kSome;
    Status status = exchange_->status();
    exchange_.reset();
    if (!status.ok()) return Conclude(status);
    Submit(Part::kFromHost);
    return true;
  }
  Status status;
  if (!work_->Poll(&status)) return false;
  work_.reset();
  if (!status.ok()) return Conclude(status);
  if (collective_.part == Part::kToHost) {
    StartExchange();
  } else if (++collective_.piece == slices_.counts.size()) {
    return Conclude({});
  } else {
    Submit(Part::kToHost);
  }
  return true;
}

bool BetweenNodes::Conclude(const Status& status) {
  status_ = status;
  done_ = true;
  return true;
}

std::vector<int> BetweenNodes::Missing() const {
  if (exchange_ != nullptr) return exchange_->Missing();
  const Topology& topo = *resources_->topology;
  Status ignored;
  bool own = topo.local_size == 1 || (computed_ != nullptr && !computed_->Poll(&ignored));
  std::vector<int> missing;
  for (int r : topo.nodes[topo.node]) {
    if ((r == topo.rank) == own) missing.push_back(topo.job_ranks[r]);
  }
  return missing;
}

bool BetweenNodes::MayWaitForOtherNodes() const {
  return exchange_ != nullptr && exchange_->MayWaitForOtherNodes();
}

void BetweenNodes::Abort() {
  if (work_ == nullptr) return;
  resources_->devices->Abort();  // which has a limit of time
  static_cast<void>(work_->Abandon(0));
  static_cast<void>(computed_->Abandon(0));
  work_.reset();
}

}  // namespace smddp

#include "collective/device/between_nodes.h"

#include <algorithm>
#include <cstring>
#include <functional>
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
      slices_(resources->devices->SlicesOf(collective_)),
      slice_bytes_(*std::max_element(slices_.counts.begin(), slices_.counts.end()) *
                   Info(slices_.dtype).size) {
  size_t at_once = std::min(slices_.at_once, slices_.counts.size());
  Status status = resources_->staging.Get(request_->device, at_once * slice_bytes_, &memory_);
  if (!status.ok()) {
    Conclude({status.code(), "no host memory for what goes between nodes: " + status.message()});
    return;
  }
  for (size_t i = 0; i < at_once; ++i) SubmitNext();
}

BetweenNodes::~BetweenNodes() { Abort(); }

char* BetweenNodes::SliceOf(size_t piece) const {
  return memory_.get() + piece % slices_.at_once * slice_bytes_;
}

void BetweenNodes::Submit(Part part, size_t piece) {
  collective_.part = part;
  collective_.piece = piece;
  collective_.slice = SliceOf(piece);
  works_.push_back(std::make_shared<PendingWork>(resources_->shm, memory_));
  parts_.push_back(part);
  std::function<void()> computed = [] {};
  if (computed_ == nullptr) {
    computed_ = std::make_shared<PendingWork>(resources_->shm, memory_);
    computed = [work = computed_] { work->Finish({}); };
  }
  resources_->devices->Submit(
      collective_, std::move(computed),
      [work = works_.back()](const Status& status) { work->Finish(status); });
}

void BetweenNodes::SubmitNext() {
  if (submitted_ < slices_.counts.size()) Submit(Part::kToHost, submitted_++);
}

void BetweenNodes::StartExchange() {
  size_t count = slices_.counts[exchanged_];
  size_t per_chunk = SlicesAllreduce::PerChunk(*resources_, slices_.dtype);
  size_t chunks = (count + per_chunk - 1) / per_chunk;
  size_t chunk = resources_->shm->chunk_bytes() / Info(slices_.dtype).size;
  host_request_ = Request();
  host_request_.dtype = slices_.dtype;
  host_request_.op = OpOf(collective_.op);
  host_request_.process_set = request_->process_set;
  host_request_.name = request_->name;
  host_request_.run = request_->run;
  char* slice = SliceOf(exchanged_);
  host_request_.tensors = {{slice, slice, {static_cast<int64_t>(chunks * chunk)}}};
  exchange_ = std::make_unique<SlicesAllreduce>(resources_, &host_request_, count);
}

Progress BetweenNodes::Advance() {
  bool moved = false;
  while (!done_ && Step()) moved = true;
  if (done_) return Progress::kDone;
  return moved ? Progress::kSome : Progress::kNone;
}

// Takes note of what the device has ended; returns whether there was any.
bool BetweenNodes::Collect() {
  bool any = false;
  Status status;
  while (!done_ && !works_.empty() && works_.front()->Poll(&status)) {
    if (parts_.front() == Part::kToHost) ++reduced_;
    works_.pop_front();
    parts_.pop_front();
    any = true;
    if (!status.ok()) Conclude(status);
  }
  return any;
}

bool BetweenNodes::Step() {
  if (Collect()) return true;
  if (exchange_ != nullptr) {
    Progress progress = exchange_->Advance();
    if (progress != Progress::kDone) return progress == Progress::kSome;
    Status status = exchange_->status();
    exchange_.reset();
    if (!status.ok()) return Conclude(status);
    Submit(Part::kFromHost, exchanged_++);
    SubmitNext();
    return true;
  }
  if (reduced_ > exchanged_) {
    StartExchange();
    return true;
  }
  return exchanged_ == slices_.counts.size() && works_.empty() && Conclude({});
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
  if (works_.empty()) return;
  resources_->devices->Abort();  // which has a limit of time
  for (const auto& work : works_) static_cast<void>(work->Abandon(0));
  static_cast<void>(computed_->Abandon(0));
  works_.clear();
}

}  // namespace smddp

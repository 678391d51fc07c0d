#include "collective/device/host_copy.h"

#include <numeric>
#include <string>
#include <utility>  // for move

#include "core/log.h"
#include "core/ranges.h"

namespace smddp {
namespace {

constexpr size_t kAlign = 64;
// A copy over PCIe takes milliseconds; one that waits for the device may never end.
constexpr double kAbortSeconds = 2;

size_t Aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Bytes that this rank contributes in one tensor.
size_t InputBytes(const Request& request, const TensorArg& tensor, const Topology& topo) {
  const auto& parts = request.part_bytes;
  size_t self = static_cast<size_t>(topo.rank), size = static_cast<size_t>(topo.size);
  switch (request.kind) {
    case Kind::kAllgather:
      return parts[self];
    case Kind::kAlltoall:
      return std::accumulate(&parts[self * size], &parts[self * size] + size, size_t{0});
    case Kind::kBroadcast:
      if (topo.RankOf(request.root) != topo.rank) return 0;
      [[fallthrough]];
    default:
      return tensor.count() * Info(request.dtype).size;
  }
}

// Bytes that this rank receives in one tensor.
size_t OutputBytes(const Request& request, const TensorArg& tensor, const Topology& topo) {
  size_t bytes = tensor.count() * Info(request.dtype).size, size = request.part_bytes.size();
  switch (request.kind) {
    case Kind::kAllgather:
      return std::accumulate(request.part_bytes.begin(), request.part_bytes.end(), size_t{0});
    case Kind::kAlltoall:
      bytes = 0;
      for (size_t i = static_cast<size_t>(topo.rank); i < size; i += topo.job_ranks.size()) {
        bytes += request.part_bytes[i];
      }
      return bytes;
    case Kind::kReduceScatter: {
      int64_t rows = tensor.dims.empty() ? 0 : tensor.dims[0];
      size_t row = rows == 0 ? 0 : bytes / static_cast<size_t>(rows);
      return RowsOf(rows, topo.size, topo.rank).size() * row;
    }
    default:
      return bytes;
  }
}

bool InPlace(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kBroadcast; }

}  // namespace

HostCopy::HostCopy(ChannelResources* resources, const Request* request, MakeHost make_host)
    : resources_(resources), request_(request), make_host_(std::move(make_host)) {}

HostCopy::~HostCopy() { Abort(); }

// Lays out the host copies: a tensor's input, then its output unless they share their memory.
void HostCopy::LayOut() {
  const Topology& topo = *resources_->topology;
  staged_ = *request_;
  staged_.device = nullptr;
  staged_.ready.reset();
  size_t bytes = 0;
  for (const TensorArg& tensor : request_->tensors) {
    size_t in = bytes;
    if (!InPlace(request_->kind)) bytes += Aligned(InputBytes(*request_, tensor, topo));
    offsets_.emplace_back(in, bytes);
    bytes += Aligned(OutputBytes(*request_, tensor, topo));
  }

  bytes_ = bytes + kAlign;
}

Status HostCopy::Allocate() {
  Status status = resources_->staging.Get(request_->device, bytes_, &memory_);
  if (!status.ok()) {
    return {status.code(),
            "no host memory to copy from " + request_->memory + " memory: " + status.message()};
  }
  for (size_t i = 0; i < offsets_.size(); ++i) {
    staged_.tensors[i].in = memory_.get() + offsets_[i].first;
    staged_.tensors[i].out = memory_.get() + offsets_[i].second;
  }
  return {};
}

std::vector<DeviceCopy> HostCopy::Inputs() const {
  std::vector<DeviceCopy> copies;
  for (size_t i = 0; i < request_->tensors.size(); ++i) {
    size_t bytes = InputBytes(*request_, request_->tensors[i], *resources_->topology);
    if (bytes == 0) continue;
    copies.push_back({const_cast<void*>(staged_.tensors[i].in), request_->tensors[i].in, bytes});
  }
  return copies;
}

std::vector<DeviceCopy> HostCopy::Outputs() const {
  std::vector<DeviceCopy> copies;
  const Topology& topo = *resources_->topology;
  bool root = request_->kind == Kind::kBroadcast && topo.RankOf(request_->root) == topo.rank;
  for (size_t i = 0; i < request_->tensors.size(); ++i) {
    const TensorArg& tensor = request_->tensors[i];
    size_t bytes = OutputBytes(*request_, tensor, topo);
    if (bytes == 0 || (root && tensor.out == tensor.in)) continue;
    copies.push_back({tensor.out, staged_.tensors[i].out, bytes});
  }
  return copies;
}

Progress HostCopy::Advance() {
  if (done_) return Progress::kDone;
  if (copy_ != nullptr) {
    Status copied;
    if (!copy_->Poll(&copied)) return Progress::kNone;
    copy_.reset();
    if (!copied.ok() || host_ != nullptr) return Conclude(copied);
    host_ = make_host_(&staged_);
  }
  if (host_ == nullptr) {
    if (bytes_ == 0) LayOut();
    // To take memory may wait for the device, and so for a peer that has died, where this thread
    // would have to end what goes on there.
    bool takes = !resources_->staging.Has(request_->device, bytes_);
    if (takes && resources_->in_background > 0) return Progress::kNone;
    Status allocated = Allocate();
    if (!allocated.ok()) return Conclude(allocated);
    copy_ = std::make_shared<PendingWork>(resources_->shm, memory_);
    request_->device->CopyToHost(Inputs(), request_->ready,
                                 [copy = copy_](const Status& status) { copy->Finish(status); });
    return Progress::kSome;
  }

  Progress progress = host_->Advance();
  if (progress != Progress::kDone) return progress;
  if (!host_->status().ok()) return Conclude(host_->status());
  copy_ = std::make_shared<PendingWork>(resources_->shm, memory_);
  request_->device->CopyFromHost(Outputs(),
                                 [copy = copy_](const Status& status) { copy->Finish(status); });
  return Progress::kSome;
}

Progress HostCopy::Conclude(const Status& status) {
  status_ = status;
  done_ = true;
  return Progress::kDone;
}

std::vector<int> HostCopy::Missing() const {
  if (host_ != nullptr && copy_ == nullptr) return host_->Missing();
  return {resources_->topology->job_ranks[resources_->topology->rank]};
}

void HostCopy::Abort() {
  if (host_ != nullptr) host_->Abort();
  if (copy_ == nullptr || copy_->Abandon(kAbortSeconds)) return;
  LogError(request_->Title() + ": the device has not finished its copy " +
           std::to_string(static_cast<int>(kAbortSeconds)) + " s after the operation failed");
  copy_.reset();
}

}  // namespace smddp

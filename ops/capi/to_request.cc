#include "capi/to_request.h"

#include <memory>
#include <numeric>  // for accumulate
#include <string>
#include <utility>  // for move
#include <vector>

#include "core/c_numbers.h"
#include "transport/cuda/cuda_device.h"

namespace smddp {
namespace {

// ---- the enums of the C API, and the engine's ---------------------------------------------------

template <typename Enum>
constexpr bool Equal(Enum engine, int api) {
  return static_cast<int>(engine) == api;
}

static_assert(Equal(Code::kOk, SMDDP_OK) && Equal(Code::kUsage, SMDDP_USAGE) &&
              Equal(Code::kMismatch, SMDDP_MISMATCH) && Equal(Code::kTimeout, SMDDP_TIMEOUT) &&
              Equal(Code::kRemote, SMDDP_REMOTE) && Equal(Code::kSystem, SMDDP_SYSTEM) &&
              Equal(Code::kNotInitialized, SMDDP_NOT_INITIALIZED));
static_assert(Equal(Kind::kAllreduce, SMDDP_ALLREDUCE) &&
              Equal(Kind::kBroadcast, SMDDP_BROADCAST) &&
              Equal(Kind::kAllgather, SMDDP_ALLGATHER) && Equal(Kind::kBarrier, SMDDP_BARRIER) &&
              Equal(Kind::kAlltoall, SMDDP_ALLTOALL) &&
              Equal(Kind::kReduceScatter, SMDDP_REDUCESCATTER));
static_assert(Equal(ReduceOp::kAverage, SMDDP_AVERAGE) && Equal(ReduceOp::kSum, SMDDP_SUM) &&
              Equal(ReduceOp::kAdasum, SMDDP_ADASUM) && Equal(ReduceOp::kMin, SMDDP_MIN) &&
              Equal(ReduceOp::kMax, SMDDP_MAX) && Equal(ReduceOp::kProduct, SMDDP_PRODUCT));
static_assert(Equal(Matching::kInOrder, SMDDP_IN_ORDER) &&
              Equal(Matching::kPerhaps, SMDDP_IN_ORDER_OR_BY_NAME) &&
              Equal(Matching::kByName, SMDDP_BY_NAME) &&
              Equal(Matching::kSeveralInOrder, SMDDP_SEVERAL_IN_ORDER));
static_assert(Equal(DType::kFloat32, SMDDP_FLOAT32) && Equal(DType::kFloat64, SMDDP_FLOAT64) &&
              Equal(DType::kInt32, SMDDP_INT32) && Equal(DType::kUint8, SMDDP_UINT8) &&
              Equal(DType::kInt16, SMDDP_INT16) && Equal(DType::kInt8, SMDDP_INT8) &&
              Equal(DType::kInt64, SMDDP_INT64) && Equal(DType::kBool, SMDDP_BOOL) &&
              Equal(DType::kBfloat16, SMDDP_BFLOAT16) && Equal(DType::kUint16, SMDDP_UINT16) &&
              Equal(DType::kFloat16, SMDDP_FLOAT16));

bool IsKind(int32_t value) {
  switch (value) {
    case SMDDP_ALLREDUCE:
    case SMDDP_BROADCAST:
    case SMDDP_ALLGATHER:
    case SMDDP_BARRIER:
    case SMDDP_ALLTOALL:
    case SMDDP_REDUCESCATTER:
      return true;
    default:
      return false;
  }
}

bool IsEnginesOp(int32_t value) {
  switch (value) {
    case SMDDP_AVERAGE:
    case SMDDP_SUM:
    case SMDDP_MIN:
    case SMDDP_MAX:
    case SMDDP_PRODUCT:
      return true;
    default:
      return false;
  }
}

bool IsMatching(int32_t value) {
  return value >= SMDDP_IN_ORDER && value <= SMDDP_SEVERAL_IN_ORDER;
}

// ---- requests -----------------------------------------------------------------------------------

Status Refuse(const std::string& text) { return {Code::kUsage, text}; }

Status CheckReduction(const smddp_request& in, const DTypeInfo& dtype) {
  if (!IsEnginesOp(in.op)) {
    return Refuse("reduce op " + std::to_string(in.op) +
                  " is not supported; use Average, Sum, Min, Max or Product");
  }
  if (dtype.accum_size == 0) {
    return Refuse(std::string("reducing ") + dtype.name +
                  " is not supported; it takes float16, bfloat16, float32, float64, uint8, int8, "
                  "int16, int32 and int64");
  }
  return {};
}

// Any tensor with elements, to find its device by.
const void* SomeAddress(const std::vector<TensorArg>& tensors) {
  for (const TensorArg& tensor : tensors) {
    if (tensor.count() > 0) return tensor.in;
  }
  return nullptr;
}

Status SetMemory(const smddp_request& in, Request* out) {
  if (in.memory == SMDDP_HOST) return {};
  if (in.memory != SMDDP_CUDA) {
    return Refuse("unknown memory " + std::to_string(in.memory) + "; take one of smddp_memory");
  }
  CudaDevice* device = nullptr;
  const void* address = SomeAddress(out->tensors);
  Status status = CudaDevice::Find(address, &device, in.stream);
  if (!status.ok()) return status;
  DevicePoint ready;
  // Without elements nothing is read, and with SMDDP_EVERY_STREAM the device may be another one;
  // where other ranks' rows will be written, PlaceOutput() finds it. In a stream that is given, XLA
  // may still use the memory in which the call's end is noted.
  bool waits = address != nullptr || in.part_bytes != nullptr || in.stream != SMDDP_EVERY_STREAM;
  if (waits) status = device->Record(in.stream, &ready);
  if (status.ok()) out->PlaceOn(device, std::move(ready));
  return status;
}

// Sets the sizes of the parts of an allgather or alltoall; part_bytes may be null.
Status SetParts(const int64_t* part_bytes, const Topology& topo, Request* out) {
  if (!out->gathers()) return {};
  size_t size = static_cast<size_t>(topo.size), bytes = out->bytes();
  size_t parts = out->kind == Kind::kAllgather ? size : size * size;
  if (part_bytes != nullptr) {
    out->part_bytes.assign(part_bytes, part_bytes + parts);
    return {};
  }
  if (out->kind == Kind::kAlltoall && bytes % size != 0) {
    return Refuse("alltoall of " + std::to_string(bytes) + " bytes, which " + std::to_string(size) +
                  " ranks do not divide, needs part_bytes");
  }
  out->part_bytes.assign(parts, out->kind == Kind::kAllgather ? bytes : bytes / size);
  return {};
}

// Sets where the parts of an allgather or alltoall are, if they are not in one tensor.
Status SetPlaces(const smddp_request& in, const Topology& topo, Request* out) {
  const bool given = in.outputs != nullptr || in.inputs != nullptr;
  const bool takes = in.inputs == nullptr ? out->gathers() : out->kind == Kind::kAlltoall;
  if (given && (!takes || out->device != nullptr)) {
    return Refuse(std::string("several outputs or inputs are not for ") + KindName(out->kind) +
                  " in " + out->memory + " memory");
  }
  for (int r = 0; r < topo.size; ++r) {
    if (in.outputs != nullptr) out->part_outputs.push_back(static_cast<char*>(in.outputs[r]));
    if (in.inputs != nullptr) out->part_inputs.push_back(static_cast<const char*>(in.inputs[r]));
  }
  return {};
}

}  // namespace

Status PlaceOutput(const std::vector<int64_t>& rows, const void* out, void* stream,
                   Request* request) {
  if (request->device == nullptr) return {};
  TensorArg gathered = request->tensors[0];
  bool has_rows = gathered.count() > 0;
  if (!gathered.dims.empty()) {
    gathered.dims[0] = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  }
  if (gathered.count() == 0) return {};
  if (!has_rows) {
    CudaDevice* device = nullptr;
    Status status = CudaDevice::Find(out, &device);
    if (!status.ok()) return status;
    request->device = device;
  }
  return request->device->Record(stream, &request->ready);
}

Status ToRequest(const smddp_request& in, const Topology& topo, Parts parts, Request* out) {
  const DTypeInfo* dtype = FindDType(in.dtype);
  if (!IsKind(in.kind)) {
    return Refuse("unknown collective " + std::to_string(in.kind) + "; take one of smddp_kind");
  }
  if (!IsMatching(in.matching)) {
    return Refuse("unknown matching " + std::to_string(in.matching) +
                  "; take one of smddp_matching");
  }
  if (!(in.timeout_seconds >= 0)) {
    return Refuse("timeout_seconds is " + FormatNumber(in.timeout_seconds) + "; it must be >= 0");
  }
  if (dtype == nullptr) {
    return Refuse("TensorFlow dtype number " + std::to_string(in.dtype) + " is not supported");
  }
  out->kind = static_cast<Kind>(in.kind);
  if (out->reduces()) {
    Status checked = CheckReduction(in, *dtype);
    if (!checked.ok()) return checked;
  }
  if (out->kind == Kind::kBroadcast && topo.RankOf(in.root) < 0) {
    return Refuse("root_rank " + std::to_string(in.root) + " is not among the " +
                  std::to_string(topo.size) + " ranks that take part");
  }

  out->dtype = dtype->dtype;
  out->op = static_cast<ReduceOp>(in.op);
  out->root = in.root;
  out->process_set = in.process_set;
  out->prescale = in.prescale;
  out->postscale = in.postscale;
  out->name = in.name != nullptr ? in.name : "";
  out->matching = static_cast<Matching>(in.matching);
  out->timeout_seconds = in.timeout_seconds;
  if (in.description != nullptr && *in.description != '\0') {
    out->plan_text = std::make_shared<const std::string>(in.description);
  }

  out->tensors.reserve(in.num_tensors);
  for (int i = 0; i < in.num_tensors; ++i) {
    const smddp_tensor& tensor = in.tensors[i];
    out->tensors.push_back(
        {tensor.in, tensor.out, std::vector<int64_t>(tensor.dims, tensor.dims + tensor.ndim)});
  }
  Status placed = SetMemory(in, out);
  if (!placed.ok()) return placed;
  if (parts == Parts::kKnown) {
    Status places = SetPlaces(in, topo, out);
    return places.ok() ? SetParts(in.part_bytes, topo, out) : places;
  }
  if (out->gathers() && in.num_tensors == 1) return {};
  return Refuse(
      std::string("sizes are exchanged for an allgather or alltoall of one tensor, not ") + "for " +
      KindName(out->kind) + " of " + std::to_string(in.num_tensors) + " tensors");
}

}  // namespace smddp

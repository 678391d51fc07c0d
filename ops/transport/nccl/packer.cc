#include "transport/nccl/packer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>  // for move

namespace smddp {
namespace {

bool IsShort(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBfloat16; }

// Sums and products of 16-bit floats are made in float32.
bool Widens(const DeviceCollective& reduction) {
  using Op = DeviceCollective::Op;
  return IsShort(reduction.dtype) && (reduction.op == Op::kSum || reduction.op == Op::kProduct);
}

// Whether the dtype has the factor, or one that differs by its rounding only.
bool Has(DType dtype, double factor) {
  if (dtype == DType::kFloat64) return std::isnormal(factor);
  return std::fabs(factor) >= 0x1p-126 && std::fabs(factor) < 0x1p127;
}

PackType TypeOf(const DeviceCollective& reduction) {
  if (Widens(reduction)) {
    return reduction.dtype == DType::kFloat16 ? PackType::float16 : PackType::bfloat16;
  }
  if (!reduction.scaled()) return PackType::bytes;
  return reduction.dtype == DType::kFloat64 ? PackType::float64 : PackType::float32;
}

// How a reduction lies on the wire. Offsets are in elements of the kernels' wire type.
struct Layout {
  explicit Layout(const DeviceCollective& reduction)
      : type(TypeOf(reduction)), dtype(Widens(reduction) ? DType::kFloat32 : reduction.dtype) {
    size_t size = Info(dtype).size;
    unit = type == PackType::bytes ? 1 : size;
    for (const Span& span : reduction.spans) {
      if (span.count == 0) continue;
      uint64_t count = span.count * (size / unit);
      entries.push_back({span.in, span.out, end, count});
      end += PackAligned(count * unit) / unit;
    }
  }
  uint64_t wire_bytes() const { return end * unit; }
  uint64_t table_bytes() const { return entries.size() * sizeof(PackEntry); }

  PackType type;
  DType dtype;    // what NCCL reduces
  uint64_t unit;  // bytes
  uint64_t end = 0;
  std::vector<PackEntry> entries;
};

}  // namespace

Status KeptMemory::Get(size_t bytes, char** memory) {
  if (bytes > bytes_) {
    constexpr size_t kLeast = 64 << 10;
    size_t size = kLeast;
    while (size < bytes) size *= 2;
    void* made = nullptr;
    Status status = device_->Allocate(size, &made);
    if (!status.ok()) return status;
    all_.push_back(made);
    bytes_ = size;
  }
  *memory = static_cast<char*>(all_.back());
  return {};
}

void KeptMemory::Free() {
  for (void* memory : all_) device_->Free(memory);
  all_.clear();
  bytes_ = 0;
}

bool Packer::Needed(const DeviceCollective& reduction) {
  if (Widens(reduction)) return true;
  // NCCL takes the factor in the dtype of the tensors.
  return reduction.scaled() && !Has(reduction.dtype, reduction.prescale * reduction.postscale);
}

bool Packer::Pays(const DeviceCollective& reduction) {
  if (!reduction.reduces()) return false;
  if (Needed(reduction)) return true;
  auto has_elements = [](const Span& span) { return span.count > 0; };
  const auto& spans = reduction.spans;
  return std::count_if(spans.begin(), spans.end(), has_elements) > 1;
}

Status Packer::Take(uint64_t wire_bytes, uint64_t table_bytes, Places* places) {
  std::lock_guard<std::mutex> lock(mutex_);
  Status status = wire_.Get(wire_bytes, &places->wire);
  return status.ok() ? table_.Get(table_bytes, &places->table) : status;
}

Status Packer::Reserve(const DeviceCollective& reduction) {
  Layout layout(reduction);
  Places ignored{};
  return Take(std::min(layout.wire_bytes(), most_wire_), layout.table_bytes(), &ignored);
}

Status Packer::HostTable(size_t bytes, std::shared_ptr<char>* table) {
  for (const auto& [memory, size] : host_tables_) {
    if (memory.use_count() > 1 || size < bytes) continue;
    *table = memory;
    return {};
  }
  constexpr size_t kLeast = 4096;
  size_t size = kLeast;
  while (size < bytes) size *= 2;
  void* made = nullptr;
  Status status = device_->AllocateHost(size, &made);
  if (!status.ok()) return status;
  *table = std::shared_ptr<char>(static_cast<char*>(made),
                                 [device = device_](char* old) { device->FreeHost(old); });
  host_tables_.emplace_back(*table, size);
  return {};
}

Status Packer::Reduce(const DeviceCollective& reduction, void* stream, std::shared_ptr<char>* table,
                      const AllReduce& all_reduce) {
  Layout layout(reduction);
  Places places{};
  Status status = Take(std::min(layout.wire_bytes(), most_wire_), layout.table_bytes(), &places);
  if (status.ok()) status = HostTable(layout.table_bytes(), table);
  if (!status.ok()) return status;
  // What runs in the stream before has read the table of the reduction before.
  std::memcpy(table->get(), layout.entries.data(), layout.table_bytes());
  status = device_->CopyIn(stream, {places.table, table->get(), layout.table_bytes()});

  double before = reduction.prescale, behind = reduction.postscale;
  if (!Has(layout.dtype, before) || !Has(layout.dtype, behind)) {
    behind *= before;
    before = 1;
  }
  PackArgs args{};
  args.entries = reinterpret_cast<const PackEntry*>(places.table);
  args.num_entries = layout.entries.size();
  args.wire = places.wire;
  for (uint64_t at = 0; at < layout.end && status.ok(); at = args.end) {
    args.begin = at;
    args.end = std::min(layout.end, at + most_wire_ / layout.unit);
    args.factor = before;
    status = kernels_->Pack(layout.type, args, stream);
    size_t bytes = (args.end - args.begin) * layout.unit;
    if (status.ok())
      status = all_reduce(places.wire, bytes / Info(layout.dtype).size, layout.dtype);
    args.factor = behind;
    if (status.ok()) status = kernels_->Unpack(layout.type, args, stream);
  }
  return status;
}

void Packer::Release() {
  std::lock_guard<std::mutex> lock(mutex_);
  wire_.Free();
  table_.Free();
  host_tables_.clear();
}

}  // namespace smddp

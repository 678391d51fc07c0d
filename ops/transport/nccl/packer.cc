#include "transport/nccl/packer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>  // for move

namespace smddp {
namespace {

// Whether the dtype has the factor, or one that differs by its rounding only.
bool Has(DType dtype, double factor) {
  if (dtype == DType::kFloat64) return std::isnormal(factor);
  return std::fabs(factor) >= 0x1p-126 && std::fabs(factor) < 0x1p127;
}

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
  if (PackWidens(reduction)) return true;
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

Status Packer::Take(const PackLayout& layout, Places* places) {
  std::lock_guard<std::mutex> lock(mutex_);
  Status status = wire_.Get(layout.wire_bytes(), &places->wire);
  return status.ok() ? table_.Get(layout.table_bytes(), &places->table) : status;
}

Status Packer::Reserve(const DeviceCollective& reduction) {
  Places ignored{};
  return Take(PackLayout(reduction, rank_, most_wire_), &ignored);
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
                      const Reduction& reduce) {
  PackLayout layout(reduction, rank_, most_wire_);
  Places places{};
  Status status = Take(layout, &places);
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
  for (const PackLayout::Piece& piece : layout.pieces) {
    if (!status.ok()) break;
    args.wire = places.wire;
    args.begin = piece.begin;
    args.end = piece.end;
    args.factor = before;
    status = kernels_->Pack(layout.type, args, stream);
    size_t count = piece.count * layout.unit / Info(layout.dtype).size;
    if (status.ok()) status = reduce(places.wire, count, layout.dtype);
    args.wire = places.wire + (piece.own - piece.begin) * layout.unit;
    args.begin = piece.own;
    args.end = piece.own + piece.count;
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

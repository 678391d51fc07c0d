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

// What elements are multiplied by when they are packed, and when their results are unpacked.
std::pair<double, double> Factors(const DeviceCollective& reduction, DType wire) {
  double before = reduction.prescale, behind = reduction.postscale;
  if (Has(wire, before) && Has(wire, behind)) return {before, behind};
  return {1, behind * before};
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
  if (PackWidens(reduction) || reduction.among_groups) return true;
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

// Slices of one length each may end behind the tensors.
PackLayout Packer::LayOut(const DeviceCollective& reduction) const {
  uint64_t slack = reduction.among_groups ? ranks_ * kPackAlign : 0;
  return {reduction, rank_, std::max(most_wire_, slack + kPackAlign) - slack};
}

uint64_t Packer::SliceOf(const PackLayout& layout, const PackLayout::Piece& piece) const {
  uint64_t bytes = (piece.count * layout.unit + ranks_ - 1) / ranks_;
  return PackAligned(bytes) / Info(layout.dtype).size;
}

DeviceSlices Packer::SlicesOf(const DeviceCollective& reduction) const {
  PackLayout layout = LayOut(reduction);
  DeviceSlices slices;
  slices.dtype = layout.dtype;
  for (const auto& piece : layout.pieces) slices.counts.push_back(SliceOf(layout, piece));
  return slices;
}

// Where a reducescatter leaves its results differs by rank, which a symmetric window does not
// allow.
Status Packer::Take(const DeviceCollective& reduction, const PackLayout& layout, Places* places) {
  bool scatters =
      reduction.kind == DeviceCollective::Kind::kReduceScatter || reduction.among_groups;
  std::lock_guard<std::mutex> lock(mutex_);
  Status status;
  if (!scatters && registered_ != nullptr) {
    places->wire = registered_.get();
  } else {
    uint64_t slack = reduction.among_groups ? ranks_ * kPackAlign : 0;
    status = wire_.Get(layout.wire_bytes() + slack, &places->wire);
  }
  return status.ok() ? table_.Get(layout.table_bytes(), &places->table) : status;
}

Status Packer::Reserve(const DeviceCollective& reduction) {
  Places ignored{};
  return Take(reduction, LayOut(reduction), &ignored);
}

void Packer::TakeHostTables() {
  constexpr size_t kTables = 18;  // of two channels that each have eight ahead of one
  constexpr size_t kBytes = 64 << 10;
  void* made = nullptr;
  if (!device_->AllocateHost(kTables * kBytes, &made).ok()) return;
  std::shared_ptr<char> all(static_cast<char*>(made),
                            [device = device_](char* old) { device->FreeHost(old); });
  for (size_t i = 0; i < kTables; ++i) {
    host_tables_.emplace_back(std::shared_ptr<char>(all.get() + i * kBytes, [all](char*) {}),
                              kBytes);
  }
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

// Takes the memory, and has the table copied into it.
Status Packer::Begin(const DeviceCollective& reduction, const PackLayout& layout, void* stream,
                     std::shared_ptr<char>* table, Places* places, PackArgs* args) {
  Status status = Take(reduction, layout, places);
  if (status.ok()) status = HostTable(layout.table_bytes(), table);
  if (!status.ok()) return status;
  // What runs in the stream before has read the table of the reduction before.
  std::memcpy(table->get(), layout.entries.data(), layout.table_bytes());
  args->entries = reinterpret_cast<const PackEntry*>(places->table);
  args->num_entries = layout.entries.size();
  return device_->CopyIn(stream, {places->table, table->get(), layout.table_bytes()});
}

Status Packer::Reduce(const DeviceCollective& reduction, void* stream, std::shared_ptr<char>* table,
                      const Reduction& reduce) {
  PackLayout layout = LayOut(reduction);
  Places places{};
  PackArgs args{};
  Status status = Begin(reduction, layout, stream, table, &places, &args);
  auto [before, behind] = Factors(reduction, layout.dtype);
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

Status Packer::ToHost(const DeviceCollective& reduction, void* stream, std::shared_ptr<char>* table,
                      const Reduction& scatter) {
  PackLayout layout = LayOut(reduction);
  const PackLayout::Piece& piece = layout.pieces[reduction.piece];
  Places places{};
  PackArgs args{};
  Status status = Begin(reduction, layout, stream, table, &places, &args);
  held_ = places.wire;
  args.wire = held_;
  args.begin = piece.begin;
  args.end = piece.end;
  args.factor = Factors(reduction, layout.dtype).first;
  if (status.ok()) status = kernels_->Pack(layout.type, args, stream);
  uint64_t slice = SliceOf(layout, piece), bytes = slice * Info(layout.dtype).size;
  if (status.ok()) status = scatter(held_, slice, layout.dtype);
  if (!status.ok()) return status;
  const char* own = held_ + static_cast<uint64_t>(rank_) * bytes;
  return device_->CopyOut(stream, {reduction.slice, own, bytes});
}

Status Packer::FromHost(const DeviceCollective& reduction, void* stream,
                        std::shared_ptr<char>* table, const Reduction& gather) {
  PackLayout layout = LayOut(reduction);
  const PackLayout::Piece& piece = layout.pieces[reduction.piece];
  uint64_t slice = SliceOf(layout, piece), bytes = slice * Info(layout.dtype).size;
  Places places{};
  PackArgs args{};
  Status status = Begin(reduction, layout, stream, table, &places, &args);
  char* own = held_ + static_cast<uint64_t>(rank_) * bytes;
  if (status.ok()) status = device_->CopyIn(stream, {own, reduction.slice, bytes});
  if (status.ok()) status = gather(held_, slice, layout.dtype);
  args.wire = held_;
  args.begin = piece.begin;
  args.end = piece.end;
  args.factor = Factors(reduction, layout.dtype).second;
  return status.ok() ? kernels_->Unpack(layout.type, args, stream) : status;
}

void Packer::Release() {
  std::lock_guard<std::mutex> lock(mutex_);
  registered_.reset();
  wire_.Free();
  table_.Free();
  host_tables_.clear();
}

}  // namespace smddp

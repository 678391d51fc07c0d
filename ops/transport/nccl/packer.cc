#include "transport/nccl/packer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

bool Packer::Fits(const DeviceCollective& reduction) const {
  return LayOut(reduction).table_bytes() <= PackTables::kMostBytes;
}

PackLayout Packer::LayOut(const DeviceCollective& reduction) const {
  return {reduction, rank_, memory_.wire_bytes};
}

std::shared_ptr<char> Packer::Table(const DeviceCollective& reduction) const {
  return tables_.Get(LayOut(reduction).table_bytes());
}

// What runs in the stream before has read the table of the reduction before.
Status Packer::CopyTable(const PackLayout& layout, void* stream, char* table) {
  std::memcpy(table, layout.entries.data(), layout.table_bytes());
  return device_->CopyIn(stream, {memory_.table.get(), table, layout.table_bytes()});
}

// For the range of the reduction's wire that begins at `wire`.
PackArgs Packer::ArgsOf(const PackLayout& layout, char* wire, uint64_t begin, uint64_t end,
                        double factor) const {
  PackArgs args{};
  args.entries = reinterpret_cast<const PackEntry*>(memory_.table.get());
  args.num_entries = layout.entries.size();
  args.wire = wire;
  args.begin = begin;
  args.end = end;
  args.factor = factor;
  return args;
}

Status Packer::Reduce(const DeviceCollective& reduction, void* stream, char* table,
                      const Call& reduce) {
  PackLayout layout = LayOut(reduction);
  Status status = CopyTable(layout, stream, table);
  auto [before, behind] = Factors(reduction, layout.dtype);
  char* wire = memory_.wire.get();
  for (const PackLayout::Piece& piece : layout.pieces) {
    char* result = wire + piece.result * layout.unit;
    size_t count = piece.count * layout.unit / Info(layout.dtype).size;
    PackArgs pack = ArgsOf(layout, wire, piece.begin, piece.end, before);
    PackArgs unpack = ArgsOf(layout, result, piece.own, piece.own + piece.count, behind);
    if (status.ok()) status = kernels_->Pack(layout.type, pack, stream);
    if (status.ok()) status = reduce(wire, result, count, layout.dtype);
    if (status.ok()) status = kernels_->Unpack(layout.type, unpack, stream);
  }
  return status;
}

void Packer::Release() {
  memory_.wire.reset();
  memory_.table.reset();
  tables_.Release();
}

}  // namespace smddp

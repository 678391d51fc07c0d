#include "transport/nccl/packer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace smddp {
namespace {

// Pieces of an allreduce among groups that the wire holds at once: some are reduced or gathered
// while the host exchanges others.
constexpr uint64_t kPlaces = 8;

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

bool Packer::Fits(const DeviceCollective& reduction) const {
  return LayOut(reduction).table_bytes() <= PackTables::kMostBytes;
}

// Each piece of an allreduce among groups has its place on the wire.
uint64_t Packer::PlaceBytes() const {
  return memory_.wire_bytes / kPlaces / kPackAlign * kPackAlign;
}

// Slices of one length each may end behind the tensors.
PackLayout Packer::LayOut(const DeviceCollective& reduction) const {
  if (!reduction.among_groups) return {reduction, static_cast<int>(rank_), memory_.wire_bytes};
  uint64_t slack = ranks_ * kPackAlign, place = std::max(PlaceBytes(), slack + kPackAlign);
  return {reduction, static_cast<int>(rank_), place - slack};
}

uint64_t Packer::SliceOf(const PackLayout& layout, const PackLayout::Piece& piece) const {
  uint64_t bytes = (piece.count * layout.unit + ranks_ - 1) / ranks_;
  return PackAligned(bytes) / Info(layout.dtype).size;
}

Packer::Slices Packer::SlicesAt(const PackLayout& layout, size_t piece) const {
  Slices slices{};
  slices.wire = memory_.wire.get() + piece % kPlaces * PlaceBytes();
  slices.count = SliceOf(layout, layout.pieces[piece]);
  slices.bytes = slices.count * Info(layout.dtype).size;
  slices.own = slices.wire + rank_ * slices.bytes;
  return slices;
}

DeviceSlices Packer::SlicesOf(const DeviceCollective& reduction) const {
  PackLayout layout = LayOut(reduction);
  DeviceSlices slices;
  slices.dtype = layout.dtype;
  slices.at_once = kPlaces;
  for (const auto& piece : layout.pieces) slices.counts.push_back(SliceOf(layout, piece));
  return slices;
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

Status Packer::ToHost(const DeviceCollective& reduction, void* stream, char* table,
                      const Call& scatter) {
  PackLayout layout = LayOut(reduction);
  const PackLayout::Piece& piece = layout.pieces[reduction.piece];
  Slices slices = SlicesAt(layout, reduction.piece);
  PackArgs pack =
      ArgsOf(layout, slices.wire, piece.begin, piece.end, Factors(reduction, layout.dtype).first);
  Status status = CopyTable(layout, stream, table);
  if (status.ok()) status = kernels_->Pack(layout.type, pack, stream);
  if (status.ok()) status = scatter(slices.wire, slices.own, slices.count, layout.dtype);
  if (!status.ok()) return status;
  return device_->CopyOut(stream, {reduction.slice, slices.own, slices.bytes});
}

Status Packer::FromHost(const DeviceCollective& reduction, void* stream, char* table,
                        const Call& gather) {
  PackLayout layout = LayOut(reduction);
  const PackLayout::Piece& piece = layout.pieces[reduction.piece];
  Slices slices = SlicesAt(layout, reduction.piece);
  PackArgs unpack =
      ArgsOf(layout, slices.wire, piece.begin, piece.end, Factors(reduction, layout.dtype).second);
  Status status = CopyTable(layout, stream, table);
  if (status.ok()) status = device_->CopyIn(stream, {slices.own, reduction.slice, slices.bytes});
  if (status.ok()) status = gather(slices.own, slices.wire, slices.count, layout.dtype);
  return status.ok() ? kernels_->Unpack(layout.type, unpack, stream) : status;
}

void Packer::Release() {
  memory_.wire.reset();
  memory_.table.reset();
  tables_.Release();
}

}  // namespace smddp

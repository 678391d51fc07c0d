// The part of Pipeline that writes into slots through the cache or past it, and measures which is
// faster; see collective/staging.h.
#include <cstring>

#include "collective/pipeline.h"
#include "core/deadline.h"
#include "kernels/cpu/copy.h"

namespace smddp {

int Pipeline::StagingKind() const {
  // Nobody reads the slots of a node's only rank; a joined rank that stands by writes nothing.
  bool stands_by = request_->has_joined() && request_->tensors.empty();
  if (shm_->size() == 1 || stands_by) return -1;
  size_t bytes = request_->reduces() ? request_->bytes() : request_->moved_bytes();
  return StagingChoice::KindOf(bytes, num_chunks_, one_hop_);
}

void Pipeline::Write(size_t i, char* slot, const void* from, size_t bytes) {
  bytes_ += bytes;
  if (Streams(i)) {
    StreamBytes(slot, from, bytes);
  } else {
    std::memcpy(slot, from, bytes);
  }
}

Writing Pipeline::WrittenBy(int local_rank, size_t i) const {
  const ChannelCell& cell = shm_->channel_cell(local_rank, resources_->index);
  return Writing::Decode(cell.written[(base_ + i) % kSlots].load(std::memory_order_relaxed));
}

bool Pipeline::Streams(size_t i) const { return WrittenBy(shm_->rank(), i).streaming; }

void Pipeline::ChooseStaging() {
  // With n ranks, of n bytes that a rank writes, all others together read 2 (n - 1) in an
  // allreduce.
  float reads = 2.0f / static_cast<float>(shm_->size()), costs[kWritings] = {};
  for (int p = 0; p < shm_->size(); ++p) {
    if (p == shm_->rank()) continue;
    const auto& report = shm_->pull_report(p, resources_->index, shm_->rank()).cost[kind_];
    float cached = report[0].load(std::memory_order_relaxed);
    float streaming = report[1].load(std::memory_order_relaxed);
    if (cached == 0 || streaming == 0) continue;
    costs[0] += reads * cached;
    costs[1] += reads * streaming;
  }
  resources_->staging_choice.Choose(kind_, costs);
}

void Pipeline::StageTimed(size_t i) {
  StagingChoice& choice = resources_->staging_choice;
  ChannelCell& self = shm_->channel_cell(shm_->rank(), resources_->index);
  auto& written = self.written[(base_ + i) % kSlots];
  Writing writing = choice.Next(kind_);
  written.store(writing.Encode(), std::memory_order_relaxed);
  bool timed = choice.TimesWrite(kind_);
  double start = timed ? NowSeconds() : 0;
  bytes_ = 0;
  Stage(i);
  if (writing.streaming) StreamFence();
  if (timed) choice.Wrote(kind_, writing, bytes_, NowSeconds() - start);
  // From a broadcast's receivers, say, nobody reads.
  if (one_hop_ && bytes_ == 0) written.store(Writing().Encode(), std::memory_order_relaxed);
}

// A one-hop operation reads from all peers at once, so its time tells something only if all that
// wrote did so in the same way.
bool Pipeline::CombineTimed(size_t i) {
  bool timed = one_hop_ && resources_->staging_choice.TimesReads(kind_);
  Writing writing;
  bool alike = true;
  for (int p = 0; p < shm_->size() && one_hop_ && kind_ >= 0; ++p) {
    Writing one = WrittenBy(p, i);
    if (p == shm_->rank() || !one.chosen) continue;
    alike &= !writing.chosen || writing.Encode() == one.Encode();
    writing = one;
  }
  timed = writing.chosen && alike && (timed || writing.probe);
  if (!timed) return Combine(i);
  bytes_ = 0;
  double start = NowSeconds();
  if (!Combine(i)) return false;
  double seconds = NowSeconds() - start;
  for (int p = 0; p < shm_->size(); ++p) {
    if (p == shm_->rank()) continue;
    PullReport& report = shm_->pull_report(shm_->rank(), resources_->index, p);
    AddCost(&report.cost[kind_][writing.streaming], bytes_, seconds, writing.probe);
  }
  return true;
}

void Pipeline::UnpackTimed(size_t i, int owner, bool timed) {
  Writing writing = WrittenBy(owner, i);
  if (!timed && (!writing.probe || kind_ < 0)) {
    Unpack(i, owner);
    return;
  }
  bytes_ = 0;
  double start = NowSeconds();
  Unpack(i, owner);
  PullReport& report = shm_->pull_report(shm_->rank(), resources_->index, owner);
  AddCost(&report.cost[kind_][writing.streaming], bytes_, NowSeconds() - start, writing.probe);
}

}  // namespace smddp

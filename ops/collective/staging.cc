#include "collective/staging.h"

#include <algorithm>

#include "kernels/cpu/copy.h"

namespace smddp {
namespace {

// Below this the counters' lines are most of the time.
constexpr size_t kSmallestBytes = 4096;
constexpr unsigned kTimedEvery = 4;
constexpr unsigned kChoosesEvery = 16;  // it reads a line of every peer
constexpr unsigned kFirstProbe = 8;
// Probes become rarer while nothing changes, and rarer still if they cost much more than the usual
// way: they shall cost 2% at most. Ranks that have come together lose more by writing past their
// caches until the next probe.
constexpr unsigned kLongestInterval = 128, kLongestIntervalOfDearProbes = 256;
constexpr float kDear = 2;
// A change must promise this much.
constexpr float kGain = 0.9f;

// The first chunks touch the slots' pages.
bool Timed(unsigned chunks) { return chunks > 2 * kSlots && chunks % kTimedEvery == 0; }

// The system's interruptions only ever add to a time. So a smaller sample counts half, and a larger
// one an eighth, as if it were twice what is known at most. Probes are rare and count more: a
// smaller one is believed at once, since a wrong change is soon taken back.
float Moved(float figure, float sample, bool probe) {
  if (figure == 0) return sample;
  float weight = sample < figure ? (probe ? 1 : 0.5f) : (probe ? 0.5f : 0.125f);
  return figure + (std::min(sample, 2 * figure) - figure) * weight;
}

float Cost(size_t bytes, double seconds) {
  return static_cast<float>(seconds * 1e9 * 1024 / static_cast<double>(bytes));
}

}  // namespace

StagingMode ToStagingMode(const std::string& text) {
  if (text == "cached") return StagingMode::kCached;
  return text == "streaming" ? StagingMode::kStreaming : StagingMode::kAuto;
}

void AddCost(std::atomic<float>* figure, size_t bytes, double seconds, bool probe) {
  if (bytes == 0 || seconds <= 0) return;
  float known = figure->load(std::memory_order_relaxed);
  figure->store(Moved(known, Cost(bytes, seconds), probe), std::memory_order_relaxed);
}

int StorePolicy::KindOf(size_t bytes, size_t chunks, bool one_hop) {
  if (bytes < kSmallestBytes) return -1;
  return (one_hop ? 2 : 0) + (chunks > 1 ? 1 : 0);
}

Writing StorePolicy::Next(int kind) {
  if (kind < 0 || !kHasStreamingStores) return {};
  OfKind& own = of_[kind];
  own.timed = own.chooses = false;
  if (mode_ != StagingMode::kAuto) return {mode_ == StagingMode::kStreaming, false, true};
  Writing writing{own.streaming, --own.until_probe == 0, true};
  if (writing.probe) {
    writing.streaming = !own.streaming;
    own.interval = std::min(2 * own.interval,
                            own.probes_are_dear ? kLongestIntervalOfDearProbes : kLongestInterval);
    own.until_probe = own.interval;
  }
  own.timed = Timed(++own.writes) || writing.probe;
  own.chooses = own.writes % kChoosesEvery == 0;
  return writing;
}

bool StorePolicy::TimesReads(int kind) { return kind >= 0 && Timed(++of_[kind].reads); }

void StorePolicy::Wrote(int kind, Writing writing, size_t bytes, double seconds) {
  if (bytes == 0 || seconds <= 0) return;
  float& cost = of_[kind].cost[writing.streaming];
  cost = Moved(cost, Cost(bytes, seconds), writing.probe);
}

void StorePolicy::Choose(int kind, const float (&readers)[kWritings]) {
  OfKind& own = of_[kind];
  float costs[kWritings];
  for (int w = 0; w < kWritings; ++w) {
    if (own.cost[w] == 0 || readers[w] == 0) return;
    costs[w] = own.cost[w] + readers[w];
  }
  float now = costs[own.streaming], other = costs[!own.streaming];
  own.probes_are_dear = other > kDear * now;
  if (other < kGain * now) {
    own.streaming = !own.streaming;
    own.probes_are_dear = false;
    own.interval = own.until_probe = kFirstProbe;
  }
}

}  // namespace smddp

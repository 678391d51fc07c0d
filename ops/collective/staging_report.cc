#include "collective/staging_report.h"

#include <iomanip>
#include <sstream>

#include "collective/staging.h"

namespace smddp {
namespace {

const char* Writes(const ShmGroup& shm) {
  bool cached = false, streaming = false;
  for (int channel = 0; channel < kChannels; ++channel) {
    for (const auto& code : shm.channel_cell(shm.rank(), channel).written) {
      Writing writing = Writing::Decode(code.load(std::memory_order_relaxed));
      if (!writing.chosen || writing.probe) continue;
      (writing.streaming ? streaming : cached) = true;
    }
  }
  return !streaming ? "cached" : cached ? "mixed" : "streaming";
}

// Nanoseconds per KiB; 0 if not measured.
float LeastCost(const ShmGroup& shm, int writer, int way) {
  float least = 0;
  for (int channel = 0; channel < kChannels; ++channel) {
    for (const auto& costs : shm.pull_report(shm.rank(), channel, writer).cost) {
      float cost = costs[way].load(std::memory_order_relaxed);
      if (cost > 0 && (least == 0 || cost < least)) least = cost;
    }
  }
  return least;
}

}  // namespace

std::string StagingJson(const ShmGroup& shm, const Topology& topo) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << "{\"writes\": \"" << Writes(shm)
      << "\", \"read_gbs\": {";
  const char* before = "";
  for (int p = 0; p < shm.size(); ++p) {
    if (p == shm.rank()) continue;
    out << before << "\"" << topo.JobRank(p) << "\": {";
    for (int way = 0; way < kWritings; ++way) {
      float cost = LeastCost(shm, p, way);
      out << (way == 0 ? "\"cached\": " : ", \"streaming\": ");
      if (cost > 0) {
        out << 1024 / cost;
      } else {
        out << "null";
      }
    }
    out << "}";
    before = ", ";
  }
  out << "}}";
  return out.str();
}

}  // namespace smddp

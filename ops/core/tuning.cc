#include "core/tuning.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>  // for pair

#include "core/c_numbers.h"

namespace smddp {
namespace {

constexpr double kMicro = 1e-6, kGiga = 1e9;

constexpr size_t kDefaultChunkBytes = 1 << 20;
// Where a node has a single owner: a receiver's consent to a message queues behind what it sends
// itself, so the link idles for long messages. With several owners it carries the others' then.
constexpr size_t kLoneMessageBytes = 128 << 10;
// Below this a message costs the processor more than its bytes do (1 us at each end, copies of 5
// GB/s; benchmarks/simulate_hosts.py), so very many nodes take larger chunks.
constexpr size_t kLeastMessageBytes = 4 << 10;
constexpr size_t kDefaultAggregateBytes = 128 << 10;
// While a chunk is on the link the next ones wait for memory, ranks and messages; with this many
// latencies in a chunk's time they cost an eighth of it at most.
constexpr double kLatenciesInChunk = 8;
constexpr size_t kLeastChunkBytes = 256 << 10, kMostChunkBytes = 4 << 20;
// A byte that is aggregated is copied into a slot and out of it.
constexpr double kExtraCopies = 2;
constexpr size_t kLeastAggregateBytes = 1 << 10, kMostAggregateBytes = 256 << 10;

// The power of two that is nearest in ratio, within the limits. Coarse, so that a measurement that
// is a little off changes nothing.
size_t NearestPower(double bytes, size_t least, size_t most) {
  bytes = std::clamp(bytes, static_cast<double>(least), static_cast<double>(most));
  return size_t{1} << static_cast<int>(std::lround(std::log2(bytes)));
}

std::string Format(const char* format, double a, double b, double c) {
  CNumbers as_in_c;
  char text[160];
  std::snprintf(text, sizeof text, format, a, b, c);
  return text;
}

Status Refuse(const std::string& text, const std::string& why) {
  return {Code::kUsage, "SMDDP_TUNING='" + text + "' " + why +
                            "; it takes default, measure, latency_us=A,gbs=B,copy_gbs=C (numbers "
                            "over 0) or the path of a file with that"};
}

// The text of a file, without white space.
Status ReadFile(const std::string& path, std::string* text) {
  std::ifstream file(path);
  std::string word;
  text->clear();
  while (file >> word) *text += word;
  if (text->empty()) return Refuse(path, "cannot be read, or is empty");
  return {};
}

}  // namespace

Status Tuning::Parse(const std::string& given, Tuning* tuning) {
  *tuning = Tuning();
  std::string text = given;
  if (given.find('/') != std::string::npos) {
    Status read = ReadFile(given, &text);
    if (!read.ok()) return read;
  }
  if (text.empty() || text == "default") return {};
  if (text == "measure") {
    tuning->source = Source::kToBeMeasured;
    return {};
  }
  double latency_us = 0, gbs = 0, copy_gbs = 0;
  const std::pair<const char*, double*> names[] = {
      {"latency_us", &latency_us}, {"gbs", &gbs}, {"copy_gbs", &copy_gbs}};
  CNumbers as_in_c;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    size_t equals = part.find('=');
    std::string name = part.substr(0, equals);
    auto known = std::find_if(std::begin(names), std::end(names),
                              [&](const auto& one) { return name == one.first; });
    if (known == std::end(names)) return Refuse(given, "has '" + part + "'");
    const char* value = equals == std::string::npos ? "" : part.c_str() + equals + 1;
    char* end = nullptr;
    *known->second = std::strtod(value, &end);
    bool number = *value != '\0' && *end == '\0' && std::isfinite(*known->second);
    if (!number || *known->second <= 0) return Refuse(given, "has '" + part + "'");
  }
  for (const auto& [name, value] : names) {
    if (*value == 0) return Refuse(given, std::string("lacks ") + name);
  }
  tuning->source = Source::kGiven;
  tuning->latency = latency_us * kMicro;
  tuning->per_byte = 1 / (gbs * kGiga);
  tuning->copy_per_byte = 1 / (copy_gbs * kGiga);
  return {};
}

std::string Tuning::Text() const {
  if (source == Source::kDefault) return "default";
  if (source == Source::kToBeMeasured) return "measure";
  return Format("latency_us=%.4g,gbs=%.4g,copy_gbs=%.4g", latency / kMicro, 1 / per_byte / kGiga,
                1 / copy_per_byte / kGiga);
}

// Where the costs are known, a chunk's bytes take kLatenciesInChunk latencies.
size_t Tuning::ChunkBytes(int nodes, int owners) const {
  if (!known()) {
    size_t messages = static_cast<size_t>(nodes) * static_cast<size_t>(owners);
    size_t bytes = owners > 1 ? kDefaultChunkBytes
                              : std::min(kLoneMessageBytes * messages, kDefaultChunkBytes);
    bytes = std::max(bytes, kLeastMessageBytes * messages);
    return NearestPower(static_cast<double>(bytes), kLeastChunkBytes, kMostChunkBytes);
  }
  return NearestPower(kLatenciesInChunk * latency / per_byte, kLeastChunkBytes, kMostChunkBytes);
}

// Aggregating saves all messages to a node but one, and copies each part again: both cost the same
// where the copies of a part take as long as its message.
size_t Tuning::AlltoallAggregateBytes() const {
  if (!known()) return kDefaultAggregateBytes;
  double bytes = latency / (kExtraCopies * copy_per_byte);
  return NearestPower(bytes, kLeastAggregateBytes, kMostAggregateBytes);
}

const char* Tuning::SourceName() const {
  constexpr const char* kNames[] = {"default", "to be measured", "measured", "given"};
  return kNames[static_cast<int>(source)];
}

std::string Tuning::Describe(size_t chunk_bytes, size_t alltoall_aggregate_bytes) const {
  std::string sizes = "chunks of " + std::to_string(chunk_bytes) +
                      " bytes, alltoalls aggregated below " +
                      std::to_string(alltoall_aggregate_bytes) + " bytes a part";
  if (!known()) return "between nodes: " + sizes + " (" + SourceName() + ")";
  return "between nodes: " +
         Format("%.1f us, %.2f GB/s, copies %.2f GB/s", latency / kMicro, 1 / per_byte / kGiga,
                1 / copy_per_byte / kGiga) +
         " (" + SourceName() + "); " + sizes;
}

std::string Tuning::Json(size_t chunk_bytes, size_t alltoall_aggregate_bytes) const {
  std::string costs = "\"latency_us\": null, \"gbs\": null, \"copy_gbs\": null";
  if (known()) {
    costs = Format("\"latency_us\": %.4g, \"gbs\": %.4g, \"copy_gbs\": %.4g", latency / kMicro,
                   1 / per_byte / kGiga, 1 / copy_per_byte / kGiga);
  }
  return std::string("{\"source\": \"") + SourceName() + "\", " + costs +
         ", \"chunk_bytes\": " + std::to_string(chunk_bytes) +
         ", \"alltoall_aggregate_bytes\": " + std::to_string(alltoall_aggregate_bytes) + "}";
}

}  // namespace smddp

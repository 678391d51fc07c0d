#include "core/config.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "core/c_numbers.h"

namespace smddp {
namespace {

Status Refuse(const char* name, const char* value, const std::string& accepted) {
  return {Code::kUsage,
          std::string(name) + "='" + value + "' is not understood; it takes " + accepted};
}

// Options, or values of options, that no longer exist, and what happens instead.
constexpr struct {
  const char *name, *value, *instead;  // value null: any
} kRemoved[] = {
    {"SMDDP_ALLREDUCE", "sockets", "the algorithm is chosen automatically"},
    {"SMDDP_ALLTOALL_AGGREGATE_BYTES", nullptr, "one alltoall between nodes serves all sizes"},
    {"SMDDP_NCCL_BETWEEN", nullptr, "NCCL or the host carries tensors of GPUs between nodes"},
    {"SMDDP_NCCL_REGISTER", nullptr, "no memory is registered with NCCL"},
    {"SMDDP_SOCKETS", nullptr, "the ranks of a node are one group, on whatever sockets"},
    {"SMDDP_TUNING", nullptr, "SMDDP_CHUNK_BYTES sets the size of chunks between nodes"},
};

// The sentence that says so of what a variable is set to; "" if the option exists.
std::string Removed(const std::string& name, const std::string& text) {
  for (const auto& one : kRemoved) {
    if (name != one.name || (one.value != nullptr && text != one.value)) continue;
    return name + (one.value != nullptr ? "=" + text : " is set, but") +
           " no longer exists: " + one.instead + "; unset it";
  }
  return "";
}

// Reads a number in [low, high]; leaves *out unchanged if the variable is unset or empty.
template <typename T>
Status ReadNumber(const char* name, double low, double high, T* out) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return {};
  CNumbers as_in_c;
  char* end = nullptr;
  errno = 0;
  double value = std::strtod(text, &end);
  bool whole = std::is_floating_point<T>::value || value == std::floor(value);
  if (*end != '\0' || errno != 0 || !whole || !(value >= low && value <= high)) {
    char bounds[64];
    std::snprintf(bounds, sizeof bounds, " number from %.10g to %.10g", low, high);
    return Refuse(name, text,
                  std::string(std::is_floating_point<T>::value ? "a" : "a whole") + bounds);
  }
  *out = static_cast<T>(value);
  return {};
}

// What kernels/cpu has on this architecture.
#if SMDDP_ARM64
constexpr std::initializer_list<const char*> kIsas = {"generic", "neon"};
#else
constexpr std::initializer_list<const char*> kIsas = {"generic", "avx2", "avx512"};
#endif

Status ReadWord(const char* name, std::initializer_list<const char*> words, std::string* out) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0' || !Removed(name, text).empty()) return {};
  std::string accepted;
  for (const char* word : words) {
    if (std::string(text) == word) {
      *out = word;
      return {};
    }
    accepted += (accepted.empty() ? "" : ", ") + std::string(word);
  }
  return Refuse(name, text, "one of: " + accepted);
}

std::string ReadText(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace

Status Config::FromEnvironment(Config* config) {
  Status results[] = {
      ReadNumber("SMDDP_TIMEOUT_SECONDS", 0.1, 1e7, &config->timeout_seconds),
      ReadNumber("SMDDP_STALL_WARNING_SECONDS", 0, 1e7, &config->stall_warning_seconds),
      ReadNumber("SMDDP_CHUNK_BYTES", 4096, 1 << 26, &config->chunk_bytes),
      ReadNumber("SMDDP_SPIN_MICROSECONDS", -1, 1000000, &config->spin_microseconds),
      ReadNumber("SMDDP_NODES", 0, 1 << 20, &config->nodes),
      ReadNumber("SMDDP_SINGLE_COPY", 0, 1, &config->single_copy),
      ReadNumber("SMDDP_SINGLE_PROCESS", 0, 1, &config->single_process),
      ReadWord("SMDDP_STAGING", {"auto", "cached", "streaming"}, &config->staging),
      ReadWord("SMDDP_ALLREDUCE", {"oneshot", "handback", "shm", "hierarchical"},
               &config->allreduce),
      ReadWord("SMDDP_NCCL", {"auto", "off", "required"}, &config->nccl),
      ReadWord("SMDDP_ISA", kIsas, &config->isa),
      ReadWord("SMDDP_LOG_LEVEL", {"debug", "info", "warning", "error"}, &config->log_level),
  };
  if (const char* path = std::getenv("SMDDP_MPI_LIBRARY")) config->mpi_library = path;
  if (const char* path = std::getenv("SMDDP_NCCL_LIBRARY")) config->nccl_library = path;
  if (const char* path = std::getenv("SMDDP_TIMELINE")) config->timeline = path;
  for (const auto& one : kRemoved) {
    std::string text = ReadText(one.name), sentence = Removed(one.name, text);
    if (!text.empty() && !sentence.empty()) config->removed.push_back(sentence);
  }
  config->chunk_bytes = config->chunk_bytes / 256 * 256;  // keeps slots aligned for every dtype
  for (const Status& status : results) {
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace smddp

#include "engine/connect/choose_job.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace smddp {

std::string ListProblem(const std::vector<int>& ranks, int size) {
  std::string last = std::to_string(size - 1);
  std::vector<bool> seen(size);
  for (int r : ranks) {
    if (r < 0 || r >= size) {
      return "init(comm=...) lists rank " + std::to_string(r) + "; the ranks are 0 to " + last;
    }
    if (seen[r]) return "init(comm=...) lists rank " + std::to_string(r) + " twice";
    seen[r] = true;
  }
  return "";
}

Status ChooseJob(const std::vector<int>& ranks, const Bootstrap::Problem& problem, Bootstrap* job) {
  int size = job->size(), rank = job->rank();
  std::string refusal = ListProblem(ranks, size);
  // An empty list stands for all ranks. Lists are compared by a hash, since they may be long.
  std::vector<int> all(size), list = ranks;
  std::iota(all.begin(), all.end(), 0);
  if (list.empty()) list = all;
  auto hash_of = [](const std::vector<int>& members) {
    uint64_t hash = members.size();
    for (int r : members) hash = (hash ^ static_cast<uint64_t>(r)) * 0x9e3779b97f4a7c15ull;
    return hash;
  };

  uint64_t own = hash_of(list);
  std::vector<uint64_t> hashes(size);
  Status status = job->Allgather(&own, sizeof own, hashes.data(), problem);
  if (!status.ok()) return status;
  for (int r : list) {
    if (!refusal.empty() || hashes[r] == own) continue;
    refusal = "rank " + std::to_string(r) + " is in the list that rank " + std::to_string(rank) +
              " gave to init(comm=...), but gave another list itself; all ranks of a list must "
              "give the same";
  }
  int ok = refusal.empty();
  std::vector<int> oks(size);
  status = job->Allgather(&ok, sizeof ok, oks.data(), problem);
  if (!status.ok()) return status;
  if (!ok) return {Code::kUsage, refusal};
  for (int r = 0; r < size; ++r) {
    if (!oks[r]) {
      return {Code::kUsage, "rank " + std::to_string(r) +
                                " gave an invalid list to init(comm=...); its own error "
                                "says why"};
    }
  }
  bool everybody = true;
  for (uint64_t hash : hashes) everybody = everybody && hash == hash_of(all);
  if (everybody) return {};
  auto place = std::find(list.begin(), list.end(), rank);
  if (place == list.end()) return job->Restrict(size + rank, 0, problem);
  return job->Restrict(list[0], static_cast<int>(place - list.begin()), problem);
}

}  // namespace smddp

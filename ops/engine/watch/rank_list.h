// Ranks in error messages.
#pragma once

#include <string>
#include <vector>

namespace smddp {

// The ranks that rank `self` is waiting for: "rank 1", "ranks 1, 2".
inline std::string RankList(const std::vector<int>& ranks, int self) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  if (ranks.empty()) return "other ranks";
  if (ranks == std::vector<int>{self}) return "its own device";
  for (size_t i = 0; i < ranks.size() && i < 16; ++i) {
    text += (i ? ", " : "") + std::to_string(ranks[i]);
  }
  return ranks.size() > 16 ? text + ", ..." : text;
}

}  // namespace smddp

// Compares the ranks' settings at init: text that must, or should, be the same on all of them.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smddp {

// A rank's settings, as lines of "NAME=value"; an empty value means unknown.
struct SharedSettings {
  std::string must;     // a difference is an error on all ranks
  std::string should;   // a difference is a warning
  std::string problem;  // why this rank cannot start; "" if it can
};

// One line for each name whose values differ: "  NAME: value on ranks 0, 2-5; value on rank 1"; ""
// if none do. texts[i] is of rank ranks[i]; an unknown value agrees with every other.
std::string Differences(const std::vector<std::string>& texts, const std::vector<int>& ranks);

// "rank 3", or "ranks 0, 2-5", for ascending ranks.
std::string RankRanges(const std::vector<int>& ranks);

uint64_t HashOf(const std::string& text);

}  // namespace smddp

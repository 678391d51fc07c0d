// What must be, or should be, the same on all ranks: text, compared once, at init. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smddp {

// What a rank starts with. Each is lines of "NAME=value"; a value may be empty: not known.
struct Terms {
  std::string must;     // a difference is an error on all ranks
  std::string should;   // a difference is a warning
  std::string problem;  // why this rank cannot start; "" if it can
};

// A line for each name whose values differ: "  NAME: value on ranks 0, 2-5; value on rank 1". ""
// when none does. texts[i] is of rank ranks[i]; who does not know a value agrees with everybody.
std::string Differences(const std::vector<std::string>& texts, const std::vector<int>& ranks);

// "rank 3", or "ranks 0, 2-5"; ascending.
std::string RankRanges(const std::vector<int>& ranks);

uint64_t HashOf(const std::string& text);

}  // namespace smddp

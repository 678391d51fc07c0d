#include "core/agreement.h"

#include <map>
#include <sstream>

namespace smddp {
namespace {

// Each value, and the ranks that have it.
using Groups = std::vector<std::pair<std::string, std::vector<int>>>;

void Add(const std::string& value, int rank, Groups* groups) {
  for (auto& [known, ranks] : *groups) {
    if (known == value) return ranks.push_back(rank);
  }
  groups->push_back({value, {rank}});
}

}  // namespace

std::string RankRanges(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (end - i > 1) text += (end - i > 2 ? "-" : ", ") + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string Differences(const std::vector<std::string>& texts, const std::vector<int>& ranks) {
  std::vector<std::string> names;  // in order of first appearance
  std::map<std::string, Groups> values;
  for (size_t i = 0; i < texts.size(); ++i) {
    std::istringstream lines(texts[i]);
    for (std::string line; std::getline(lines, line);) {
      size_t equals = line.find('=');
      if (equals == std::string::npos || equals + 1 == line.size()) continue;
      std::string name = line.substr(0, equals);
      if (values.count(name) == 0) names.push_back(name);
      Add(line.substr(equals + 1), ranks[i], &values[name]);
    }
  }
  std::string text;
  for (const std::string& name : names) {
    const Groups& groups = values[name];
    if (groups.size() < 2) continue;
    text += (text.empty() ? "  " : "\n  ") + name + ": ";
    for (size_t g = 0; g < groups.size(); ++g) {
      text += (g == 0 ? "" : "; ") + groups[g].first + " on " + RankRanges(groups[g].second);
    }
  }
  return text;
}

uint64_t HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

}  // namespace smddp

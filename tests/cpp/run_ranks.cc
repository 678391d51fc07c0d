#include <thread>
#include <vector>

#include "check.h"

namespace smddp_test {

void RunRanks(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(body, rank);
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace smddp_test

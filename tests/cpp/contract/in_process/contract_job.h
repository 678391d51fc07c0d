// Where the contract tests run in smddp_cpp_tests: in jobs of all shapes, whose ranks are threads.
#pragma once

#include <memory>
#include <vector>

#include "check.h"
#include "inproc_job.h"
#include "tcp_job.h"

namespace smddp_test {

using ContractJob = InprocJob;

inline std::vector<JobShape> Jobs() { return {std::begin(kJobs), std::end(kJobs)}; }

// The node of each rank: equal nodes, unequal ones, ranks that are dealt out in turns, and a node
// of one rank.
inline std::vector<std::vector<int>> Layouts() {
  return {{0, 0, 1, 1}, {0, 0, 1},          {0, 0, 0, 1, 1, 1}, {0, 1, 0, 1},
          {0, 1, 2},    {0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 2}, {0, 1, 1, 0, 1, 2, 1}};
}

// Calls body(group) on each rank of groups of several sizes, over memory and over TCP.
inline void InGroups(const std::function<void(smddp::PeerGroup*)>& body) {
  for (int job = 0; job < 10; ++job) {
    const int size = job / 2 + 1;
    auto groups = job % 2 == 0 ? smddp::MakeInprocGroups(size) : MakeTcpGroups(size);
    RunRanks(size, [&](int rank) { body(groups[static_cast<size_t>(rank)].get()); });
  }
}

}  // namespace smddp_test

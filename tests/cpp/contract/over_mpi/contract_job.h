// Where the contract tests run in smddp_mpi_tests: in the job that mpirun started, whose nodes
// SMDDP_NODES says. Each process is one rank, and calls what the test has for that rank only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "inproc_job.h"

namespace smddp_test {

// The ranks, which the first call connects.
const smddp::Topology& World();

inline std::vector<JobShape> Jobs() {
  const smddp::Topology& topo = World();
  return {{topo.size, topo.num_nodes}};
}

// The node of each rank.
std::vector<std::vector<int>> Layouts();

// A group of all ranks, over MPI; one for all tests.
void InGroups(const std::function<void(smddp::PeerGroup*)>& body);

class ContractJob {
 public:
  // Only what fits World(); chunks have kChunk bytes. With `reads_peers` nothing is too small to be
  // read from a peer's memory, if all ranks can.
  ContractJob(int size, int nodes, size_t chunk_bytes, bool reads_peers = false);
  explicit ContractJob(const std::vector<int>& layout, size_t chunk_bytes);

  smddp::Status Run(int rank, const smddp::Request& request, const std::string& forced = "");
};

}  // namespace smddp_test

#include <cstdio>
#include <cstdlib>

#include "contract_job.h"
#include "engine/connect/connect.h"

namespace smddp_test {
namespace {

using namespace smddp;

struct Job {
  JobContext context;
  std::unique_ptr<Connection> connection;
  std::unique_ptr<PeerGroup> group;
};

void EndIf(const Status& status) {
  if (status.ok()) return;
  std::printf("cannot connect the ranks: %s\n", status.message().c_str());
  std::exit(1);
}

Job* Connect() {
  auto* job = new Job;
  Config config;
  EndIf(Config::FromEnvironment(&config));
  config.chunk_bytes = kChunk;
  EndIf(ConnectJob(config, {}, {}, &job->context, &job->connection));
  Bootstrap* mpi = job->context.bootstrap.get();
  if (mpi == nullptr) EndIf({Code::kUsage, "mpirun has to start several ranks"});
  EndIf(mpi->MakeGroup(0, mpi->rank(), [] { return Status(); }, &job->group));
  if (mpi->rank() == 0) {
    const Topology& topo = job->connection->topology;
    std::printf("%d ranks on %d nodes over %s\n", topo.size, topo.num_nodes, mpi->name().c_str());
  }
  return job;
}

Job* OwnJob() {
  static Job* job = Connect();
  static const int registered =
      std::atexit([] { OwnJob()->context.bootstrap->Finalize([] { return false; }); });
  static_cast<void>(registered);
  return job;
}

std::vector<int> OwnLayout() {
  const Topology& topo = World();
  std::vector<int> layout(static_cast<size_t>(topo.size));
  for (int node = 0; node < topo.num_nodes; ++node) {
    for (int rank : topo.nodes[static_cast<size_t>(node)]) layout[static_cast<size_t>(rank)] = node;
  }
  return layout;
}

}  // namespace

void RunRanks(int size, const std::function<void(int)>& body) {
  ASSERT_EQ(size, World().size);
  body(World().rank);
}

const Topology& World() { return OwnJob()->connection->topology; }

std::vector<std::vector<int>> Layouts() { return {OwnLayout()}; }

void InGroups(const std::function<void(PeerGroup*)>& body) { body(OwnJob()->group.get()); }

ContractJob::ContractJob(int size, int nodes, size_t chunk_bytes, bool reads_peers) {
  const Topology& topo = World();
  EXPECT(size == topo.size && nodes == topo.num_nodes && chunk_bytes == kChunk);
  ChannelResources& resources = OwnJob()->connection->channels[0];
  resources.reads_peers = reads_peers && OwnJob()->connection->reads_peers;
}

ContractJob::ContractJob(const std::vector<int>& layout, size_t chunk_bytes) {
  EXPECT(layout == OwnLayout() && chunk_bytes == kChunk);
}

Status ContractJob::Run(int rank, const Request& request, const std::string& forced) {
  EXPECT_EQ(rank, World().rank);
  Selector selector;
  selector.forced_allreduce = forced;
  selector.PreferSingleCopy();
  ChannelResources* resources = &OwnJob()->connection->channels[0];
  Status status = RunToEnd(selector.Make(resources, &request, nullptr).get(), request);
  if (status.code() != Code::kTimeout) return status;
  // The other ranks cannot go on without this one.
  std::printf("FAIL: rank %d: %s\n", rank, status.message().c_str());
  std::exit(1);
}

}  // namespace smddp_test

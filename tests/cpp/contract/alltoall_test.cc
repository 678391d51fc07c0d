// The contract of alltoall: every byte at its place, whatever the parts and the nodes.
#include "alltoall_parts.h"
#include "check.h"
#include "contract_job.h"

namespace {

using namespace smddp;
using smddp_test::ContractJob;
using smddp_test::Exchanged;
using smddp_test::kChunk;
using smddp_test::kParts;
using smddp_test::NodeOf;
using smddp_test::Parts;
using smddp_test::RunRanks;

// The same on all ranks: many parts are empty, some take many chunks.
std::vector<size_t> RandomParts(unsigned seed, size_t size) {
  std::mt19937 random(seed);
  std::vector<size_t> parts(size * size);
  for (size_t& part : parts) {
    size_t most = random() % 4 == 0 ? 50000 : 1000;
    part = random() % 2 == 0 ? 0 : random() % most;
  }
  for (size_t p = 0; p < size; ++p) {
    if (seed % 3 == 0) parts[seed % size * size + p] = 0;        // a rank that sends nothing
    if (seed % 3 == 1) parts[p * size + (seed + 1) % size] = 0;  // and one that gets nothing
  }
  return parts;
}

}  // namespace

TEST(AlltoallOfAnyPartsOnAnyNodes) {
  for (const NodeOf& nodes : smddp_test::Layouts()) {
    ContractJob job(nodes, kChunk);
    RunRanks(static_cast<int>(nodes.size()), [&](int self) {
      for (DType dtype : {DType::kUint8, DType::kBfloat16, DType::kFloat32, DType::kInt64}) {
        for (Parts kind : kParts) {
          Exchanged rank(PartsOf(kind, nodes), dtype, self);
          Status status = job.Run(self, rank.request);
          ASSERT(status.ok(), status.message() + ": " + Name(nodes, kind));
          ASSERT(rank.out == rank.want, Name(nodes, kind));
        }
      }
    });
  }
}

TEST(AlltoallOfRandomParts) {
  for (const NodeOf& nodes : smddp_test::Layouts()) {
    ContractJob job(nodes, kChunk);
    RunRanks(static_cast<int>(nodes.size()), [&](int self) {
      for (unsigned seed = 0; seed < 30; ++seed) {
        Exchanged rank(RandomParts(seed, nodes.size()), DType::kUint8, self);
        const bool apart = (seed + static_cast<unsigned>(self)) % 3 == 0;  // others need not know
        if (apart) rank.Divide(static_cast<size_t>(self));
        Status status = job.Run(self, rank.request);
        if (apart) rank.Join();
        ASSERT(status.ok(), status.message() + ": seed " + std::to_string(seed));
        ASSERT(rank.out == rank.want, "seed " + std::to_string(seed));
      }
    });
  }
}

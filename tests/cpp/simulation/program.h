// What the ranks of a simulated job do, and what happens to them: all of it follows from a seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective/request.h"
#include "network.h"
#include "scheduler.h"

namespace smddp_sim {

// One operation, as one rank asks for it.
struct Call {
  smddp::Kind kind = smddp::Kind::kAllreduce;
  smddp::DType dtype = smddp::DType::kFloat32;
  smddp::ReduceOp op = smddp::ReduceOp::kSum;
  int root = 0;
  double prescale = 1.0;
  std::string name;
  std::vector<std::vector<int64_t>> dims;  // of each tensor
  // Elements that rank r brings to an allgather; those from r to p at [r * size + p] of an
  // alltoall.
  std::vector<int64_t> gather;
  bool in_place = false;
};

// How the ranks that differ from the others do so.
struct OddRank {
  int rank = -1;  // nobody
  Call call;
  int bucket = 0;        // of several: which one `call` replaces
  int more_buckets = 0;  // of a plan: it has so many more (fewer) than the others
};

struct Item {
  // kPosted: several calls matched by name, begun one after the other without waiting. kThreads:
  // several calls on two threads of each rank.
  enum class Type { kCall, kPlan, kJoin, kPosted, kThreads };
  Type type = Type::kCall;
  int id = 0;
  Call call;                  // of a plan: made while its buckets are under way, if it has a name
  std::vector<Call> buckets;  // or the calls of kPosted and kThreads
  std::vector<std::vector<int>> order;  // of kPosted: in which each rank posts them
  bool waits = true;                    // kPosted: for all of them, before the next item
  OddRank odd;
  std::vector<char> absent;  // by rank: it has joined already
  // This rank's step fails when so many buckets have begun; it goes on to the next item.
  int stop_rank = -1, stop_after = 0;
};

enum class FaultKind { kPause, kStop, kDie, kNetwork, kLeave };

struct Fault {
  FaultKind kind = FaultKind::kPause;
  int rank = 0;
  int item = 0;  // it happens `delay` after the rank has begun this one
  double delay = 0;
  double seconds = 0;  // how long the rank stands still
};

struct Program {
  uint64_t seed = 0;
  int size = 1;
  std::vector<int> node_of;  // by rank
  int num_nodes = 1;
  size_t chunk_bytes = 512;
  std::string forced_allreduce;
  bool disseminates = false;  // headers, as among many nodes
  bool by_name = false;       // has items whose calls are matched by name
  bool reads_peers = false;
  bool on_devices = false;  // most tensors are in memory of devices, which may run collectives
  int without_device = -1, cannot_connect = -1;  // such ranks
  double preemption = 0;
  double timeout = 2.0;
  NetworkStyle network;
  std::vector<Item> items;
  std::vector<Fault> faults;
  bool goes_on_after_failure = false;

  std::string Describe() const;
};

Program MakeProgram(uint64_t seed);

constexpr int kNoBucket = 1 << 20;

// The request of a call, without memory.
smddp::Request RequestOf(const Call& call, int size);
// The call that `rank` makes.
const Call& CallOf(const Item& item, int rank);
std::vector<Call> BucketsOf(const Item& item, int rank);
// Whether the item's calls have no order among each other.
bool IsByName(const Item& item);
// Whether what the ranks ask for fits together.
bool CallSucceeds(const Program& program, const Item& item);
bool NamedSucceeds(const Program& program, const Item& item, int index);
// The first bucket that fails on all ranks; kNoBucket: none does.
int FirstBadBucket(const Program& program, const Item& item);

const char* FaultName(FaultKind kind);

}  // namespace smddp_sim

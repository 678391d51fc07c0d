#include "engine/connect/measure_link.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/deadline.h"
#include "transport/mpi/mpi_group.h"

namespace smddp {
namespace {

constexpr size_t kSmallBytes = 64, kLargeBytes = 256 << 10;
constexpr int kSmallRounds = 20, kLargeRounds = 6;
constexpr size_t kCopiedBytes = 8 << 20;
constexpr int kCopies = 4;
// No further round begins after this time; the ranks of a pair end with the same one.
constexpr double kSecondsEach = 0.03;
constexpr double kWaitSeconds = 10;  // for a partner that was there a moment ago
// Faster than any link or memory; keeps the costs positive where the clock is too coarse.
constexpr double kLeastPerByte = 1e-12, kLeastLatency = 1e-7;

// Times one exchange of both ranks. Whether either has no more time travels in its first byte.
Status TimeExchange(PeerGroup* pair, size_t bytes, bool* last, double* seconds) {
  char* send = pair->Memory(2 * kLargeBytes);
  char* receive = send + kLargeBytes;
  std::vector<size_t> to(2);
  to[1 - pair->rank()] = bytes;
  send[0] = *last ? 1 : 0;
  double begin = NowSeconds();
  Status status = pair->StartAlltoallV(send, to, receive, to);
  Deadline deadline(kWaitSeconds);
  for (bool done = false; status.ok() && !done;) {
    status = pair->Test(&done);
    if (done || !status.ok()) break;
    if (deadline.Passed()) {
      return {Code::kTimeout,
              "another node did not answer within 10 s while SMDDP_TUNING=measure "
              "timed the link; without it nothing is timed"};
    }
    ::sched_yield();
  }
  *seconds = NowSeconds() - begin;
  *last = *last || receive[0] != 0;
  return status;
}

// The smallest time; the first round, in which connections are made, does not count.
Status SmallestTime(PeerGroup* pair, size_t bytes, int rounds, double* smallest) {
  Deadline enough(kSecondsEach);
  *smallest = std::numeric_limits<double>::max();
  bool last = false;
  for (int round = 0; round <= rounds && !last; ++round) {
    last = round > 0 && enough.Passed();
    double seconds = 0;
    Status status = TimeExchange(pair, bytes, &last, &seconds);
    if (!status.ok()) return status;
    if (round > 0) *smallest = std::min(*smallest, seconds);
  }
  return {};
}

// What peers have written comes from further away than the own cache, so this copies more than it
// holds.
double CopySecondsPerByte() {
  std::vector<char> from(kCopiedBytes, 1), to(kCopiedBytes);
  double smallest = std::numeric_limits<double>::max();
  for (int round = 0; round < kCopies; ++round) {
    double begin = NowSeconds();
    std::memcpy(to.data(), from.data(), kCopiedBytes);
    asm volatile("" : : "r"(to.data()) : "memory");  // not left out, though nobody reads it
    smallest = std::min(smallest, NowSeconds() - begin);
  }
  return std::max(smallest / kCopiedBytes, kLeastPerByte);
}

// What a rank has measured, as it is exchanged.
struct Measured {
  double latency, per_byte, copy_per_byte;
  int failed;
};

}  // namespace

Status MeasureLink(PeerGroup* pair, Tuning* tuning) {
  double small = 0, large = 0;
  Status status = SmallestTime(pair, kSmallBytes, kSmallRounds, &small);
  if (status.ok()) status = SmallestTime(pair, kLargeBytes, kLargeRounds, &large);
  if (!status.ok()) return status;
  tuning->latency = std::max(small, kLeastLatency);
  tuning->per_byte = std::max((large - small) / (kLargeBytes - kSmallBytes), kLeastPerByte);
  return {};
}

Status MeasureBetweenNodes(const MpiLibrary& mpi, const Topology& topo,
                           const MpiLibrary::Problem& problem, Tuning* tuning) {
  if (topo.num_nodes == 1 || tuning->source != Tuning::Source::kToBeMeasured) return {};
  bool first = topo.local_rank == 0;
  MpiHandle comm = 0;
  int color = first ? topo.node / 2 : MpiLibrary::kNoColor;
  Status status = mpi.Split(color, topo.node, &comm, problem);
  if (!status.ok()) return status;
  Tuning found;
  if (first) {
    std::unique_ptr<PeerGroup> pair = MakeMpiGroup(&mpi, comm);
    found.copy_per_byte = CopySecondsPerByte();
    // Of an odd number of nodes the last has no partner.
    if (pair->size() == 2) status = MeasureLink(pair.get(), &found);
  }
  Measured own = {found.latency, found.per_byte, found.copy_per_byte, status.ok() ? 0 : 1};
  std::vector<Measured> all(topo.size);
  Status gathered = mpi.Allgather(&own, sizeof own, all.data(), problem);
  if (!status.ok() || !gathered.ok()) return status.ok() ? gathered : status;
  for (int r = 0; r < topo.size; ++r) {
    if (all[r].failed != 0) {
      return {Code::kSystem, "rank " + std::to_string(r) +
                                 " could not measure the link between nodes (SMDDP_TUNING=measure);"
                                 " its own error says why"};
    }
    tuning->latency = std::max(tuning->latency, all[r].latency);
    tuning->per_byte = std::max(tuning->per_byte, all[r].per_byte);
    tuning->copy_per_byte = std::max(tuning->copy_per_byte, all[r].copy_per_byte);
  }
  tuning->source = Tuning::Source::kMeasured;
  return {};
}

}  // namespace smddp

// Chooses the algorithm of a collective.
#pragma once

#include <limits>
#include <memory>
#include <string>

#include "collective/collective.h"

namespace smddp {

struct Selector {
  // Payloads up to this take the one-hop allreduce: of two ranks, which else hand results back, and
  // of more. Both were measured on 2 ranks, the second against `shm`; see docs/measurements.md.
  size_t oneshot_bytes_of_two = 1 << 10;
  size_t oneshot_bytes = 16 << 10;
  // From these sizes on, payloads are read directly from the peers' memory where that is faster.
  size_t single_copy_bytes = 32 << 10;
  size_t single_copy_alltoall_bytes = 1 << 20;
  int single_copy_gathers = 2;  // of up to so many ranks
  // The time of such a copy by the kernel, of pages of 4 KiB, in copies of ours; beyond the caches
  // three quarters of it.
  double kernel_copies = 2;
  std::string forced_allreduce;  // by name; empty: automatic

  // For tests: takes a single copy wherever it can be, as if it cost nothing.
  void PreferSingleCopy() {
    single_copy_bytes = single_copy_alltoall_bytes = 0;
    single_copy_gathers = std::numeric_limits<int>::max();
    kernel_copies = 0;
  }

  // `request` and `resources` must outlive the collective. `why`, unless null, receives one line
  // for each algorithm that was rejected, and one for the chosen one.
  std::unique_ptr<Collective> Make(ChannelResources* resources, const Request* request,
                                   std::string* why) const;
};

}  // namespace smddp

// Every SMDDP_* environment variable that the core reads, documented beside its default.
// Read once, at init; a value that cannot be understood is an error that names it.
#pragma once

#include <cstddef>
#include <string>

#include "core/status.h"

namespace smddp {

struct Config {
  // SMDDP_TIMEOUT_SECONDS: a collective that waited this long for a peer fails.
  double timeout_seconds = 600;
  // SMDDP_STALL_WARNING_SECONDS: a collective that waited this long is reported (0: never).
  double stall_warning_seconds = 60;
  // SMDDP_CHUNK_BYTES: bytes of one staging slot. 0: 256 KiB in one node, 1 MiB across nodes.
  size_t chunk_bytes = 0;
  // SMDDP_SPIN_MICROSECONDS: how long a wait spins before it sleeps. -1: 50 where every rank of
  // the node has a core of its own, else 0.
  int spin_microseconds = -1;
  // SMDDP_NODES: split the ranks into this many groups that may not share memory, to try the
  // path between nodes on one machine. 0: groups are what shares memory in truth.
  int nodes = 0;
  // SMDDP_SINGLE_COPY: 0: ranks of a node never read each other's memory, but copy through what
  // they share.
  bool single_copy = true;
  // SMDDP_ALLREDUCE: force an algorithm by name (see collective/selector.cc). Empty: automatic.
  std::string allreduce;
  // SMDDP_ISA: cap the SIMD level: generic, avx2 or avx512. Empty: the best the CPU has.
  std::string isa;
  // SMDDP_MPI_LIBRARY: path of the MPI library to open instead of the one that is found.
  std::string mpi_library;
  // SMDDP_SINGLE_PROCESS: 1: processes that a launcher started together, but not mpirun, are jobs
  // of one rank each; those of mpirun too, if all of them have it.
  bool single_process = false;
  // SMDDP_TIMELINE: write a Chrome trace of the collectives here, a file for each rank.
  std::string timeline;
  // SMDDP_LOG_LEVEL: debug, info, warning or error.
  std::string log_level = "warning";

  // The first option that cannot be understood; all others are read nevertheless.
  static Status FromEnvironment(Config* config);
};

}  // namespace smddp

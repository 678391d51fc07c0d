// Every SMDDP_* environment variable that the core reads, documented beside its default. They are
// read once, at init; a value that cannot be parsed is an error that names the variable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace smddp {

struct Config {
  // SMDDP_TIMEOUT_SECONDS: a collective that has waited this long for a peer fails.
  double timeout_seconds = 600;
  // SMDDP_STALL_WARNING_SECONDS: a collective that has waited this long is reported (0: never).
  double stall_warning_seconds = 60;
  // SMDDP_CHUNK_BYTES: bytes of a staging slot. 0: 256 KiB on one node, between nodes as
  // core/chunk_bytes.h says.
  size_t chunk_bytes = 0;
  // SMDDP_SPIN_MICROSECONDS: how long a wait spins before it sleeps. -1: 50 if every rank of the
  // node has a core of its own, else 0.
  int spin_microseconds = -1;
  // SMDDP_NODES: splits the ranks into this many groups that do not share memory, to test the path
  // between nodes on one machine. 0: ranks that can share memory form a node.
  int nodes = 0;
  // SMDDP_SINGLE_COPY: 0 disables direct reads of peers' memory; data is copied through the slots.
  bool single_copy = true;
  // SMDDP_STAGING: whether ranks write what their peers will read through the cache (cached) or
  // past it (streaming). Empty or auto: whatever is measured to be faster (collective/staging.h).
  std::string staging;
  // SMDDP_ALLREDUCE: forces an algorithm by name (see collective/selector.cc). Empty: automatic.
  std::string allreduce;
  // SMDDP_ALLTOALL_AGGREGATE_BYTES: between nodes, alltoalls whose parts have fewer bytes than this
  // on average travel in one message per node and owner, others in one per pair of ranks; 0: all.
  static constexpr size_t kAutomatic = SIZE_MAX;
  size_t alltoall_aggregate_bytes = kAutomatic;
  // SMDDP_ISA: caps the SIMD level: generic, avx2 or avx512, on ARM generic or neon. Empty: the
  // best that the CPU has.
  std::string isa;
  // SMDDP_MPI_LIBRARY: path of the MPI library, instead of searching for one.
  std::string mpi_library;
  // SMDDP_NCCL: auto: tensors on GPUs are reduced by NCCL where every rank can; off: never;
  // required: it is an error if some rank cannot.
  std::string nccl = "auto";
  // SMDDP_NCCL_LIBRARY: path of the NCCL library, instead of searching for one.
  std::string nccl_library;
  std::string nccl_hint;  // no variable: where Python has found one, of the wheel
  // SMDDP_SINGLE_PROCESS: 1: processes started by a launcher other than mpirun are jobs of one rank
  // each; those of mpirun too, if all of them set it.
  bool single_process = false;
  // SMDDP_TIMELINE: path of a Chrome trace of the collectives, one file per rank.
  std::string timeline;
  // SMDDP_LOG_LEVEL: debug, info, warning or error.
  std::string log_level = "warning";

  // A sentence for each option that is set and no longer exists; core/config.cc has their table.
  std::vector<std::string> removed;

  // Returns an error for the first invalid option; all others are read nevertheless.
  static Status FromEnvironment(Config* config);
};

}  // namespace smddp

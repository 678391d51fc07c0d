// Every SMDDP_* environment variable that the core reads, documented beside its default. They are
// read once, at init; a value that cannot be parsed is an error that names the variable.
//
// `make options` copies each comment that begins with a variable's name to docs/options.md, so it
// is written for users. It ends with "Default: ..." where the initializer does not say that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace smddp {

struct Config {
  // SMDDP_TIMEOUT_SECONDS: a collective in which nothing has moved for this long fails.
  double timeout_seconds = 600;
  // SMDDP_STALL_WARNING_SECONDS: a collective in which nothing has moved for this long is reported.
  // 0: never.
  double stall_warning_seconds = 60;
  // SMDDP_CHUNK_BYTES: bytes of a staging slot. Default: 256 KiB on one node, up to 4 MiB between
  // nodes.
  size_t chunk_bytes = 0;
  // SMDDP_SPIN_MICROSECONDS: how long a wait inside a node spins before it lends its core to
  // others. -1 is the default. Default: 50, or 0 with more ranks than cores.
  int spin_microseconds = -1;
  // SMDDP_NODES: emulates this many nodes on one machine, to try the path between nodes. 0: ranks
  // that can share memory form a node.
  int nodes = 0;
  // SMDDP_SINGLE_COPY: 0: ranks of a node never read each other's memory; data is copied through
  // shared slots, and PyTorch's messages between two ranks go by gloo.
  bool single_copy = true;
  // SMDDP_STAGING: how ranks of a node write what their peers read: through the cache (cached) or
  // past it (streaming); auto measures which is faster. Ignored for two-rank allreduces above 1
  // KiB. Default: auto.
  std::string staging;
  // SMDDP_ALLREDUCE: forces one algorithm. Default: chosen by size and placement.
  std::string allreduce;
  // SMDDP_ISA: caps the SIMD level: generic, avx2 or avx512; on ARM generic or neon. Default: the
  // best that the CPU has.
  std::string isa;
  // SMDDP_MPI_LIBRARY: path of the MPI library. Default: found.
  std::string mpi_library;
  // SMDDP_NCCL: auto: NCCL reduces tensors on GPUs if every rank can use it; off: never; required:
  // an error if some rank cannot (see docs/gpu.md).
  std::string nccl = "auto";
  // SMDDP_NCCL_LIBRARY: path of the NCCL library. Default: found.
  std::string nccl_library;
  std::string nccl_hint;  // no variable: where Python has found one, of the wheel
  // SMDDP_SINGLE_PROCESS: 1: processes that were started together train separately, each as a job
  // of one rank. Those of mpirun do so if all of them set it.
  bool single_process = false;
  // SMDDP_TIMELINE: path of a Chrome trace of the collectives, one file per rank (see
  // docs/timeline.md). Default: off.
  std::string timeline;
  // SMDDP_LOG_LEVEL: debug shows which algorithm was chosen and why; error silences warnings.
  std::string log_level = "warning";

  // A sentence for each option that is set and no longer exists; core/config.cc has their table.
  std::vector<std::string> removed;

  // Returns an error for the first invalid option; all others are read nevertheless.
  static Status FromEnvironment(Config* config);
};

}  // namespace smddp

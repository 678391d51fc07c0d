// Which launcher started this process, with which rank and size: decided from the environment
// alone.
#pragma once

#include <functional>
#include <string>

namespace smddp {

struct LaunchInfo {
  // For the last two, only MPI can say whether its library works with the launcher.
  enum class Launcher { kNone, kOpenMpi, kMpich, kPmix, kPmi };
  Launcher launcher = Launcher::kNone;
  int rank = 0;         // according to the launcher
  int size = 1;         // according to the launcher; 0: unknown
  std::string seen;     // the variables it was read from: "PMIX_RANK=1, SLURM_STEP_NUM_TASKS=4"
  std::string refusal;  // why this process, one of several, cannot join the others; "": it can

  bool by_mpirun() const { return launcher == Launcher::kOpenMpi || launcher == Launcher::kMpich; }
};

// Returns the value of a variable; null or "" if it is not set.
using Environment = std::function<const char*(const char*)>;

// `separate`: processes not launched by mpirun are jobs of one rank each (SMDDP_SINGLE_PROCESS).
LaunchInfo ReadLaunchInfo(const Environment& environment, bool separate);

// Advice for a process that was launched with others, where MPI sees only one rank or cannot start.
std::string LaunchRemedy();

}  // namespace smddp

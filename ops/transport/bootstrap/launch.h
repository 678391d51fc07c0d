// Who launched this process, and as one of how many: decided from the environment alone.
#pragma once

#include <functional>
#include <string>

namespace smddp {

struct LaunchInfo {
  // Of the last two only MPI can tell whether its library fits.
  enum class Launcher { kNone, kOpenMpi, kMpich, kPmix, kPmi };
  Launcher launcher = Launcher::kNone;
  int rank = 0;         // as the launcher says
  int size = 1;         // the same; 0: it does not say
  std::string seen;     // the variables that told it: "PMIX_RANK=1, SLURM_STEP_NUM_TASKS=4"
  std::string refusal;  // why this is one of several processes that cannot be joined; "": it can

  bool by_mpirun() const { return launcher == Launcher::kOpenMpi || launcher == Launcher::kMpich; }
};

// The value of a variable; null or "" stands for none.
using Environment = std::function<const char*(const char*)>;

// `separate`: processes that no mpirun launched are jobs of one rank each (SMDDP_SINGLE_PROCESS).
LaunchInfo ReadLaunchInfo(const Environment& environment, bool separate);

// What to do when MPI began alone in one of several processes, or does not begin at all.
std::string LaunchRemedy();

}  // namespace smddp

// The cores to which ranks are bound, and whether mpirun bound the node's ranks to too few, which
// makes TensorFlow slow.
#pragma once

#include <string>
#include <vector>

#include "transport/bootstrap/launcher_env.h"

namespace smddp {

// The cores on which a process may run, by number; process 0: the calling thread.
std::vector<bool> CoresOf(int pid);

// The warning; "" if nothing is wrong. `used`: cores that the node's ranks may use together, out of
// `available`, those that the launcher itself may use.
std::string BindingAdvice(int used, int available, int ranks, LaunchInfo::Launcher launcher);

// The same for the processes of this node's ranks. "" unless mpirun launched them: other launchers
// bind as they were told to.
std::string BindingAdvice(const std::vector<int>& pids, LaunchInfo::Launcher launcher);

}  // namespace smddp

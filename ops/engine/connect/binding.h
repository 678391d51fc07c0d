// Whether mpirun bound the ranks of this node to so few cores that TensorFlow is slow.
#pragma once

#include <string>
#include <vector>

#include "transport/bootstrap/launch.h"

namespace smddp {

// The sentence; "" if nothing is wrong. `used`: cores that the node's ranks may use together, of
// the `available` ones, which the launcher itself may use.
std::string BindingAdvice(int used, int available, int ranks, LaunchInfo::Launcher launcher);

// The same, of the processes of this node's ranks. "" where no mpirun launched them: other
// launchers bind to what was asked for.
std::string BindingAdvice(const std::vector<int>& pids, LaunchInfo::Launcher launcher);

}  // namespace smddp

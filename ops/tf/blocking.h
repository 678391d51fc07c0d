// Threads that may wait, for ops that must not hold up TensorFlow's own.
#pragma once

#include <functional>

namespace smddp_tf {

// Runs the work on a thread that has nothing else to do. There are as many as ever waited at once.
void RunBlocking(std::function<void()> work);

}  // namespace smddp_tf

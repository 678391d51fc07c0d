#pragma once

namespace smddp_sim {

// Forgets what earlier schedules left: mutexes, semaphores, threads.
void ResetSystem();

}  // namespace smddp_sim

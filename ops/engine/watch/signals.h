// SIGTERM, taken only where the script has not taken it: the handler wakes the monitor, which
// speaks and then lets the signal do what it would have done.
#pragma once

namespace smddp {

// Installs the handler if SIGTERM has its default action. Idempotent.
void WatchTermination();
// Waits up to `milliseconds`, or until the signal came or WakeMonitor was called. True: it came.
bool WaitForTermination(int milliseconds);
void WakeMonitor();
// Gives SIGTERM its default action back, if the handler is still ours.
void UnwatchTermination();
// Ends the process by SIGTERM's default action.
[[noreturn]] void Terminate();

}  // namespace smddp

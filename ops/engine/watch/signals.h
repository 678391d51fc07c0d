// SIGTERM, handled only if the script does not handle it: the handler wakes the monitor, which
// reports and then lets the signal take its default action.
#pragma once

namespace smddp {

// Installs the handler if SIGTERM has its default action. Idempotent.
void WatchTermination();
// Waits up to `milliseconds`, or until SIGTERM or WakeMonitor. Returns true on SIGTERM.
bool WaitForTermination(int milliseconds);
void WakeMonitor();
// Restores SIGTERM's default action, if the handler is still ours.
void UnwatchTermination();
// Ends the process by SIGTERM's default action.
[[noreturn]] void Terminate();

}  // namespace smddp

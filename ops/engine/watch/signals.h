// SIGTERM, handled only if the script does not handle it: the handler writes what the monitor has
// prepared and wakes it, which reports the rest and then lets the signal take its default action.
#pragma once

#include <string>

namespace smddp {

// Installs the handler if SIGTERM has its default action. Idempotent.
void WatchTermination();
// Waits up to `milliseconds`, or until SIGTERM or WakeMonitor. Returns true on SIGTERM.
bool WaitForTermination(int milliseconds);
void WakeMonitor();
// What the handler writes at once, since a launcher's SIGKILL may follow in a millisecond: whole
// lines, cut after 8 KiB; empty for nothing.
void PrepareLastWords(const std::string& lines);
// Whether the handler has written such lines.
bool SaidLastWords();
// Restores SIGTERM's default action, if the handler is still ours.
void UnwatchTermination();
// Ends the process by SIGTERM's default action.
[[noreturn]] void Terminate();

}  // namespace smddp

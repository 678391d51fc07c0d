// SIGTERM and SIGINT. The former is handled only if the script does not handle it: the handler
// writes what the monitor has prepared and wakes it, which reports the rest and then lets the
// signal take its default action.
#pragma once

#include <string>

namespace smddp {

// Installs the handler if SIGTERM has its default action. Idempotent.
void WatchTermination();
// Waits up to `milliseconds`, or until SIGTERM, SIGINT or WakeMonitor. Returns true on SIGTERM.
bool WaitForTermination(int milliseconds);
void WakeMonitor();
// What the handler writes at once, since a launcher's SIGKILL may follow in a millisecond: whole
// lines, cut after 8 KiB; empty for nothing.
void PrepareLastWords(const std::string& lines);
// Whether the handler has written such lines.
bool SaidLastWords();
// Whether the process goes on after SIGTERM, as a rank does that may leave its job later: `ask`
// says so, on the monitor's thread. Then the handler writes nothing. Null: it ends.
using GoesOn = int (*)();
void AskBeforeTermination(GoesOn ask);
bool GoesOnAfterTermination();
bool MayGoOnAfterTermination();
// Restores SIGTERM's default action, if the handler is still ours and no `ask` is there.
void UnwatchTermination();

// ---- SIGINT: the handler tells the monitor, and calls the one that was there before -------------

// Whether a wait may be failed because of SIGINT: not if the script handles it in another way than
// by KeyboardInterrupt. May be slow, as Python's answers are. Null: never.
using MayInterrupt = int (*)();
void AskBeforeInterrupts(MayInterrupt ask);
MayInterrupt WhoMayInterrupt();
// Installs the handler over one that is neither the default nor "ignore". To be called again and
// again, since a notebook sets Python's anew for each cell.
void WatchInterrupts();
void UnwatchInterrupts();
// Whether SIGINT came since the last call.
bool TakeInterrupt();

// Ends the process by SIGTERM's default action.
[[noreturn]] void Terminate();

}  // namespace smddp

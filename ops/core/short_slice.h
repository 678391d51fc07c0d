// How soon a thread that sleeps most of the time runs when it has something to do.
#pragma once

namespace smddp {

// Asks the kernel for short turns on a core for this thread. From Linux 6.12 on, a thread that
// wakes up then takes a core at once from one that computes in longer turns, and one that yields
// its core gets it back soon; else each may take as long as a turn of all that compute there, some
// milliseconds. Older kernels ignore it, and it needs no privilege.
void TakeShortSlices();

}  // namespace smddp

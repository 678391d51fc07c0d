// What a test asks the fake NCCL, beside NCCL's own functions.
#pragma once

extern "C" {

// How often a function has been called in this process, or has had its effect: those that move
// data or register memory, "ncclCommAbort", "ncclCommDestroy", "ncclCommInitRankConfig". And how
// often there was "a call with registered memory", or memory was "deregistered while in use",
// "freed while registered", or its communicator "destroyed while registered".
int FakeNcclCalls(const char* function);

}  // extern "C"

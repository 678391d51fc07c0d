// What a test asks the fake NCCL, beside NCCL's own functions.
#pragma once

extern "C" {

// How often a function has been called in this process, or has had its effect: those that move
// data, "ncclCommAbort", "ncclCommDestroy", "ncclCommInitRankConfig".
int FakeNcclCalls(const char* function);

}  // extern "C"

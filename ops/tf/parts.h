// The first exchange of collectives whose parts differ by rank: a few numbers from everybody.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tf/op_kernel.h"

namespace smddp_tf {

// The ranks of the attributes' process set, in the job. One rank that is none if there is no such
// set: nothing can be exchanged then, and smddp_run says why.
std::vector<int32_t> RanksOf(const Attributes& attributes);

// Gathers `own` from the set's ranks; row r of *all is rank r's, or zeros if it has joined. `what`
// is for messages. Returns one of capi/smddp.h's codes.
int ExchangeNumbers(const Attributes& attributes, const char* what, const std::vector<int64_t>& own,
                    size_t size, std::vector<std::vector<int64_t>>* all);

}  // namespace smddp_tf

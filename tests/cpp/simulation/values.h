// What each rank puts in, and what must come out, as bytes.
#pragma once

#include <cstddef>
#include <vector>

#include "collective/request.h"

namespace smddp_sim {

// Element i of tensor `tensor` of operation `id`, as rank `rank` has it: a small integer, which
// every dtype holds, and whose sums over eight ranks are exact.
double InputValue(int id, int tensor, int rank, size_t i, bool power_of_two);

void Encode(smddp::DType dtype, double value, char* to);

// Element of the result, from the values of the ranks that bring some, in the dtype's bytes.
// `size` ranks take part; those that have joined bring zeros.
void EncodeReduced(const smddp::Request& request, const std::vector<double>& values, int size,
                   char* to);

}  // namespace smddp_sim

// The ranks of a job that is a part of what the launcher started: init(comm=[...]).
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "transport/bootstrap/bootstrap.h"

namespace smddp {

// Why the listed ranks cannot form a job; "" if they can.
std::string ListProblem(const std::vector<int>& ranks, int size);

// Restricts the job to the listed ranks, in that order; a rank that is not listed is a job of its
// own. Disjoint lists make several jobs.
Status ChooseJob(const std::vector<int>& ranks, const Bootstrap::Problem& problem, Bootstrap* job);

}  // namespace smddp

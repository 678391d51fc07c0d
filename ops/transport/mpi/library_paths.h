#pragma once

#include <string>
#include <vector>

// Where the launcher's MPI library may be.

namespace smddp {

// Of Open MPI, or of MPICH and those that share its ABI.
const char* LibraryName(bool open_mpi);

// In the order in which they should be tried; the last is the bare name, for the loader to find.
std::vector<std::string> LibraryPaths(bool open_mpi);

}  // namespace smddp

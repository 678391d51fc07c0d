// Sockets: which ranks of a node run on the same one.
#pragma once

#include <string>
#include <vector>

#include "core/topology.h"

namespace smddp {

// The number of the socket on which all these cores are; Topology::kUnknownSocket if they are on
// several, or if the files in `folder` do not say.
int SocketOf(const std::vector<bool>& cores, const std::string& folder);
// Of the cores to which the calling thread is bound.
int OwnSocket();

// Places the ranks of this node: on the sockets that all ranks announced; or, if `emulated` is not
// 0, on so many. All ranks have the same arguments, so they decide alike.
void PlaceOnSockets(int emulated, const std::vector<int>& announced, Topology* topo);
// Places the ranks of a process set, of which this rank is one, as they are in the job.
void PlaceAsInJob(const Topology& job, Topology* set);

// The job ranks of each socket of this node, as a list of lists.
std::string SocketsJson(const Topology& topo);

}  // namespace smddp

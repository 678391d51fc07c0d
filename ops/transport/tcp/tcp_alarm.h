// Alarm over TCP, which also notices that a node was lost, or the link to it.
#pragma once

#include <memory>
#include <vector>

#include "transport/alarm.h"
#include "transport/tcp/mesh.h"

namespace smddp {

// peers[rank] is this rank, without a socket. A peer whose connection ends before its alarm was
// destroyed raises it by that: so does a node that does not answer the kernel for 10 s.
std::unique_ptr<Alarm> MakeTcpAlarm(std::vector<Peer> peers);

}  // namespace smddp

// PeerGroup over TCP: a connection to each peer, driven by Test(), without threads or locks.
#pragma once

#include <memory>
#include <vector>

#include "transport/peer_group.h"
#include "transport/tcp/mesh.h"

namespace smddp {

// peers[rank] is this rank, without a socket. Once a peer has been lost in the middle of an
// operation, all calls return an error that names it.
std::unique_ptr<PeerGroup> MakeTcpGroup(int rank, std::vector<Peer> peers);

}  // namespace smddp

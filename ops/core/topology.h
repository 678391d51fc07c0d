// Topology: pure rank arithmetic, no I/O.
//
// A topology covers a process set, all ranks or some of them, which are numbered from 0 within the
// set. Messages and `root_rank` use the number in the whole job instead, the job rank. Ranks of one
// node can share memory. Within a node, ranks are in ascending order (local_rank); nodes are
// ordered by their lowest rank (cross_rank).
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>  // for move
#include <vector>

namespace smddp {

struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node = 0;       // Horovod's cross_rank
  int num_nodes = 1;  // Horovod's cross_size
  bool homogeneous = true;
  // Ranks that own a share of each chunk: the smallest local size, so that local rank j < owners
  // exists on every node and reduces its share with the ranks j of the other nodes.
  int owners = 1;
  std::vector<std::vector<int>> nodes;  // ranks of each node, ascending
  std::vector<int> job_ranks;           // of each rank of the set, ascending
  // Local ranks of each socket of this node, ascending; sockets are ordered by their lowest rank. A
  // single one if it is not known on which the ranks run.
  std::vector<std::vector<int>> sockets;
  int socket = 0;       // this rank's
  int socket_rank = 0;  // its place in sockets[socket]
  // Ranks that own a share on each socket, as `owners` on each node.
  int socket_owners = 1;

  // keys[r] identifies rank r's node: equal keys share memory. Empty job_ranks: all ranks.
  template <typename Key>
  static Topology FromKeys(int rank, const std::vector<Key>& keys,
                           std::vector<int> job_ranks = {}) {
    Topology topo;
    topo.rank = rank;
    topo.size = static_cast<int>(keys.size());
    topo.job_ranks = std::move(job_ranks);
    if (topo.job_ranks.empty()) {
      topo.job_ranks.resize(keys.size());
      std::iota(topo.job_ranks.begin(), topo.job_ranks.end(), 0);
    }
    std::map<Key, int> index;
    for (int r = 0; r < topo.size; ++r) {
      auto [it, added] = index.emplace(keys[r], static_cast<int>(topo.nodes.size()));
      if (added) topo.nodes.emplace_back();
      topo.nodes[it->second].push_back(r);
      if (r == rank) {
        topo.node = it->second;
        topo.local_rank = static_cast<int>(topo.nodes[it->second].size()) - 1;
      }
    }
    topo.num_nodes = static_cast<int>(topo.nodes.size());
    topo.local_size = static_cast<int>(topo.nodes[topo.node].size());
    topo.owners = topo.size;
    for (const auto& node : topo.nodes) {
      topo.owners = std::min(topo.owners, static_cast<int>(node.size()));
      topo.homogeneous = topo.homogeneous && node.size() == topo.nodes[0].size();
    }
    topo.PlaceOnSockets(std::vector<int>(topo.local_size, kUnknownSocket));
    return topo;
  }

  static constexpr int kUnknownSocket = -1;
  // Groups local ranks 0, 1, ... by the socket on which each runs. All are one group if one runs
  // anywhere or if that is not known.
  void PlaceOnSockets(std::vector<int> ids) {
    bool known = std::find(ids.begin(), ids.end(), kUnknownSocket) == ids.end();
    if (!known) std::fill(ids.begin(), ids.end(), 0);
    sockets.clear();
    std::map<int, int> index;
    for (int local = 0; local < local_size; ++local) {
      auto [it, added] = index.emplace(ids[local], static_cast<int>(sockets.size()));
      if (added) sockets.emplace_back();
      sockets[it->second].push_back(local);
      if (local == local_rank) {
        socket = it->second;
        socket_rank = static_cast<int>(sockets[socket].size()) - 1;
      }
    }
    socket_owners = local_size;
    for (const auto& ranks : sockets) {
      socket_owners = std::min(socket_owners, static_cast<int>(ranks.size()));
    }
  }
  // The socket of a local rank of this node.
  int SocketOf(int local) const {
    int found = 0;
    while (!std::binary_search(sockets[found].begin(), sockets[found].end(), local)) ++found;
    return found;
  }

  // The job rank of local rank `local` on this node.
  int JobRank(int local) const { return job_ranks[nodes[node][local]]; }
  // The rank in this set of a job rank; -1 if it is not a member.
  int RankOf(int job_rank) const {
    auto it = std::lower_bound(job_ranks.begin(), job_ranks.end(), job_rank);
    bool found = it != job_ranks.end() && *it == job_rank;
    return found ? static_cast<int>(it - job_ranks.begin()) : -1;
  }
};

}  // namespace smddp

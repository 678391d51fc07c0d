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
    return topo;
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

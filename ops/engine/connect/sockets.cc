#include "engine/connect/sockets.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <utility>  // for move

#include "engine/connect/binding.h"

namespace smddp {

int SocketOf(const std::vector<bool>& cores, const std::string& folder) {
  int socket = Topology::kUnknownSocket;
  for (size_t core = 0; core < cores.size(); ++core) {
    if (!cores[core]) continue;
    std::ifstream file(folder + "/cpu" + std::to_string(core) + "/topology/physical_package_id");
    int package = 0;
    if (!(file >> package) || package < 0) return Topology::kUnknownSocket;
    if (socket != Topology::kUnknownSocket && package != socket) return Topology::kUnknownSocket;
    socket = package;
  }
  return socket;
}

int OwnSocket() { return SocketOf(CoresOf(0), "/sys/devices/system/cpu"); }

void PlaceOnSockets(int emulated, const std::vector<int>& announced, Topology* topo) {
  std::vector<int> ids;
  for (int r : topo->nodes[topo->node]) {
    auto local = static_cast<int64_t>(ids.size());
    bool known = emulated == 0;
    ids.push_back(known ? announced[r] : static_cast<int>(local * emulated / topo->local_size));
  }
  topo->PlaceOnSockets(std::move(ids));
}

void PlaceAsInJob(const Topology& job, Topology* set) {
  const std::vector<int>& node = job.nodes[job.node];
  std::vector<int> ids;
  for (int local = 0; local < set->local_size; ++local) {
    auto place = std::lower_bound(node.begin(), node.end(), set->JobRank(local));
    ids.push_back(job.SocketOf(static_cast<int>(place - node.begin())));
  }
  set->PlaceOnSockets(std::move(ids));
}

std::string SocketsJson(const Topology& topo) {
  std::string text;
  for (const auto& ranks : topo.sockets) {
    text += text.empty() ? "[" : ", [";
    for (size_t k = 0; k < ranks.size(); ++k) {
      text += (k == 0 ? "" : ", ") + std::to_string(topo.JobRank(ranks[k]));
    }
    text += "]";
  }
  return "[" + text + "]";
}

}  // namespace smddp

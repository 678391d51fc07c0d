// A channel as a rank that has joined sees it: what its peers have begun without it.
#include <algorithm>
#include <utility>  // for move

#include "collective/joined.h"
#include "core/deadline.h"
#include "engine/channel.h"

namespace smddp {

// Ranks that wait for the same number of tickets join in the same round.
uint32_t Channel::JoinRound(uint64_t tickets) const {
  return static_cast<uint32_t>(tickets / static_cast<uint64_t>(resources_.shm->size()));
}

// Looks for an operation that peers have begun without this rank. Within the node, that is a chunk
// staged by a peer. After the whole node has joined, only chunks staged by joined ranks belong to
// this round: others belong to operations after the join. An owner then exchanges headers with the
// other nodes.
bool Channel::FindBegun(uint64_t tickets, JoinedChannel* joined, SlotHeader* begun) {
  const ShmGroup& shm = *resources_.shm;
  for (int p = 0; p < shm.size(); ++p) {
    uint64_t staged = shm.channel_cell(p, resources_.index).staged.load(std::memory_order_acquire);
    if (staged <= resources_.next_chunk) continue;
    *begun = shm.header(p, resources_.index, resources_.next_chunk);
    bool of_round = begun->presence == Presence::kJoined && begun->join_round == JoinRound(tickets);
    if (of_round || shm.JoinTickets() < tickets) return true;
  }
  if (resources_.share_peers == nullptr || joined->over || shm.JoinTickets() < tickets)
    return false;

  SlotHeader own{};
  own.presence = Presence::kJoined;
  own.root = shm.LastJoined(&own.count);
  bool held = false;
  joined->failure = resources_.exchange.Poll(resources_.share_peers.get(), own, &held);
  if (!held) return false;

  uint64_t latest = 0;
  bool everybody = true;  // every node has joined
  for (const SlotHeader& node : resources_.exchange.headers()) {
    if (node.presence == Presence::kGone) joined->failure = GoneElsewhere(node.root, "join()");
    if (node.presence == Presence::kGone) return false;
    everybody = everybody && node.presence == Presence::kJoined;
    if (node.presence == Presence::kHere) {
      *begun = node;
      return true;
    }
    if (node.count >= latest) joined->last = node.root;
    latest = std::max(latest, node.count);
  }

  joined->over = everybody;
  resources_.exchange.Close();
  return false;
}

bool Channel::EnqueueJoined(uint64_t tickets, JoinedChannel* joined) {
  std::lock_guard<std::mutex> lock(mutex_);
  joined->run = 0;
  SlotHeader begun;
  if (!queue_.empty() || !failure_.ok() || !FindBegun(tickets, joined, &begun)) return false;
  auto operation = std::make_unique<Operation>();
  operation->request = JoinedRequest(begun, *resources_.topology, &operation->memory);
  operation->request.joined.round = JoinRound(tickets);
  operation->ready = NowSeconds();
  operation->awaited = false;
  operation->done = [](const Status&) {};  // the rank that began it gets the error
  joined->run = begun.run;
  queue_.push_back(std::move(operation));
  return true;
}

}  // namespace smddp

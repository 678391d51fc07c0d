// Collective: one operation under way on one rank, advanced by whoever has time.
//
// Advance() never blocks: it does what can be done now and says so. Who calls it, how to wait in
// between and when to give up is the engine's business (engine/channel.h), so an algorithm has no
// thread, no clock and no deadline of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collective/header_exchange.h"
#include "collective/request.h"
#include "core/status.h"
#include "core/topology.h"
#include "transport/peer_group.h"
#include "transport/shm/shm_group.h"

namespace smddp {

// What the ranks share for one ordered stream of collectives.
struct ChannelResources {
  const Topology* topology = nullptr;
  ShmGroup* shm = nullptr;
  int index = 0;
  // The owners with the same local rank, one a node; may be null.
  std::unique_ptr<PeerGroup> share_peers;
  std::unique_ptr<PeerGroup> all_ranks;  // null on a single node
  HeaderExchange exchange;               // of the owners
  bool reads_peers = false;              // every rank of the node can read the others' memory
  bool threads = false;                  // see MismatchReport
  bool waited = false;                   // the same
  bool timed = false;                    // collectives note when their peers had come
  uint64_t next_chunk = 0;               // the same on all ranks between operations
  uint64_t mismatches = 0;               // the same on all ranks of the node
  size_t piece_bytes = 1 << 20;          // of payloads that move between nodes; see CrossNodeMove
};

enum class Progress { kNone, kSome, kDone };

class Collective {
 public:
  virtual ~Collective() = default;

  virtual Progress Advance() = 0;
  // After kDone. Mismatch leaves the channel usable; any other failure breaks the communicator.
  virtual const Status& status() const = 0;
  // When all ranks were known to have begun it too, in seconds of core/deadline.h; 0 before that,
  // and if the channel is not timed.
  virtual double met_at() const = 0;
  // Job ranks that this one waits for.
  virtual std::vector<int> Missing() const = 0;
};

}  // namespace smddp

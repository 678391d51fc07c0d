// Collective: one operation in progress on one rank.
//
// Advance() never blocks: it makes the progress that is possible now. Who calls it, how to wait
// between calls and when to give up is up to the engine (engine/channel.h), so an algorithm has no
// thread, no clock and no deadline of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collective/header_exchange.h"
#include "collective/request.h"
#include "collective/staging.h"
#include "core/status.h"
#include "core/topology.h"
#include "transport/device_group.h"
#include "transport/peer_group.h"
#include "transport/shm/shm_group.h"

namespace smddp {

// The resources of one channel: shared memory, groups between nodes, and the counters that ranks
// keep in step.
struct ChannelResources {
  const Topology* topology = nullptr;
  ShmGroup* shm = nullptr;
  int index = 0;
  // The owners of the same share, one per node; may be null.
  std::unique_ptr<PeerGroup> share_peers;
  std::unique_ptr<PeerGroup> all_ranks;  // null on a single node
  HeaderExchange exchange;               // among the owners
  StorePolicy staging_choice;            // how this rank writes into its slots
  bool reads_peers = false;              // every rank of the node can read its peers' memory
  bool threads = false;                  // see MismatchReport
  bool waited = false;                   // see MismatchReport
  bool timed = false;                    // collectives record when all peers had arrived
  uint64_t next_chunk = 0;               // the same on all ranks between operations
  uint64_t mismatches = 0;               // the same on all ranks of the node
  size_t piece_bytes = 1 << 20;          // of payloads moved between nodes, at a time
  DeviceGroup* devices = nullptr;        // reduces in the devices' memory; may be null
  size_t in_background = 0;              // of the channel's collectives; see InBackground()
  HostBuffer staging;                    // for tensors in the memory of a device; see HostCopy
};

enum class Progress { kNone, kSome, kDone };

class Collective {
 public:
  virtual ~Collective() = default;

  virtual Progress Advance() = 0;
  // Valid after kDone. A mismatch leaves the channel usable; any other failure breaks the
  // communicator.
  virtual const Status& status() const = 0;
  // When all ranks were known to have begun the operation, in seconds of core/deadline.h; 0 before
  // that, and if the channel is not timed.
  virtual double met_at() const = 0;
  // Job ranks that this rank is waiting for.
  virtual std::vector<int> Missing() const = 0;
  // Whether those ranks may only be waiting for other nodes, where a rank can name the culprit.
  virtual bool MayWaitForOtherNodes() const = 0;
  // Whether the rest goes on without the channel's memory and counters, so that the next operation
  // may begin. Advance() is still to be called.
  virtual bool InBackground() const { return false; }
  // Called when the operation is failed from outside. After it returns, nothing in the background
  // accesses the request's tensors.
  virtual void Abort() {}
};

}  // namespace smddp

// Reading the memory of another rank of the node, where the kernel allows it, so that bytes which
// only move are copied once: see process_vm_readv(2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace smddp {

// `bytes` at `address` of another process, wanted at `out` of this one.
struct PeerBytes {
  void* out;
  uint64_t address;
  size_t bytes;
};

// Under Yama's restricted ptrace scope a process is read by nobody but its ancestors: lets the
// processes of our launcher's daemon, our parent, read us too. They are the ranks of this node.
void LetPeersRead();
// The process whose descendants that lets read; 0: none. `scope` is Yama's ptrace_scope.
int ReadersUnder(const std::string& scope, int parent);

// Whether process `pid` can be read by this one, and holds `expected` at `address`.
bool CanReadPeer(int pid, uint64_t address, uint64_t expected);

// kRemote: the process is gone. After a failure the outputs hold part of what was wanted.
Status ReadPeer(int pid, const std::vector<PeerBytes>& wanted);

}  // namespace smddp

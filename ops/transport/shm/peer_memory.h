// Reads the memory of another rank of the node with process_vm_readv(2), where the kernel allows
// it, so that data which is only moved needs a single copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace smddp {

// `bytes` at `address` in another process, to be copied to `out` in this one.
struct PeerBytes {
  void* out;
  uint64_t address;
  size_t bytes;
};

// Yama's restricted ptrace scope allows only a process's ancestors to read it. This also allows the
// descendants of our parent, which is the launcher's daemon: the ranks of this node.
void LetPeersRead();
// The process whose descendants LetPeersRead() allows to read; 0: none. `scope` is Yama's
// ptrace_scope.
int ReadersUnder(const std::string& scope, int parent);

// Whether this process can read process `pid` and finds `expected` at `address`.
bool CanReadPeer(int pid, uint64_t address, uint64_t expected);

// kRemote: the process is gone. After a failure the outputs may be partly written.
Status ReadPeer(int pid, const std::vector<PeerBytes>& wanted);

}  // namespace smddp

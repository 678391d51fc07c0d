#include "transport/shm/peer_memory.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace smddp {
namespace {

// Ranges per system call; the kernel's limit is IOV_MAX (1024).
constexpr size_t kRanges = 256;

}  // namespace

void LetPeersRead() {
  std::string scope;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  int readers = ReadersUnder(scope, ::getppid());
  // A failure is detected when peers try to read; they then use the slots.
  if (readers != 0) (void)::prctl(PR_SET_PTRACER, readers, 0, 0, 0);
}

int ReadersUnder(const std::string& scope, int parent) {
  // Process 1 is an ancestor of everything: in a container it may be mpirun, on a machine it adopts
  // orphans. A parent of 0 is in another process namespace.
  return scope == "1" && parent > 1 ? parent : 0;
}

bool CanReadPeer(int pid, uint64_t address, uint64_t expected) {
  uint64_t found = ~expected;
  return ReadPeer(pid, {{&found, address, sizeof found}}).ok() && found == expected;
}

Status ReadPeer(int pid, const std::vector<PeerBytes>& wanted) {
  iovec here[kRanges], there[kRanges];
  size_t next = 0, skip = 0;  // the first `skip` bytes of range `next` have been read
  while (next < wanted.size()) {
    size_t n = std::min(kRanges, wanted.size() - next);
    for (size_t i = 0; i < n; ++i) {
      const PeerBytes& one = wanted[next + i];
      size_t from = i == 0 ? skip : 0;
      here[i] = {static_cast<char*>(one.out) + from, one.bytes - from};
      there[i] = {reinterpret_cast<void*>(one.address + from), one.bytes - from};
    }
    ssize_t done = ::process_vm_readv(pid, here, n, there, n, 0);
    if (done <= 0) {
      bool gone = done < 0 && errno == ESRCH;
      std::string why = done == 0 ? "nothing was read" : std::strerror(errno);
      return {gone ? Code::kRemote : Code::kSystem,
              "reading the memory of process " + std::to_string(pid) + ": " + why};
    }
    skip += static_cast<size_t>(done);
    while (next < wanted.size() && skip >= wanted[next].bytes) skip -= wanted[next++].bytes;
  }
  return {};
}

}  // namespace smddp

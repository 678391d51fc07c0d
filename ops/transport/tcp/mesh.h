// Connects the ranks of a group with each other by TCP.
//
// Each listens for those with higher ranks, and connects to those with lower ones. Both sides prove
// that they are of the job: they sign random numbers of both, which the ranks have gathered before.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "transport/tcp/descriptor.h"

namespace smddp {

// Where a rank listens; gathered as bytes.
struct Endpoint {
  char host[64] = {};  // a numeric address
  uint16_t port = 0;
  int32_t job_rank = 0;
  unsigned char nonce[16] = {};  // new for each mesh, so that no signature is of use twice
};

// A connection to a peer.
struct Peer {
  Descriptor socket;
  std::string name;  // "rank 3 at 10.0.0.2"
};

constexpr size_t kSignatureBytes = 32;
using Signature = std::array<unsigned char, kSignatureBytes>;
// By the secret of the job.
using Sign = std::function<Signature(const std::string& text)>;

class Mesh {
 public:
  // Listens at a numeric address of this host.
  Status Listen(const std::string& host, int job_rank);
  const Endpoint& own() const { return own_; }

  // all[rank] is own(). Tries until all are connected, or until `problem` returns an error, which
  // then says who is missing. The place of this rank in *peers has no socket.
  Status Connect(int rank, const std::vector<Endpoint>& all, const Sign& sign,
                 const std::function<Status()>& problem, std::vector<Peer>* peers);

 private:
  Descriptor listener_;
  Endpoint own_;
};

// "rank 3 at 10.0.0.2 was lost: <why>"
Status LostPeer(const std::string& name, const std::string& why);

}  // namespace smddp

// Peers that are threads of one process, connected by TCP over the loopback interface.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "core/deadline.h"
#include "transport/tcp/tcp_group.h"

namespace smddp_test {

// Not a signature that anybody should use: enough to tell texts and secrets apart.
inline smddp::Sign SignWith(const std::string& secret) {
  return [secret](const std::string& text) {
    smddp::Signature signature{};
    uint64_t state = 14695981039346656037u;
    std::string whole = secret + text;
    for (size_t i = 0; i < whole.size() + signature.size(); ++i) {
      const char next = i < whole.size() ? whole[i] : 'x';
      state = (state ^ static_cast<unsigned char>(next)) * 1099511628211u;
      signature[i % signature.size()] = static_cast<unsigned char>(state >> 32);
    }
    return signature;
  };
}

// An error after so many seconds.
inline std::function<smddp::Status()> Within(double seconds) {
  smddp::Deadline deadline(seconds);
  return [deadline] {
    return deadline.Passed() ? smddp::Status(smddp::Code::kTimeout, "not connected in time")
                             : smddp::Status();
  };
}

// The peers of each rank; a rank whose mesh failed has none.
inline std::vector<std::vector<smddp::Peer>> ConnectMeshes(std::vector<smddp::Mesh>* meshes,
                                                           const std::string& secret = "s") {
  std::vector<smddp::Endpoint> all;
  for (smddp::Mesh& mesh : *meshes) all.push_back(mesh.own());
  std::vector<std::vector<smddp::Peer>> peers(all.size());
  RunRanks(static_cast<int>(all.size()), [&](int rank) {
    size_t own = static_cast<size_t>(rank);
    smddp::Status status =
        (*meshes)[own].Connect(rank, all, SignWith(secret), Within(30), &peers[own]);
    EXPECT(status.ok(), status.message());
  });
  return peers;
}

inline std::vector<smddp::Mesh> ListeningMeshes(int size) {
  std::vector<smddp::Mesh> meshes(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    smddp::Status status = meshes[static_cast<size_t>(rank)].Listen("127.0.0.1", rank);
    EXPECT(status.ok(), status.message());
  }
  return meshes;
}

inline std::vector<std::unique_ptr<smddp::PeerGroup>> MakeTcpGroups(int size) {
  std::vector<smddp::Mesh> meshes = ListeningMeshes(size);
  std::vector<std::unique_ptr<smddp::PeerGroup>> groups;
  for (std::vector<smddp::Peer>& peers : ConnectMeshes(&meshes)) {
    groups.push_back(smddp::MakeTcpGroup(static_cast<int>(groups.size()), std::move(peers)));
  }
  return groups;
}

}  // namespace smddp_test

// What TCP adds to the contract of groups: who may connect, and peers that are lost.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "check.h"
#include "core/deadline.h"
#include "tcp_job.h"
#include "transport/tcp/tcp_alarm.h"

namespace {

using namespace smddp;
using smddp_test::ConnectMeshes;
using smddp_test::ListeningMeshes;
using smddp_test::MakeTcpGroups;
using smddp_test::SignWith;
using smddp_test::Within;

// More than kernels keep of a connection.
constexpr size_t kMuch = size_t{12} << 20;

Status Finish(PeerGroup* group) {
  Deadline deadline(30);
  for (bool done = false; !deadline.Passed(); std::this_thread::yield()) {
    Status status = group->Test(&done);
    if (!status.ok() || done) return status;
  }
  return {Code::kTimeout, "an exchange hung"};
}

bool Heard(Alarm* alarm, int* code, std::string* text, double seconds) {
  Deadline deadline(seconds);
  while (!deadline.Passed()) {
    if (alarm->Heard(code, text)) return true;
    ::usleep(1000);
  }
  return false;
}

std::vector<std::unique_ptr<Alarm>> MakeAlarms(int size) {
  std::vector<Mesh> meshes = ListeningMeshes(size);
  std::vector<std::unique_ptr<Alarm>> alarms;
  for (std::vector<Peer>& peers : ConnectMeshes(&meshes)) {
    alarms.push_back(MakeTcpAlarm(std::move(peers)));
  }
  return alarms;
}

// Connects to a rank, and says something else than a rank of the job would.
Descriptor Stranger(const Endpoint& endpoint, const std::string& says) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  ::inet_pton(AF_INET, endpoint.host, &address.sin_addr);
  Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::send(socket.fd(), says.data(), says.size(), 0), static_cast<ssize_t>(says.size()));
  return socket;
}

}  // namespace

TEST(TcpMovesMoreThanKernelsKeep) {
  auto groups = MakeTcpGroups(3);
  smddp_test::RunRanks(3, [&](int rank) {
    PeerGroup* group = groups[static_cast<size_t>(rank)].get();
    char* memory = group->Memory(6 * kMuch);
    for (int peer = 0; peer < 3; ++peer) std::memset(memory + peer * kMuch, rank * 3 + peer, kMuch);
    char* received = memory + 3 * kMuch;
    Status status = group->StartAlltoall(memory, kMuch, received);
    if (status.ok()) status = Finish(group);
    ASSERT(status.ok(), status.message());
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank) continue;
      const std::string wanted(kMuch, static_cast<char>(peer * 3 + rank));
      EXPECT(std::memcmp(received + peer * kMuch, wanted.data(), kMuch) == 0);
    }
  });
}

TEST(TcpRelaysBroadcastsBesideOtherExchanges) {
  auto groups = MakeTcpGroups(4);
  smddp_test::RunRanks(4, [&](int rank) {
    PeerGroup* group = groups[static_cast<size_t>(rank)].get();
    char* memory = group->Memory(kMuch + 64);
    std::memset(memory, rank == 2 ? 7 : 0, kMuch);
    memory[kMuch + 16 + rank] = static_cast<char>(rank);
    Status status = group->StartBroadcast(memory, kMuch, 2);
    char* gathered = memory + kMuch + 16;
    if (status.ok()) status = group->StartAllgather(gathered + rank, 1, gathered);
    for (int i = 0; i < 2 && status.ok(); ++i) status = Finish(group);
    ASSERT(status.ok(), status.message());
    EXPECT(std::memcmp(memory, std::string(kMuch, 7).data(), kMuch) == 0);
    for (int peer = 0; peer < 4; ++peer) EXPECT_EQ(static_cast<int>(gathered[peer]), peer);
  });
}

TEST(TcpNamesAPeerThatIsLostWhileItSends) {
  auto groups = MakeTcpGroups(3);
  smddp_test::RunRanks(3, [&](int rank) {
    auto& group = groups[static_cast<size_t>(rank)];
    char* memory = group->Memory(6 * kMuch);
    Status status = group->StartAlltoall(memory, kMuch, memory + 3 * kMuch);
    if (rank == 1) return group.reset();
    for (int i = 0; i < 2; ++i) {
      if (status.ok()) status = Finish(group.get());
      EXPECT_EQ(status.code(), Code::kRemote, status.message());
      EXPECT(status.message().find("rank 1 at 127.0.0.1 was lost: ") == 0, status.message());
      status = group->StartBroadcast(memory, 8, 0);  // no call can succeed any more
    }
  });
}

TEST(TcpPeerMayLeaveAfterItsLastExchange) {
  auto groups = MakeTcpGroups(3);
  smddp_test::RunRanks(3, [&](int rank) {
    auto& group = groups[static_cast<size_t>(rank)];
    char* memory = group->Memory(3 * kMuch);
    std::memset(memory + rank * kMuch, rank + 1, kMuch);
    Status status = group->StartAllgather(memory + rank * kMuch, kMuch, memory);
    if (status.ok()) status = Finish(group.get());
    EXPECT(status.ok(), status.message());
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT(memory[(peer + 1) * kMuch - 1] == static_cast<char>(peer + 1));
    }
    group.reset();
  });
}

TEST(TcpTellsDifferentExchangesApart) {
  auto groups = MakeTcpGroups(2);
  smddp_test::RunRanks(2, [&](int rank) {
    PeerGroup* group = groups[static_cast<size_t>(rank)].get();
    char* memory = group->Memory(64);
    Status status = group->StartAllgather(memory + 8 * rank, rank == 0 ? 8 : 4, memory);
    if (status.ok()) status = Finish(group);
    if (rank == 0) EXPECT_EQ(status.code(), Code::kSystem, status.message());
    if (rank == 0) EXPECT(status.message().find("rank 1 at 127.0.0.1 sends 4 bytes") == 0);
  });
}

TEST(TcpLetsOnlyRanksOfTheJobIn) {
  std::vector<Mesh> meshes = ListeningMeshes(2);
  const Endpoint listens = meshes[0].own();
  std::string forged(36, '\0');
  forged[0] = 1;  // "I am rank 1", without its signature
  Descriptor strangers[] = {Stranger(listens, "GET / HTTP/1.1\r\n\r\n and more than a hello"),
                            Stranger(listens, forged), Stranger(listens, "half"),
                            Stranger(listens, "")};
  auto peers = ConnectMeshes(&meshes);
  EXPECT(peers[0][1].socket.is_open() && peers[1][0].socket.is_open());
  char byte = 0;
  EXPECT(::recv(strangers[1].fd(), &byte, 1, 0) <= 0, "the forged one is closed");
  EXPECT_EQ(peers[0][1].name, std::string("rank 1 at 127.0.0.1"));
}

TEST(TcpNamesWhoDoesNotConnect) {
  std::vector<Mesh> meshes = ListeningMeshes(2);
  const std::vector<Endpoint> all = {meshes[0].own(), meshes[1].own()};
  smddp_test::RunRanks(2, [&](int rank) {
    std::vector<Peer> peers;
    const Sign sign = SignWith(rank == 0 ? "one secret" : "another");
    Status status = meshes[static_cast<size_t>(rank)].Connect(rank, all, sign, Within(1), &peers);
    EXPECT_EQ(status.code(), Code::kTimeout);
    const std::string other = "rank " + std::to_string(1 - rank) + " at 127.0.0.1";
    EXPECT(status.message().find(other) != std::string::npos, status.message());
  });
}

TEST(TcpIsNotKeptOpenByChildren) {
  auto groups = MakeTcpGroups(2);
  pid_t child = ::fork();
  if (child == 0) {
    ::usleep(20 * 1000 * 1000);  // longer than the parent waits
    ::_exit(0);
  }
  groups[1].reset();
  char* memory = groups[0]->Memory(16);
  Status status = groups[0]->StartAllgather(memory, 8, memory);
  if (status.ok()) status = Finish(groups[0].get());
  EXPECT_EQ(status.code(), Code::kRemote, status.message());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(TcpAlarmIsHeardByAllOthers) {
  auto alarms = MakeAlarms(3);
  int code = 0;
  std::string text;
  EXPECT(!alarms[0]->Heard(&code, &text));
  EXPECT(alarms[1]->Raise(4, "rank 5 died"));
  for (size_t node : {0, 2}) {
    ASSERT(Heard(alarms[node].get(), &code, &text, 20), std::to_string(node));
    EXPECT_EQ(code, 4);
    EXPECT_EQ(text, std::string("rank 5 died"));
  }
}

TEST(TcpAlarmTellsALostNodeFromOneThatLeaves) {
  std::vector<Mesh> meshes = ListeningMeshes(3);
  auto peers = ConnectMeshes(&meshes);
  auto first = MakeTcpAlarm(std::move(peers[0])), second = MakeTcpAlarm(std::move(peers[1]));
  int code = 0;
  std::string text;
  second.reset();  // says goodbye
  EXPECT(!Heard(first.get(), &code, &text, 0.2), text);
  peers[2].clear();  // its process has died
  ASSERT(Heard(first.get(), &code, &text, 20));
  EXPECT_EQ(code, static_cast<int>(Code::kRemote));
  EXPECT(text.find("rank 2 at 127.0.0.1 was lost: ") == 0, text);
  EXPECT(!first->Heard(&code, &text), "once");
}

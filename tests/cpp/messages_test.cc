// Messages between two ranks (engine/messages.h).
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "core/deadline.h"
#include "emulation.h"
#include "engine_job.h"

namespace {

using namespace smddp_test;

using Handle = std::shared_ptr<Message>;
using Values = std::vector<int64_t>;

constexpr double kPatience = 20;  // more than any wait here takes

// One rank's end.
struct End {
  Communicator* communicator;
  std::shared_ptr<RankSet> set;

  Handle Start(bool sends, int peer, Values* values, const std::string& name,
               double timeout = 0) const {
    auto message = std::make_shared<Message>(sends, peer, values->data(),
                                             values->size() * sizeof(int64_t), name, timeout);
    Status status = set->StartMessage(message);
    EXPECT(status.ok(), status.message());
    return message;
  }
  Handle Send(int peer, Values* values, const std::string& name = "m") const {
    return Start(true, peer, values, name);
  }
  Handle Receive(int peer, Values* values, const std::string& name = "m") const {
    return Start(false, peer, values, name);
  }
  // Its outcome; a message that does not end fails the test.
  Status Await(const Handle& message) const {
    static_cast<void>(set->AwaitMessage(message.get(), kPatience));
    EXPECT(message->over, "after 20 s");
    return message->over ? message->outcome : Status(Code::kTimeout, "it goes on");
  }
  Status Barrier() const {
    Request request;
    request.kind = Kind::kBarrier;
    request.name = "barrier";
    return set->Run(request);
  }
};

// Runs body(rank, end) on ranks of one node.
void OnOneNode(int ranks, const std::function<void(int, const End&)>& body) {
  if (NoPeerReads()) return;
  Wires wires(ranks, 1);
  for (const auto& connection : wires.connections) connection->reads_peers = true;
  std::vector<std::unique_ptr<Communicator>> all(ranks);
  RunRanks(ranks, [&](int rank) {
    all[rank] = Connect(&wires, rank, kPatience);
    body(rank, {all[rank].get(), Everybody(*all[rank])});
  });
  RunRanks(ranks, [&](int rank) { all[rank]->Leave(true); });
}

// What a rank sends another as its message i, which has any length.
Values Sent(int from, int to, int i) {
  return Values(static_cast<size_t>(i * 7 % 50), from * 10000 + to * 1000 + i);
}

}  // namespace

TEST(MessagesOfOneNameComeInOrderHoweverManyThereAre) {
  constexpr int kRanks = 3, kEach = 96;
  OnOneNode(kRanks, [&](int rank, const End& end) {
    struct Message {
      Values expected, memory;
      Handle handle;
    };
    std::vector<Message> sent(kRanks * kEach), received(kRanks * kEach);
    auto name = [](int i) { return i % 3 == 0 ? "often" : "seldom"; };
    for (int i = 0; i < kEach; ++i) {
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        auto& one = sent[peer * kEach + i];
        one.memory = Sent(rank, peer, i);
        one.handle = end.Send(peer, &one.memory, name(i));
        // The other name first: only messages of one name have an order.
        int j = i < kEach / 3 ? 3 * i : (i - kEach / 3) / 2 * 3 + (i - kEach / 3) % 2 + 1;
        auto& other = received[peer * kEach + i];
        other.expected = Sent(peer, rank, j);
        other.memory.resize(other.expected.size());
        other.handle = end.Receive(peer, &other.memory, name(j));
      }
    }
    for (auto* side : {&received, &sent}) {
      for (auto& one : *side) {
        if (one.handle == nullptr) continue;
        Status status = end.Await(one.handle);
        EXPECT(status.ok(), status.message());
        if (side == &received) EXPECT(one.memory == one.expected);
      }
    }
  });
}

TEST(WhoeverSendsIsNamed) {
  OnOneNode(4, [](int rank, const End& end) {
    Values own{rank};
    if (rank != 2) {
      EXPECT(end.Await(end.Send(2, &own)).ok());
      return;
    }
    std::vector<int64_t> seen;
    for (int i = 0; i < 3; ++i) {
      Handle message = end.Receive(Message::kAnyRank, &own);
      EXPECT(end.Await(message).ok());
      EXPECT_EQ(own[0], message->source);
      seen.push_back(own[0]);
    }
    std::sort(seen.begin(), seen.end());
    EXPECT(seen == (std::vector<int64_t>{0, 1, 3}));
  });
}

TEST(AMessageForWhichThereIsNoRoomFailsOnBothRanks) {
  OnOneNode(2, [](int rank, const End& end) {
    Values values(rank == 0 ? 3 : 2, rank);
    Status status = end.Await(rank == 0 ? end.Send(1, &values) : end.Receive(0, &values));
    EXPECT_EQ(status.code(), Code::kMismatch);
    for (const char* part : {"rank 0 sends 24 bytes to rank 1", "room for 16"}) {
      EXPECT(status.message().find(part) != std::string::npos, status.message());
    }
    EXPECT(values == Values(rank == 0 ? 3 : 2, rank), "nothing was written");
    // There may be more room than is needed, and the job goes on.
    values = Values(rank == 0 ? 1 : 2, rank);
    EXPECT(end.Await(rank == 0 ? end.Send(1, &values) : end.Receive(0, &values)).ok());
    if (rank == 1) EXPECT(values == (Values{0, 1}));
  });
}

TEST(AReceiveForWhichNoThreadWaitsIsServed) {
  OnOneNode(2, [](int rank, const End& end) {
    for (int i = 0; i < 20; ++i) {
      Values values{rank * 100 + i};
      Handle message = rank == 0 ? end.Receive(1, &values) : end.Send(0, &values);
      if (i % 4 == 1) ::usleep(3000);     // the listener may have gone to sleep,
      if (i % 4 == 2) ::usleep(150'000);  // or wait to be woken
      // Rank 1 comes to the barrier only once its message is taken.
      if (rank == 1) EXPECT(end.Await(message).ok());
      EXPECT(end.Barrier().ok());
      EXPECT(end.Await(message).ok());
      EXPECT_EQ(values[0], 100 + i);
    }
  });
}

TEST(AWaitThatEndsLeavesTheMessageToTheListener) {
  OnOneNode(2, [](int rank, const End& end) {
    Values values{rank};
    Handle message = rank == 0 ? end.Receive(1, &values) : nullptr;
    // The listener stops to look meanwhile.
    if (rank == 0) EXPECT(end.set->AwaitMessage(message.get(), 0.3).ok());
    EXPECT(end.Barrier().ok());
    if (rank == 1) EXPECT(end.Await(end.Send(0, &values)).ok());
    EXPECT(end.Barrier().ok());
    if (rank == 0) EXPECT(end.Await(message).ok());
    EXPECT_EQ(values[0], 1);
  });
}

TEST(MessagesThatAreNotReceivedYetHoldUpNoOthers) {
  OnOneNode(3, [](int rank, const End& end) {
    constexpr int kMany = kMessageSlots + 100;
    std::vector<Values> values(kMany, Values{7});
    std::vector<Handle> messages;
    Values other{rank};
    for (int i = 0; rank == 0 && i < kMany; ++i) messages.push_back(end.Send(1, &values[i]));
    // Rank 1 waits for rank 2, which waits for what rank 0 sends after all that.
    if (rank == 0) EXPECT(end.Await(end.Send(2, &other)).ok());
    if (rank == 2) EXPECT(end.Await(end.Receive(0, &other)).ok());
    if (rank == 2) EXPECT(end.Await(end.Send(1, &other, "go on")).ok());
    if (rank == 1) EXPECT(end.Await(end.Receive(2, &other, "go on")).ok());
    if (rank == 0) EXPECT(end.Await(end.Send(1, &other, "another")).ok());
    if (rank == 1) EXPECT(end.Await(end.Receive(0, &other, "another")).ok());
    for (int i = 0; rank == 1 && i < kMany; ++i) {
      values[i] = {0};
      EXPECT(end.Await(end.Receive(0, &values[i])).ok());
      EXPECT_EQ(values[i][0], 7);
    }
    EXPECT(end.Barrier().ok());  // which rank 0 may reach with messages that have no slot yet
    for (const auto& message : messages) EXPECT(end.Await(message).ok());
  });
}

TEST(MoreNamesThanSlots) {
  OnOneNode(2, [](int rank, const End& end) {
    constexpr int kMany = kMessageSlots + 50;
    std::vector<Values> values;
    std::vector<Handle> messages;
    for (int i = 0; i < kMany; ++i) values.push_back({rank == 0 ? i : -1});
    for (int i = 0; i < kMany; ++i) {
      std::string name = "m" + std::to_string(i);
      messages.push_back(rank == 0 ? end.Send(1, &values[i], name)
                                   : end.Receive(0, &values[i], name));
    }
    for (int i = 0; i < kMany; ++i) {
      EXPECT(end.Await(messages[i]).ok());
      EXPECT_EQ(values[i][0], i);
    }
  });
}

TEST(AnAbortEndsMessages) {
  OnOneNode(3, [](int rank, const End& end) {
    Values values{1, 2};
    Handle early = end.Receive((rank + 1) % 3, &values, "never sent");
    if (rank == 1) {
      ::usleep(50'000);
      end.communicator->Abort("had enough");
    }
    Status status = end.Await(early);
    EXPECT_EQ(status.code(), Code::kRemote);
    EXPECT(status.message().find("rank 1 had enough") != std::string::npos, status.message());
    EXPECT_EQ(end.Await(end.Send((rank + 1) % 3, &values, "late")).code(), Code::kRemote);
  });
}

TEST(APeerThatHasLeftIsNamed) {
  for (bool any : {false, true}) {
    OnOneNode(2, [any](int rank, const End& end) {
      Values values{1};
      EXPECT(end.Barrier().ok());
      if (rank == 1) {
        end.communicator->Leave(true);
        return;
      }
      Status status = end.Await(end.Receive(any ? Message::kAnyRank : 1, &values, "tag 3"));
      EXPECT_EQ(status.code(), Code::kRemote);
      for (const char* part : {"rank 1 (process", "waited for it in recv 'tag 3', 8 bytes"}) {
        EXPECT(status.message().find(part) != std::string::npos, status.message());
      }
    });
  }
}

TEST(OthersMaySendWhenOneHasLeft) {
  OnOneNode(3, [](int rank, const End& end) {
    Values values{rank};
    EXPECT(end.Barrier().ok());
    if (rank == 1) {
      end.communicator->Leave(true);
    } else if (rank == 2) {
      ::usleep(400'000);
      EXPECT(end.Await(end.Send(0, &values)).ok());
    } else {
      Status status = end.Await(end.Receive(Message::kAnyRank, &values));
      EXPECT(status.ok(), status.message());
      EXPECT_EQ(values[0], 2);
    }
  });
}

TEST(ALimitCountsWhileAThreadWaits) {
  OnOneNode(2, [](int rank, const End& end) {
    Values values{1};
    Handle message = end.Start(false, 1 - rank, &values, "late", rank == 0 ? 0.3 : kPatience);
    ::usleep(500'000);
    EXPECT(!message->over, "nobody has waited");
    if (rank == 0) EXPECT(end.set->AwaitMessage(message.get(), 0.1).ok());
    EXPECT(!message->over, "the limit has not passed");
    EXPECT(end.Barrier().ok());
    Status status = end.Await(message);
    EXPECT_EQ(status.code(), Code::kTimeout);
    EXPECT(status.message().find("for rank 1 in recv 'late'") != std::string::npos,
           status.message());
  });
}

TEST(WhatIsWithdrawnIsNotReceived) {
  OnOneNode(2, [](int rank, const End& end) {
    Values values{rank + 1}, other{rank + 10};
    Messages* messages = end.set->messages();
    if (rank == 0) {
      Handle unwanted = end.Send(1, &other), refused = end.Receive(1, &other, "nothing");
      for (const Handle& one : {unwanted, refused}) {
        messages->Withdraw(one.get(), {Code::kUsage, "withdrawn"});
        EXPECT_EQ(end.Await(one).code(), Code::kUsage);
      }
    }
    EXPECT(end.Barrier().ok());
    Handle message = rank == 0 ? end.Send(1, &values) : end.Receive(0, &values);
    EXPECT(end.Await(message).ok());
    EXPECT_EQ(values[0], 1);
    messages->Withdraw(message.get(), {Code::kUsage, "too late"});
    EXPECT(message->outcome.ok());
  });
}

TEST(RanksOnSeveralNodesHaveNoMessages) {
  Wires wires(2, 2);
  for (const auto& connection : wires.connections) connection->reads_peers = true;
  std::vector<std::unique_ptr<Communicator>> all(2);
  RunRanks(2, [&](int rank) {
    all[rank] = Connect(&wires, rank);
    EXPECT(!Everybody(*all[rank])->messages()->possible());
  });
  RunRanks(2, [&](int rank) { all[rank]->Leave(true); });
}

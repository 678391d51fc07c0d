// The contract of PeerGroup: every exchange, of no bytes and of many, with blocks in place and
// apart, and buffers that touch.
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "check.h"
#include "contract_job.h"

namespace {

using namespace smddp;
using smddp_test::InGroups;
using Bytes = std::vector<size_t>;

// Byte i of what rank `from` sends to rank `to`.
char Byte(int from, int to, size_t i) {
  return static_cast<char>(i % 251 + static_cast<size_t>(from * 31 + to * 7));
}

void Fill(char* at, int from, int to, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) at[i] = Byte(from, to, i);
}

bool Holds(const char* at, int from, int to, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != Byte(from, to, i)) return false;
  }
  return true;
}

size_t Sum(const Bytes& bytes) {
  size_t sum = 0;
  for (size_t n : bytes) sum += n;
  return sum;
}

// Waits for the oldest exchange.
Status Finish(PeerGroup* group) {
  auto start = std::chrono::steady_clock::now();
  for (bool done = false;;) {
    Status status = group->Test(&done);
    if (!status.ok() || done) return status;
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) {
      return {Code::kTimeout, "an exchange hung"};
    }
  }
}

// The same on all ranks: what each sends to each, many of them nothing.
std::vector<Bytes> RandomSplits(unsigned seed, int size, size_t most) {
  std::mt19937 random(seed);
  std::vector<Bytes> splits(static_cast<size_t>(size), Bytes(static_cast<size_t>(size)));
  for (Bytes& row : splits) {
    bool nothing = random() % 3 == 0;
    for (size_t& bytes : row) bytes = nothing || random() % 2 == 0 ? 0 : random() % most;
  }
  return splits;
}

struct AlltoallV {
  Bytes send, receive;
  AlltoallV(const std::vector<Bytes>& splits, int rank) : send(splits[static_cast<size_t>(rank)]) {
    for (const Bytes& row : splits) receive.push_back(row[static_cast<size_t>(rank)]);
  }
  void FillAt(char* at, int rank) const {
    for (size_t p = 0; p < send.size(); at += send[p++]) {
      Fill(at, rank, static_cast<int>(p), send[p]);
    }
  }
  bool CameAt(const char* at, int rank) const {
    for (size_t p = 0; p < receive.size(); at += receive[p++]) {
      if (!Holds(at, static_cast<int>(p), rank, receive[p])) return false;
    }
    return true;
  }
};

}  // namespace

TEST(PeersGatherBlocks) {
  InGroups([](PeerGroup* group) {
    int rank = group->rank(), size = group->size();
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{100001}}) {
      for (bool in_place : {false, true}) {
        size_t all = bytes * static_cast<size_t>(size);
        char* recv = group->Memory(all + bytes);
        if (all + bytes > 0) std::memset(recv, '?', all + bytes);
        char* send = in_place ? recv + bytes * static_cast<size_t>(rank) : recv + all;
        Fill(send, rank, 0, bytes);
        Status status = group->StartAllgather(send, bytes, recv);
        if (status.ok()) status = Finish(group);
        ASSERT(status.ok(), status.message());
        for (int r = 0; r < size; ++r) {
          ASSERT(Holds(recv + bytes * static_cast<size_t>(r), r, 0, bytes), std::to_string(bytes));
        }
      }
    }
  });
}

TEST(PeersGatherUnevenBlocks) {
  InGroups([](PeerGroup* group) {
    int rank = group->rank(), size = group->size();
    for (unsigned seed = 0; seed < 12; ++seed) {
      Bytes bytes = RandomSplits(seed, size, 30000)[0], offsets;
      size_t all = 0;
      for (size_t n : bytes) {
        offsets.push_back(all);
        all += n;
      }
      size_t own = bytes[static_cast<size_t>(rank)];
      // What is sent lies before what is received, so they have one address if it is nothing.
      char* send = group->Memory(own + all);
      char* recv = send + own;
      if (seed % 2 == 1) send = recv + offsets[static_cast<size_t>(rank)];
      Fill(send, rank, 0, own);
      Status status = group->StartAllgatherV(send, recv, bytes, offsets);
      if (status.ok()) status = Finish(group);
      ASSERT(status.ok(), status.message());
      for (int r = 0; r < size; ++r) {
        size_t at = static_cast<size_t>(r);
        ASSERT(Holds(recv + offsets[at], r, 0, bytes[at]), "seed " + std::to_string(seed));
      }
    }
  });
}

TEST(PeersExchangeBlocks) {
  InGroups([](PeerGroup* group) {
    int rank = group->rank(), size = group->size();
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{100001}}) {
      size_t all = bytes * static_cast<size_t>(size);
      char* send = group->Memory(2 * all);
      for (int p = 0; p < size; ++p) Fill(send + bytes * static_cast<size_t>(p), rank, p, bytes);
      Status status = group->StartAlltoall(send, bytes, send + all);
      if (status.ok()) status = Finish(group);
      ASSERT(status.ok(), status.message());
      for (int r = 0; r < size; ++r) {
        const char* at = (r == rank ? send : send + all) + bytes * static_cast<size_t>(r);
        ASSERT(Holds(at, r, rank, bytes), std::to_string(bytes));
      }
    }
  });
}

// Received bytes lie right behind those that are sent, or before them: with nothing to send, or to
// receive, both buffers have one address.
TEST(PeersExchangeUnevenBlocks) {
  InGroups([](PeerGroup* group) {
    for (size_t most : {10, 5000, 300000}) {
      for (unsigned seed = 0; seed < 20; ++seed) {
        AlltoallV one(RandomSplits(seed, group->size(), most), group->rank());
        size_t sent = Sum(one.send), received = Sum(one.receive);
        char* memory = group->Memory(sent + received);
        bool behind = seed % 2 == 0;
        char *send = behind ? memory : memory + received, *recv = behind ? memory + sent : memory;
        one.FillAt(send, group->rank());
        Status status = group->StartAlltoallV(send, one.send, recv, one.receive);
        if (status.ok()) status = Finish(group);
        ASSERT(status.ok(), status.message() + ", seed " + std::to_string(seed));
        ASSERT(one.CameAt(recv, group->rank()), "seed " + std::to_string(seed));
      }
    }
  });
}

TEST(PeersBroadcast) {
  InGroups([](PeerGroup* group) {
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{100001}}) {
      for (int root = 0; root < group->size(); ++root) {
        char* buffer = group->Memory(bytes);
        if (bytes > 0) std::memset(buffer, '?', bytes);
        if (root == group->rank()) Fill(buffer, root, 0, bytes);
        Status status = group->StartBroadcast(buffer, bytes, root);
        if (status.ok()) status = Finish(group);
        ASSERT(status.ok(), status.message());
        ASSERT(Holds(buffer, root, 0, bytes), std::to_string(bytes));
      }
    }
  });
}

TEST(PeersHaveManyExchangesUnderWay) {
  InGroups([](PeerGroup* group) {
    int rank = group->rank();
    for (unsigned round = 0; round < 5; ++round) {
      std::vector<AlltoallV> all;
      Bytes places;
      size_t total = 0;
      for (unsigned i = 0; i < PeerGroup::kDepth; ++i) {
        all.emplace_back(RandomSplits(round * 100 + i, group->size(), 20000), rank);
        places.push_back(total);
        total += Sum(all[i].send) + Sum(all[i].receive);
      }
      char* memory = group->Memory(total);
      for (size_t i = 0; i < all.size(); ++i) {
        char* send = memory + places[i];
        all[i].FillAt(send, rank);
        Status status =
            group->StartAlltoallV(send, all[i].send, send + Sum(all[i].send), all[i].receive);
        ASSERT(status.ok(), status.message());
      }
      for (size_t i = 0; i < all.size(); ++i) {
        Status status = Finish(group);
        ASSERT(status.ok(), status.message());
        const char* recv = memory + places[i] + Sum(all[i].send);
        ASSERT(all[i].CameAt(recv, rank), std::to_string(i));
      }
    }
  });
}

TEST(PeersMayNotReceiveWhereTheySend) {
  InGroups([](PeerGroup* group) {
    size_t size = static_cast<size_t>(group->size());
    Bytes some(size, 8);
    char* memory = group->Memory(8 * size);
    for (const Status& status :
         {group->StartAlltoallV(memory, some, memory, some),
          group->StartAlltoall(memory, 8, memory),
          group->rank() > 0 ? group->StartAllgather(memory, 8, memory)
                            : Status(Code::kSystem, "the own block lies there")}) {
      EXPECT_EQ(status.code(), Code::kSystem, status.message());
    }
    bool done = false;
    EXPECT(group->Test(&done).ok() && done, "none has begun");
  });
}

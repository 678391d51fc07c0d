// Process sets that their members make alone, while the other ranks of the job do something else.
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "core/deadline.h"
#include "engine_job.h"
#include "tcp_job.h"
#include "transport/bootstrap/callbacks.h"

namespace {

using namespace smddp_test;

// Where ranks meet that are threads, as in a store that they share.
struct Store {
  std::mutex mutex;
  std::map<std::string, std::string> values;
};

// One rank's view of an allgather through the store.
struct Exchange {
  Store* store;
  std::string prefix;
  int rank, size;
  int gathers = 0;
  std::string said = "";

  std::string Key(int of) const {
    return prefix + "/" + std::to_string(gathers) + "/" + std::to_string(of);
  }
  BootstrapCallbacks Callbacks() {
    auto start = [](void* context, const void* send, int64_t bytes) {
      auto* own = static_cast<Exchange*>(context);
      std::lock_guard<std::mutex> lock(own->store->mutex);
      ++own->gathers;
      own->store->values[own->Key(own->rank)].assign(static_cast<const char*>(send), bytes);
      return 0;
    };
    auto test = [](void* context, void* recv, int64_t bytes) {
      auto* own = static_cast<Exchange*>(context);
      std::lock_guard<std::mutex> lock(own->store->mutex);
      std::string all;
      for (int r = 0; r < own->size; ++r) {
        auto it = own->store->values.find(own->Key(r));
        if (it == own->store->values.end()) {
          return own->store->values.count(own->prefix + "/failure") != 0 ? -1 : 0;
        }
        all += it->second;
      }
      if (static_cast<int64_t>(all.size()) != bytes) return -1;
      std::memcpy(recv, all.data(), all.size());
      return 1;
    };
    auto fail = [](void* context, const char* why) {
      auto* own = static_cast<Exchange*>(context);
      std::lock_guard<std::mutex> lock(own->store->mutex);
      own->store->values[own->prefix + "/failure"] = why;
    };
    auto why = [](void* context) {
      auto* own = static_cast<Exchange*>(context);
      std::lock_guard<std::mutex> lock(own->store->mutex);
      own->said = own->store->values[own->prefix + "/failure"];
      return own->said.c_str();
    };
    auto sign = [](void*, const void* data, int64_t bytes, void* signature) {
      Signature made = SignWith("s")(std::string(static_cast<const char*>(data), bytes));
      std::memcpy(signature, made.data(), made.size());
    };
    return {rank, size, this, start, test, fail, why, "127.0.0.1", sign};
  }
};

// Makes a set of these ranks under a name that all of them have for it. *number: 0 if it failed.
Status Make(Communicator* communicator, Store* store, const std::string& name,
            const std::vector<int>& ranks, int* number, double limit = 0) {
  const int self = communicator->topology().rank;
  int place = 0;
  while (ranks[place] != self) ++place;
  Exchange exchange{store, name, place, static_cast<int>(ranks.size())};
  auto members = MakeCallbackBootstrap(exchange.Callbacks());
  *number = 0;
  return communicator->AddSetOfMembers(ranks, *members, limit, number);
}

// The sum over the set of each rank's own number, plus one.
float SumOf(Communicator* communicator, int number) {
  Status status;
  std::shared_ptr<RankSet> set = communicator->Find(number, &status);
  if (set == nullptr) return -1;
  float value = static_cast<float>(communicator->topology().rank + 1);
  status = set->Run(Sum(&value, "x"));
  EXPECT(status.ok(), status.message());
  return value;
}

}  // namespace

TEST(MembersMakeSetsWithoutTheOthers) {
  for (int nodes : {1, 2}) {
    Wires wires(4, nodes);
    Store store;
    RunRanks(4, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      int own = 0, outer = 0;
      const std::vector<int> mine = rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
      Status status = Make(communicator.get(), &store, rank % 2 ? "odd" : "even", mine, &own);
      ASSERT(status.ok(), status.message());
      EXPECT_EQ(SumOf(communicator.get(), own), rank % 2 == 0 ? 4.0f : 6.0f);
      EXPECT(communicator->RanksOf(own) == mine);
      if (rank == 0 || rank == 3) {  // in the order of their places, not of their nodes
        status = Make(communicator.get(), &store, "outer", {0, 3}, &outer);
        ASSERT(status.ok(), status.message());
        EXPECT(outer != own);
        EXPECT_EQ(SumOf(communicator.get(), outer), 5.0f);
      }
      float value = 1;
      status = Everybody(*communicator)->Run(Sum(&value, "all"));
      EXPECT(status.ok(), status.message());
      communicator->Leave(!status.ok());
    });
  }
}

TEST(ThoseWhoKnowNothingOfASetAgreeOnAllOthers) {
  Wires wires(3, 1);
  Store store;
  RunRanks(3, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    int number = 0, again = 0;
    Status status;
    if (rank != 1) status = Make(communicator.get(), &store, "outer", {0, 2}, &number);
    ASSERT(status.ok(), status.message());
    status = communicator->AddSet({0, 2}, &again);
    ASSERT(status.ok(), status.message());
    EXPECT(again != number);
    if (rank != 1) EXPECT_EQ(SumOf(communicator.get(), number), 4.0f);
    if (rank != 1) EXPECT_EQ(SumOf(communicator.get(), again), 4.0f);
    // Rank 1 has no such set, so none is removed.
    status = communicator->RemoveSet(again - 1);
    EXPECT(status.code() == Code::kUsage, status.message());
    if (rank != 1) EXPECT_EQ(SumOf(communicator.get(), number), 4.0f);
    status = communicator->RemoveSet(again);
    EXPECT(status.ok(), status.message());
    communicator->Leave(!status.ok());
  });
}

TEST(ASetThatAllItsMembersLeftIsUsedAgain) {
  Wires wires(2, 1);
  Store store;
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    std::vector<int> numbers(4);
    auto make = [&](int i) {
      std::string name = "group " + std::to_string(i);
      Status status = Make(communicator.get(), &store, name, {0, 1}, &numbers[i]);
      EXPECT(status.ok(), status.message());
      EXPECT_EQ(SumOf(communicator.get(), numbers[i]), 3.0f);
    };
    make(0);
    make(1);
    EXPECT(numbers[1] != numbers[0]);  // nobody had left it
    communicator->LeaveSet(numbers[1]);
    make(2);
    EXPECT_EQ(numbers[2], numbers[1]);
    if (rank == 0) communicator->LeaveSet(numbers[0]);
    make(3);
    EXPECT(numbers[3] > numbers[2]);  // rank 1 had not left it
    communicator->Leave(false);
  });
}

TEST(MembersThatMakeDifferentSetsNameBoth) {
  Wires wires(3, 1);
  Store store;
  std::vector<std::string> texts(3);
  RunRanks(3, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    int number = 0;
    Status status;
    if (rank == 0) status = Make(communicator.get(), &store, "group", {0, 1}, &number);
    if (rank == 1) status = Make(communicator.get(), &store, "group", {0, 1, 2}, &number);
    if (rank == 2) {
      float value = 1;
      status = Everybody(*communicator)->Run(Sum(&value, "all"));
    }
    EXPECT(status.code() == Code::kRemote, status.message());
    texts[rank] = status.message();
    communicator->Leave(true);
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  EXPECT(texts[0].find("[0, 1]") != std::string::npos, texts[0]);
  EXPECT(texts[0].find("[0, 1, 2]") != std::string::npos, texts[0]);
}

TEST(AMemberThatDoesNotComeEndsTheWaitAndTheJob) {
  Wires wires(2, 1);
  Store store;
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    int number = 0;
    float value = 1;
    Deadline soon(10);
    Status status = rank == 0 ? Make(communicator.get(), &store, "group", {0, 1}, &number, 0.2)
                              : Everybody(*communicator)->Run(Sum(&value, "all"));
    EXPECT(status.code() == Code::kTimeout, status.message());
    EXPECT(status.message().find("its timeout") != std::string::npos, status.message());
    EXPECT(!soon.Passed());
    communicator->Leave(true);
  });
}

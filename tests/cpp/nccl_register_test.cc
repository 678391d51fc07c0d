// The buffer in which tensors are packed, as it is registered with NCCL: by what the version has,
// on all ranks or on none, and deregistered before it is freed.
#include <unistd.h>

#include "core/deadline.h"
#include "nccl_job.h"
#include "transport/nccl/library.h"

namespace {

using namespace smddp_test;

// What must never happen.
class Misuse {
 public:
  ~Misuse() {
    EXPECT_EQ(in_use_.count(), 0);
    EXPECT_EQ(freed_.count(), 0);
    EXPECT_EQ(destroyed_.count(), 0);
  }

 private:
  Calls in_use_{"deregistered while in use"}, freed_{"freed while registered"},
      destroyed_{"destroyed while registered"};
};

constexpr int kRanks = 3;

// Gradients of 16-bit floats and of several tensors, a reducescatter, and one tensor that is not
// packed; in good order. What the ranks say the buffer is registered as.
std::string Train(const std::vector<NcclOptions>& options, int nodes = 1) {
  Misuse misuse;
  Wires wires(kRanks, nodes);
  std::deque<LaunchTurn> turns(kRanks);
  for (size_t r = 0; r < kRanks; ++r) {
    wires.connections[r]->devices = std::make_unique<NcclGroup>(options[r]);
    for (ChannelResources& channel : wires.connections[r]->channels) {
      channel.devices = wires.connections[r]->devices.get();
      channel.turn = &turns[r];
    }
  }
  std::vector<std::string> told(kRanks);
  RunRanks(kRanks, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    for (int round = 0; round < 3; ++round) {
      auto floats = FloatSum(rank, 5000);
      floats->Add(77, false, [&](size_t) { return rank + 1; });
      Status status = everybody->Run(floats->request);
      EXPECT(status.ok() && floats->At(0, 4999) == SumAt(4999, kRanks), status.message());
      EXPECT_EQ(floats->At(1, 76), 6.0);
      GpuRequest<fake_nccl::Half> half(rank, DType::kFloat16, ReduceOp::kSum, "half");
      half.Add(3000, true, [&](size_t i) { return static_cast<double>(i % 5) + rank; });
      status = everybody->Run(half.request);
      EXPECT(status.ok() && half.At(0, 2999) == 3 * (2999 % 5) + 3, status.message());
      FloatsOf scattered{Kind::kReduceScatter, kRanks, 1000};
      auto two = scattered.Make(rank);
      two->AddWithOutput(kRanks, 1, [&](size_t i) { return static_cast<double>(i) + rank; });
      status = everybody->Run(two->request);
      EXPECT(status.ok() && scattered.IsRight(rank, *two), status.message());
      EXPECT_EQ(two->At(1, 0), 3.0 * rank + 3);
      auto single = FloatSum(rank, 200, "single");
      status = everybody->Run(single->request);
      EXPECT(status.ok() && single->At(0, 9) == SumAt(9, kRanks), status.message());
    }
    std::string stats = communicator->StatsJson(), name = "\"nccl_registered\": \"";
    size_t at = stats.find(name) + name.size();
    told[static_cast<size_t>(rank)] = stats.substr(at, stats.find('"', at) - at);
    communicator->Leave(false);
  });
  EXPECT(told[0] == told[1] && told[1] == told[2], told[0] + told[1] + told[2]);
  return told[0];
}

std::string Train(const NcclOptions& options = Nccl(true), int nodes = 1) {
  return Train(std::vector<NcclOptions>(kRanks, options), nodes);
}

constexpr int kPacked = kRanks * 3 * 3;

}  // namespace

TEST(TheBufferIsRegisteredAsTheVersionOfNcclCan) {
  struct Case {
    const char *version, *registered, *registers, *deregisters;
  };
  for (const Case& one :
       {Case{"23203", "window", "ncclCommWindowRegister", "ncclCommWindowDeregister"},
        Case{"22907", "window", "ncclCommWindowRegister", "ncclCommWindowDeregister"},
        Case{"22906", "buffer", "ncclCommRegister", "ncclCommDeregister"},
        Case{"22707", "buffer", "ncclCommRegister", "ncclCommDeregister"},
        Case{"21805", "none", "", ""}}) {
    Setting version("FAKE_NCCL_VERSION", one.version), late("FAKE_NCCL_DELAY", "300");
    Calls windows("ncclCommWindowRegister"), buffers("ncclCommRegister");
    Calls registers(one.registers), deregisters(one.deregisters);
    Calls used("a call with registered memory");
    for (int nodes : {1, 3}) EXPECT_EQ(Train(Nccl(true), nodes), std::string(one.registered));
    bool any = one.registers[0] != '\0';
    EXPECT_EQ(registers.count(), any ? 2 * kRanks : 0);
    EXPECT_EQ(deregisters.count(), registers.count());
    EXPECT_EQ(windows.count() + buffers.count(), registers.count());
    // What is packed, and nothing else.
    EXPECT_EQ(used.count(), any ? 2 * kPacked : 0);
  }
}

TEST(ALibraryThatLacksFunctionsRegistersWhatItCan) {
  NcclLibrary library{};
  EXPECT(library.registers() == NcclRegisters::kNothing);
  library.MemAlloc = [](void**, size_t) { return kNcclSuccess; };
  library.MemFree = [](void*) { return kNcclSuccess; };
  EXPECT(library.registers() == NcclRegisters::kNothing);
  library.CommRegister = [](const void*, void*, size_t, void**) { return kNcclSuccess; };
  library.CommDeregister = [](const void*, void*) { return kNcclSuccess; };
  EXPECT(library.registers() == NcclRegisters::kBuffers);
  library.CommWindowRegister = [](void*, void*, size_t, void**, int) { return kNcclSuccess; };
  EXPECT(library.registers() == NcclRegisters::kBuffers);
  library.CommWindowDeregister = [](void*, void*) { return kNcclSuccess; };
  EXPECT(library.registers() == NcclRegisters::kWindows);
  EXPECT_EQ(kNcclWindowSymmetric, 1);  // nccl.h of 2.27: NCCL_WIN_COLL_SYMMETRIC
}

TEST(AllRanksRegisterOrNone) {
  Calls registers("ncclCommWindowRegister"), used("a call with registered memory");
  std::vector<NcclOptions> options(kRanks, Nccl(true));
  options[1].registers = false;
  EXPECT_EQ(Train(options), std::string("none"));
  options.assign(kRanks, Nccl(true));
  options[2].kernels = nullptr;  // nobody packs
  options[2].required = options[1].required = options[0].required = false;
  EXPECT_EQ(Train(options), std::string("none"));
  EXPECT_EQ(registers.count() + used.count(), 0);
}

TEST(WindowsThatNcclHasNoUseForAreBuffers) {
  Setting none("FAKE_NCCL_NO_WINDOWS", "1");
  Calls registers("ncclCommRegister"), deregisters("ncclCommDeregister");
  Calls used("a call with registered memory");
  EXPECT_EQ(Train(), std::string("buffer"));
  EXPECT_EQ(used.count(), kPacked);
  EXPECT(registers.count() == kRanks && deregisters.count() == kRanks);
}

TEST(BuffersThatNcclHasNoUseForAreNone) {
  Setting windows("FAKE_NCCL_NO_WINDOWS", "1"), buffers("FAKE_NCCL_NO_BUFFERS", "1");
  for (const char* version : {"23203", "22707"}) {
    Setting of("FAKE_NCCL_VERSION", version);
    Calls used("a call with registered memory");
    EXPECT_EQ(Train(), std::string("none"));
    EXPECT_EQ(used.count(), 0);
  }
}

TEST(ARankThatCannotRegisterSaysWhatDoesWithout) {
  for (const char* version : {"23203", "22707"}) {
    Setting of("FAKE_NCCL_VERSION", version), bad("FAKE_NCCL_FAIL_REGISTER", "1");
    Misuse misuse;
    NcclJob job(2, 1, Nccl(true, 0.5));
    RunRanks(2, [&](int rank) {
      auto one = FloatSum(rank, 100);
      std::string text = job.Run(rank, one->request).message();
      EXPECT(text.find("NCCL cannot connect the ranks") != std::string::npos, text);
      bool remedy = text.find("SMDDP_NCCL_REGISTER=0") != std::string::npos;
      EXPECT(remedy || rank == 0, text);
    });
    // The others may do without NCCL.
    NcclJob automatic(2, 1, Nccl(false, 0.5));
    RunRanks(2, [&](int rank) {
      auto one = FloatSum(rank, 100);
      EXPECT(automatic.Run(rank, one->request).ok() && one->At(0, 3) == SumAt(3, 2));
    });
  }
}

TEST(WithoutMemoryOfNcclsTheBufferIsOfTheDrivers) {
  Setting none("FAKE_NCCL_NO_MEMORY", "1");
  Calls registers("ncclCommWindowRegister");
  NcclJob job(2, 1);
  SumOnTwoRanks(&job, 2);
  EXPECT_EQ(registers.count(), 0);
  EXPECT_EQ(job.group(0)->stats().packed, 1u);
}

// Soon, so the kernels have stopped: until 2.29.7 those in windows would not.
TEST(AnAbortEndsTheRegistration) {
  for (const char* version : {"23203", "22809", "22707"}) {
    Setting of("FAKE_NCCL_VERSION", version), hang("FAKE_NCCL_HANG", "1");
    Misuse misuse;
    Calls windows("ncclCommWindowRegister"), buffers("ncclCommRegister");
    Calls deregisters("ncclCommWindowDeregister"), others("ncclCommDeregister");
    Calls used("a call with registered memory");
    NcclWires wires(2, 1);
    std::vector<std::unique_ptr<GpuRequest<float>>> requests(2);
    RunRanks(2, [&](int rank) {
      constexpr double kTimeout = 1, kMargin = 2;
      auto communicator = Connect(&wires, rank, kTimeout);
      auto everybody = Everybody(*communicator);
      auto& one = requests[static_cast<size_t>(rank)] = FloatSum(rank, 100);
      one->Add(9, true, [&](size_t) { return rank; });
      double begin = NowSeconds();
      Status status = everybody->Run(one->request);
      EXPECT(status.code() == Code::kTimeout, status.message());
      communicator->Leave(true);
      EXPECT(NowSeconds() - begin < kTimeout + kMargin, version);
    });
    EXPECT_EQ(windows.count() + buffers.count(), 2);
    EXPECT_EQ(used.count(), 2);
    EXPECT_EQ(deregisters.count() + others.count(), 0);
  }
}

// What ranks must start with alike, and what becomes of a rank that cannot start.
#include "engine/connect/compare_settings.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "check.h"
#include "engine/communicator.h"
#include "engine/connect/binding.h"

namespace {

using namespace smddp;

// Settles on `size` ranks, and returns what each got.
std::vector<Status> SettleAll(const std::vector<SharedSettings>& terms,
                              const std::vector<std::vector<int>>& members, int* gathers) {
  int size = static_cast<int>(terms.size());
  std::vector<Status> results(size);
  std::vector<std::string> blocks(size);
  std::atomic<int> calls{0}, arrived{0};
  auto meet = [&] {
    int round = arrived++ / size;
    while (arrived < (round + 1) * size) std::this_thread::yield();
  };
  smddp_test::RunRanks(size, [&](int r) {
    auto gather = [&](const void* own, size_t bytes, void* all) {
      ++calls;
      blocks[r].assign(static_cast<const char*>(own), bytes);
      meet();
      for (int p = 0; p < size; ++p) {
        std::memcpy(static_cast<char*>(all) + p * bytes, blocks[p].data(), bytes);
      }
      meet();
      return Status();
    };
    results[r] = CompareSettings(terms[r], r, size, members[r], gather);
  });
  *gathers = calls / size;
  return results;
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

using Launcher = LaunchInfo::Launcher;

}  // namespace

TEST(RanksAreNamedInRanges) {
  EXPECT_EQ(RankRanges({3}), std::string("rank 3"));
  EXPECT_EQ(RankRanges({0, 1}), std::string("ranks 0, 1"));
  EXPECT_EQ(RankRanges({0, 2, 3, 4, 9}), std::string("ranks 0, 2-4, 9"));
}

TEST(DifferencesNameEachValueAndItsRanks) {
  std::vector<std::string> texts = {"a=1\nb=x\nc=\n", "a=1\nb=y\nc=7\n", "a=2\nb=x\n",
                                    "a=1\nb=x\n"};
  EXPECT_EQ(
      Differences(texts, {0, 1, 2, 5}),
      std::string("  a: 1 on ranks 0, 1, 5; 2 on rank 2\n  b: x on ranks 0, 2, 5; y on rank 1"));
  EXPECT_EQ(Differences({texts[0], texts[0]}, {0, 1}), std::string());
}

TEST(EqualTermsCostOneGather) {
  int gathers = 0;
  SharedSettings same{"a=1\n", "v=1\n", ""};
  for (const Status& status : SettleAll({same, same}, {{0, 1}, {0, 1}}, &gathers)) {
    EXPECT(status.ok(), status.message());
  }
  EXPECT_EQ(gathers, 1);
}

TEST(TermsThatDifferFailOnAllRanksAlike) {
  int gathers = 0;
  SharedSettings one{"SMDDP_X=1\n", "", ""}, two{"SMDDP_X=2\n", "", ""};
  std::vector<int> all = {0, 1, 2};
  auto results = SettleAll({one, one, two}, {all, all, all}, &gathers);
  EXPECT_EQ(gathers, 2);
  for (const Status& status : results) {
    EXPECT(status.code() == Code::kMismatch, "code");
    EXPECT(Contains(status.message(), "SMDDP_X: 1 on ranks 0, 1; 2 on rank 2"), status.message());
    EXPECT(Contains(status.message(), "-x NAME"), status.message());
    EXPECT_EQ(status.message(), results[0].message());
  }
}

TEST(JobsWithoutACommonRankMayDiffer) {
  int gathers = 0;
  SharedSettings one{"a=1\n", "", ""}, two{"a=2\n", "", ""};
  for (const Status& status : SettleAll({one, two, one}, {{0, 2}, {1}, {0, 2}}, &gathers)) {
    EXPECT(status.ok(), status.message());
  }
}

TEST(VersionsThatDifferAreNoError) {
  int gathers = 0;
  SharedSettings one{"a=1\n", "TensorFlow=2.15\n", ""}, two{"a=1\n", "TensorFlow=2.21\n", ""};
  for (const Status& status : SettleAll({one, two}, {{0, 1}, {0, 1}}, &gathers)) {
    EXPECT(status.ok(), status.message());
  }
}

TEST(ARankThatCannotStartIsNamedToAll) {
  int gathers = 0;
  SharedSettings good{"a=1\n", "", ""}, bad{"a=2\n", "", "SMDDP_X='y' is not understood"};
  for (const Status& status : SettleAll({good, bad}, {{0, 1}, {0, 1}}, &gathers)) {
    EXPECT(Contains(status.message(), "rank 1 cannot start: SMDDP_X='y'"), status.message());
  }
}

TEST(TheCoreAddsItsOptions) {
  Config config;
  std::string plain = WithCore({}, config).must;
  config.allreduce = "shm";
  config.chunk_bytes = 4096;
  std::string other = WithCore({}, config).must;
  EXPECT(Contains(plain, "SMDDP_ALLREDUCE=automatic\nSMDDP_CHUNK_BYTES=automatic\n"), plain);
  EXPECT(Contains(other, "SMDDP_ALLREDUCE=shm\nSMDDP_CHUNK_BYTES=4096\n"), other);
  for (const char* name : {"smddp_tf version=", "shared memory layout=", "SMDDP_NODES=0",
                           "SMDDP_SINGLE_COPY=1", "oneshot limit=", "oneshot limit of two ranks=",
                           "SMDDP_SINGLE_PROCESS=0", "SMDDP_NCCL=auto"}) {
    EXPECT(Contains(plain, name), name);
  }
}

// An init that fails late destroys a communicator whose threads run.
TEST(ACommunicatorThatIsDestroyedStopsItsThreads) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) ::unsetenv(name);
  auto context = std::make_unique<JobContext>();
  std::unique_ptr<Connection> everybody;
  Status status = ConnectJob(Config(), {}, SharedSettings(), context.get(), &everybody);
  ASSERT(status.ok(), status.message());
  auto communicator = std::make_unique<Communicator>(std::move(context), std::move(everybody));
  status = communicator->Start();
  EXPECT(status.ok(), status.message());
  communicator.reset();
}

TEST(BindingToFewCoresIsToldWithTheOptionToUse) {
  struct Case {
    int used, available, ranks;
    bool told;
  };
  for (Case one :
       {Case{2, 64, 2, true}, Case{1, 2, 1, true}, Case{2, 4, 2, true}, Case{1, 2, 2, true},
        Case{2, 2, 2, false}, Case{2, 3, 2, false}, Case{48, 64, 2, false}, Case{1, 1, 2, false},
        Case{64, 64, 8, false}, Case{0, 8, 1, false}, Case{64, 2, 1, false}}) {
    for (Launcher launcher : {Launcher::kOpenMpi, Launcher::kMpich}) {
      std::string text = BindingAdvice(one.used, one.available, one.ranks, launcher);
      EXPECT_EQ(Contains(text, "--bind-to none"), one.told, text);
      EXPECT_EQ(!text.empty(), one.told, text);
      EXPECT_EQ(Contains(text, "--map-by"), one.told && launcher == Launcher::kOpenMpi, text);
    }
  }
}

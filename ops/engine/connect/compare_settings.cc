#include "engine/connect/compare_settings.h"

#include <algorithm>
#include <cstring>

#include "collective/selector.h"
#include "core/log.h"
#include "transport/shm/shm_group.h"

namespace smddp {
namespace {

// Never change these two: other versions of the library read them.
struct Digest {
  uint64_t must, should;
  uint64_t failed;
};
struct Texts {
  char must[2048], should[512], problem[1536];
};

template <size_t n>
void Copy(const std::string& text, char (&to)[n]) {
  std::memcpy(to, text.data(), std::min(text.size(), n - 1));
}

std::string OrAutomatic(const std::string& value) { return value.empty() ? "automatic" : value; }

const char kRemedy[] =
    "\nGive every rank the same: mpirun hands a variable on to all ranks with -x NAME (Open MPI) "
    "or "
    "-genv NAME VALUE (MPICH), srun with --export=ALL; versions must be the same on every machine";

// The outcome of comparing all texts, which is the same on all ranks of a job.
Status Judge(const std::vector<Texts>& all, int rank, const std::vector<int>& members) {
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].problem[0] == '\0') continue;
    std::string who = "rank " + std::to_string(r) + " cannot start: ";
    return {Code::kSystem, who + all[r].problem};
  }
  std::vector<std::string> must, should;
  for (int r : members) {
    must.emplace_back(all[r].must);
    should.emplace_back(all[r].should);
  }
  std::string differences = Differences(must, members);
  if (!differences.empty()) {
    return {Code::kMismatch,
            "the ranks were started with different settings, which must be the same:\n" +
                differences + kRemedy};
  }
  differences = Differences(should, members);
  if (!differences.empty() && rank == members[0]) {
    LogWarning("the ranks run different versions, which is not tested:\n" + differences);
  }
  return {};
}

}  // namespace

SharedSettings WithCore(SharedSettings terms, const Config& config) {
  Selector selector;
  auto add = [&](const char* name, const std::string& value) {
    terms.must += std::string(name) + "=" + value + "\n";
  };
  add("smddp_tf version", SMDDP_VERSION);
  add("shared memory layout", ShmGroup::Layout());
  add("oneshot limit of two ranks", std::to_string(selector.oneshot_bytes_of_two));
  add("oneshot limit", std::to_string(selector.oneshot_bytes));
  add("single copy limits", std::to_string(selector.single_copy_bytes) + " " +
                                std::to_string(selector.single_copy_alltoall_bytes) + " " +
                                std::to_string(selector.single_copy_gathers) + " " +
                                std::to_string(selector.kernel_copies));
  add("SMDDP_ALLREDUCE", OrAutomatic(config.allreduce));
  add("SMDDP_CHUNK_BYTES",
      OrAutomatic(config.chunk_bytes == 0 ? "" : std::to_string(config.chunk_bytes)));
  add("SMDDP_SINGLE_COPY", config.single_copy ? "1" : "0");
  add("SMDDP_NODES", std::to_string(config.nodes));
  add("SMDDP_NCCL", config.nccl);
  add("SMDDP_SINGLE_PROCESS", config.single_process ? "1" : "0");
  return terms;
}

Status CompareSettings(const SharedSettings& own, int rank, int size,
                       const std::vector<int>& members, const GatherBlocks& gather) {
  Digest digest{HashOf(own.must), HashOf(own.should), own.problem.empty() ? 0u : 1u};
  std::vector<Digest> digests(size);
  Status status = gather(&digest, sizeof digest, digests.data());
  if (!status.ok()) return status;
  bool same = true;
  for (const Digest& one : digests) {
    same =
        same && one.failed == 0 && one.must == digests[0].must && one.should == digests[0].should;
  }
  if (same) return {};
  Texts texts{};
  Copy(own.must, texts.must);
  Copy(own.should, texts.should);
  Copy(own.problem, texts.problem);
  std::vector<Texts> all(size);
  status = gather(&texts, sizeof texts, all.data());
  return status.ok() ? Judge(all, rank, members) : status;
}

}  // namespace smddp

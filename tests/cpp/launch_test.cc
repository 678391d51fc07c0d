// What the environment says of the launcher: join, refuse, or alone.
#include "transport/bootstrap/launcher_env.h"

#include <map>

#include "check.h"

namespace {

using namespace smddp;
using Launcher = LaunchInfo::Launcher;
using Vars = std::map<std::string, std::string>;

LaunchInfo Read(const Vars& vars, bool separate = false) {
  return ReadLaunchInfo(
      [&](const char* name) {
        auto it = vars.find(name);
        return it == vars.end() ? nullptr : it->second.c_str();
      },
      separate);
}

struct Case {
  const char* what;
  Vars vars;
  Launcher launcher;
  int rank, size;
  bool refused;
};

const Vars kServer = {{"PMIX_SERVER_URI2", "pmix.1;tcp4://127.0.0.1:5"}};
Vars With(Vars vars, const Vars& more) {
  vars.insert(more.begin(), more.end());
  return vars;
}
const Vars kStep = {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"},
                    {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "2"},  {"SLURM_LOCALID", "0"}};
const Vars kBatch = {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}};
const Vars kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
const Vars kHydra = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}};
const Vars kTorch = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "3"}};

const Case kCases[] = {
    {"nothing", {}, Launcher::kNone, 0, 1, false},
    {"Open MPI's mpirun", With(kOpenMpi, {{"PMIX_RANK", "1"}}), Launcher::kOpenMpi, 1, 2, false},
    {"mpirun of one rank",
     {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
     Launcher::kOpenMpi,
     0,
     1,
     false},
    {"mpirun that tells no size", {{"OMPI_COMM_WORLD_RANK", "0"}}, Launcher::kOpenMpi, 0, 0, false},
    {"mpirun in an allocation: its daemon is a task of a step", With(kOpenMpi, kStep),
     Launcher::kOpenMpi, 1, 2, false},
    {"mpirun wins over torchrun's", With(kOpenMpi, kTorch), Launcher::kOpenMpi, 1, 2, false},
    {"MPICH's mpirun", kHydra, Launcher::kMpich, 1, 2, false},
    {"MPICH's in an allocation", With(kHydra, kStep), Launcher::kMpich, 1, 2, false},
    {"srun --mpi=pmix", With(With(kStep, {{"PMIX_RANK", "2"}}), kServer), Launcher::kPmix, 2, 4,
     false},
    {"srun -n 1 --mpi=pmix",
     With(With({{"SLURM_STEP_ID", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "4"}},
               {{"PMIX_RANK", "0"}}),
          kServer),
     Launcher::kPmix, 0, 1, false},
    {"prun: PMIx tells no size", With({{"PMIX_RANK", "0"}}, kServer), Launcher::kPmix, 0, 0, false},
    {"PMIX_RANK without a server", {{"PMIX_RANK", "1"}}, Launcher::kPmix, 1, 0, true},
    {"the same in a step", With(kStep, {{"PMIX_RANK", "2"}}), Launcher::kPmix, 2, 4, true},
    {"srun --mpi=pmi2", With(kStep, {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}), Launcher::kPmi, 2, 4,
     false},
    {"PMI without a size", {{"PMI_RANK", "2"}}, Launcher::kPmi, 2, 0, false},
    {"PALS with PMI",
     {{"PALS_RANKID", "1"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
     Launcher::kPmi,
     1,
     2,
     false},
    {"PALS without PMI", {{"PALS_RANKID", "1"}}, Launcher::kNone, 1, 0, true},
    {"flux with PMI",
     {{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "2"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
     Launcher::kPmi,
     1,
     2,
     false},
    {"flux without PMI",
     {{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "2"}},
     Launcher::kNone,
     1,
     2,
     true},
    {"flux, one task",
     {{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}},
     Launcher::kNone,
     0,
     1,
     false},
    {"flux, one task, PMIx",
     With({{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}, {"PMIX_RANK", "0"}}, kServer),
     Launcher::kPmix, 0, 1, false},
    {"srun without PMI", kStep, Launcher::kNone, 2, 4, true},
    {"srun, first task",
     {{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}},
     Launcher::kNone,
     0,
     2,
     true},
    {"a task with no word of its step",
     {{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "1"}},
     Launcher::kNone,
     1,
     2,
     true},
    {"srun -n 1",
     {{"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "4"}},
     Launcher::kNone,
     0,
     1,
     false},
    {"a batch script", kBatch, Launcher::kNone, 0, 1, false},
    {"salloc's shell",
     {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}},
     Launcher::kNone,
     0,
     1,
     false},
    {"salloc's shell in its own step", With(kBatch, {{"SLURM_STEP_ID", "4294967290"}}),
     Launcher::kNone, 0, 1, false},
    {"torchrun", kTorch, Launcher::kNone, 3, 8, true},
    {"torchrun in a batch script", With(kBatch, kTorch), Launcher::kNone, 3, 8, true},
    {"torchrun of one", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, Launcher::kNone, 0, 1, false},
    {"WORLD_SIZE is somebody's word", {{"WORLD_SIZE", "large"}}, Launcher::kNone, 0, 1, false},
};

}  // namespace

TEST(TheLauncherIsReadFromTheEnvironment) {
  for (const Case& one : kCases) {
    LaunchInfo info = Read(one.vars);
    EXPECT(info.launcher == one.launcher, one.what);
    EXPECT_EQ(info.rank, one.rank, one.what);
    EXPECT_EQ(info.size, one.size, one.what);
    EXPECT_EQ(!info.refusal.empty(), one.refused, one.what);
  }
}

TEST(ARefusalSaysWhatWasSeenAndWhatToDo) {
  for (const Case& one : kCases) {
    if (!one.refused) continue;
    LaunchInfo info = Read(one.vars);
    EXPECT(!info.seen.empty(), one.what);
    for (const std::string& part :
         {info.seen, std::string("mpirun"), std::string("SMDDP_SINGLE_PROCESS=1")}) {
      EXPECT(info.refusal.find(part) != std::string::npos, one.what + (": " + info.refusal));
    }
  }
}

TEST(SeparateProcessesAreAloneUnlessMpirunLaunchedThem) {
  for (const Case& one : kCases) {
    LaunchInfo info = Read(one.vars, true);
    EXPECT(info.refusal.empty(), one.what);
    bool mpirun = one.launcher == Launcher::kOpenMpi || one.launcher == Launcher::kMpich;
    EXPECT_EQ(info.size, mpirun ? one.size : 1, one.what);
  }
}

#include "transport/bootstrap/launcher_env.h"

#include <cerrno>
#include <cstdlib>

namespace smddp {
namespace {

using Launcher = LaunchInfo::Launcher;

// Steps that Slurm creates itself (batch script, interactive shell, extern) have numbers from here
// on; srun did not launch their processes as one of several.
constexpr long kFirstSpecialStep = 0xfffffff0L;

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  bool Has(const char* name) const { return Text(name) != nullptr; }
  const char* Text(const char* name) const {
    const char* value = environment_(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
  }
  // -1 unless it is a non-negative integer.
  long Number(const char* name) const {
    const char* text = Text(name);
    if (text == nullptr) return -1;
    char* end = nullptr;
    errno = 0;
    long value = std::strtol(text, &end, 10);
    return *end != '\0' || errno != 0 || value < 0 ? -1 : value;
  }
  // "A=1, B=2" for those that are set.
  std::string Show(std::initializer_list<const char*> names) const {
    std::string text;
    for (const char* name : names) {
      if (!Has(name)) continue;
      text += (text.empty() ? "" : ", ") + std::string(name) + "=" + Text(name);
    }
    return text;
  }

 private:
  const Environment& environment_;
};

int AsInt(long number, int otherwise) {
  return number < 0 || number > 1L << 30 ? otherwise : static_cast<int>(number);
}

// Number of tasks of this process's srun step; 1: not in a step, 0: unknown.
int SlurmTasks(const Variables& vars) {
  long step = vars.Number("SLURM_STEP_ID");
  if (vars.Has("SLURM_STEP_ID") && step < kFirstSpecialStep) {
    long tasks = vars.Number("SLURM_STEP_NUM_TASKS");
    return AsInt(tasks >= 0 ? tasks : vars.Number("SLURM_NTASKS"), 0);
  }
  // A batch script is task 0 of an allocation that may have many, and a process in it is alone
  // unless a launcher says otherwise. Only a task of a step has a non-zero number.
  if (vars.Number("SLURM_PROCID") <= 0) return 1;
  return AsInt(vars.Number("SLURM_NTASKS"), 0);
}

// From a launcher other than mpirun: the number of tasks, this process's rank, and the variables it
// was read from.
struct Tasks {
  int size = 1;  // 0: unknown, one or several
  int rank = 0;
  std::string seen;
};

Tasks FindTasks(const Variables& vars) {
  if (vars.Has("FLUX_TASK_RANK")) {
    return {AsInt(vars.Number("FLUX_JOB_SIZE"), 0), AsInt(vars.Number("FLUX_TASK_RANK"), 0),
            vars.Show({"FLUX_TASK_RANK", "FLUX_JOB_SIZE"})};
  }
  int slurm = SlurmTasks(vars);
  if (slurm != 1) {
    return {slurm, AsInt(vars.Number("SLURM_PROCID"), 0),
            vars.Show({"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"})};
  }
  if (vars.Has("PALS_RANKID")) {
    return {0, AsInt(vars.Number("PALS_RANKID"), 0), vars.Show({"PALS_RANKID", "PALS_APID"})};
  }
  if (vars.Number("WORLD_SIZE") > 1) {
    return {AsInt(vars.Number("WORLD_SIZE"), 0), AsInt(vars.Number("RANK"), 0),
            vars.Show({"RANK", "WORLD_SIZE", "LOCAL_RANK"})};
  }
  return {};
}

bool InSlurmStep(const Variables& vars) {
  return vars.Has("SLURM_STEP_ID") && vars.Number("SLURM_STEP_ID") < kFirstSpecialStep;
}

// PMIx does not provide the size; a step of Slurm or Flux does.
LaunchInfo ReadPmix(const Variables& vars, const Tasks& tasks) {
  LaunchInfo info;
  info.launcher = Launcher::kPmix;
  info.rank = AsInt(vars.Number("PMIX_RANK"), tasks.rank);
  info.size = tasks.size != 1 ? tasks.size : 0;
  if (vars.Number("SLURM_STEP_NUM_TASKS") == 1 && InSlurmStep(vars)) info.size = 1;
  if (vars.Has("FLUX_TASK_RANK") && tasks.size == 1) info.size = 1;
  info.seen = vars.Show({"PMIX_RANK", "PMIX_NAMESPACE"});
  if (!tasks.seen.empty()) info.seen += ", " + tasks.seen;
  // Without a PMIx server Open MPI ends the process, with a message that does not help.
  bool server = false;
  for (const char* name : {"PMIX_SERVER_URI", "PMIX_SERVER_URI2", "PMIX_SERVER_URI21",
                           "PMIX_SERVER_URI3", "PMIX_SERVER_URI4", "PMIX_SERVER_URI41"}) {
    server = server || vars.Has(name);
  }
  if (info.size != 1 && !server) {
    info.refusal = "a launcher that speaks PMIx started this process (" + info.seen +
                   "), but left no PMIX_SERVER_URI by which MPI could reach it; " + LaunchRemedy();
  }
  return info;
}

LaunchInfo ReadPmi(const Variables& vars, const Tasks& tasks) {
  LaunchInfo info;
  // Hydra, the mpirun of MPICH and of Intel MPI, also sets the number of ranks on the node.
  info.launcher = vars.Has("MPI_LOCALNRANKS") ? Launcher::kMpich : Launcher::kPmi;
  info.rank = AsInt(vars.Number("PMI_RANK"), tasks.rank);
  info.size = AsInt(vars.Number("PMI_SIZE"), tasks.size != 1 ? tasks.size : 0);
  info.seen = vars.Show({"PMI_RANK", "PMI_SIZE"});
  if (!info.by_mpirun() && !tasks.seen.empty()) info.seen += ", " + tasks.seen;
  return info;
}

LaunchInfo Find(const Variables& vars) {
  LaunchInfo info;
  if (vars.Has("OMPI_COMM_WORLD_RANK")) {
    info.launcher = Launcher::kOpenMpi;
    info.rank = AsInt(vars.Number("OMPI_COMM_WORLD_RANK"), 0);
    info.size = AsInt(vars.Number("OMPI_COMM_WORLD_SIZE"), 0);
    info.seen = vars.Show({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"});
    return info;
  }
  Tasks tasks = FindTasks(vars);
  if (vars.Has("PMI_RANK")) return ReadPmi(vars, tasks);
  if (vars.Has("PMIX_RANK")) return ReadPmix(vars, tasks);
  info.rank = tasks.rank;
  info.size = tasks.size;
  info.seen = tasks.seen;
  if (tasks.size == 1) return info;
  info.refusal = "this process is one of several that were started together (" + tasks.seen +
                 "), but not by a launcher that MPI can talk to, so it cannot join them, and would "
                 "train by itself; " +
                 LaunchRemedy();
  return info;
}

}  // namespace

LaunchInfo ReadLaunchInfo(const Environment& environment, bool separate) {
  LaunchInfo info = Find(Variables(environment));
  return separate && !info.by_mpirun() ? LaunchInfo() : info;
}

std::string LaunchRemedy() {
  return "use mpirun (inside the allocation, if there is one), or srun --mpi=pmix with an Open MPI "
         "that was built for PMIx, or srun --mpi=pmi2 with MPICH; set SMDDP_SINGLE_PROCESS=1 if "
         "the processes are to train separately";
}

}  // namespace smddp

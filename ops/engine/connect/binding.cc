#include "engine/connect/binding.h"

#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace smddp {
namespace {

constexpr int kMaxCores = 8192;
constexpr int kMaxAncestors = 16;

int Count(const std::vector<bool>& cores) {
  int n = 0;
  for (bool core : cores) n += core;
  return n;
}

// Programs that start ranks and bind them. They are bound themselves only by limits on the whole
// job, such as taskset or a container.
bool IsLauncher(const std::string& name) {
  for (const char* known : {"mpirun", "mpiexec", "prterun", "prted", "orterun", "orted", "hydra"}) {
    if (name.rfind(known, 0) == 0) return true;
  }
  return false;
}

// The launcher among this process's ancestors; 0: none. In a container it may be process 1.
int FindLauncher() {
  int pid = ::getppid();
  for (int i = 0; i < kMaxAncestors && pid > 0; ++i) {
    // "pid (name) state parent ..."
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(file, text);
    size_t open = text.find('('), close = text.rfind(')');
    if (open == std::string::npos || close == std::string::npos) return 0;
    if (IsLauncher(text.substr(open + 1, close - open - 1))) return pid;
    std::istringstream rest(text.substr(close + 1));
    char state;
    if (!(rest >> state >> pid)) return 0;
  }
  return 0;
}

}  // namespace

std::vector<bool> CoresOf(int pid) {
  cpu_set_t* set = CPU_ALLOC(kMaxCores);
  size_t bytes = CPU_ALLOC_SIZE(kMaxCores);
  CPU_ZERO_S(bytes, set);
  std::vector<bool> cores(kMaxCores);
  if (::sched_getaffinity(pid, bytes, set) == 0) {
    for (int core = 0; core < kMaxCores; ++core) cores[core] = CPU_ISSET_S(core, bytes, set);
  }
  CPU_FREE(set);
  return cores;
}

std::string BindingAdvice(int used, int available, int ranks, LaunchInfo::Launcher launcher) {
  if (used == 0 || 2 * used > available) return "";
  std::string advice = ": start it with --bind-to none";
  if (launcher == LaunchInfo::Launcher::kOpenMpi) {
    advice += ", or with --map-by slot:PE=N --bind-to core for N cores each";
  }
  std::string who =
      ranks == 1 ? "this rank" : "the " + std::to_string(ranks) + " ranks of this machine";
  return "mpirun bound " + who + " to " + std::to_string(used) + " of its " +
         std::to_string(available) + " cores, so TensorFlow computes on those alone" + advice;
}

std::string BindingAdvice(const std::vector<int>& pids, LaunchInfo::Launcher launcher) {
  int found = FindLauncher();
  if (found == 0) return "";
  std::vector<bool> used(kMaxCores);
  for (int pid : pids) {
    std::vector<bool> cores = CoresOf(pid);
    for (int core = 0; core < kMaxCores; ++core) used[core] = used[core] || cores[core];
  }
  return BindingAdvice(Count(used), Count(CoresOf(found)), static_cast<int>(pids.size()), launcher);
}

}  // namespace smddp

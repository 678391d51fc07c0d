#include "transport/mpi/library_paths.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace smddp {
namespace {

using Directories = std::vector<std::string>;

const char* Env(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

// The library directories of the installation that `program`, an absolute path, belongs to.
void AddInstallation(const std::string& program, Directories* directories) {
  std::string prefix = ParentOf(ParentOf(program));
  directories->push_back(prefix + "/lib");
  directories->push_back(prefix + "/lib64");
}

// The launcher is an ancestor of this process on its host, in a container perhaps process 1, or has
// a daemon that is.
void AddAncestors(Directories* directories) {
  pid_t pid = ::getppid();
  for (int level = 0; level < 6 && pid > 0; ++level) {
    std::string proc = "/proc/" + std::to_string(pid);
    char exe[PATH_MAX];
    ssize_t n = ::readlink((proc + "/exe").c_str(), exe, sizeof exe - 1);
    if (n > 0) AddInstallation(std::string(exe, static_cast<size_t>(n)), directories);
    std::ifstream stat(proc + "/stat");
    std::string text;
    std::getline(stat, text);
    std::istringstream after_name(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    char run_state;
    if (!(after_name >> run_state >> pid)) break;
  }
}

// The mpirun that the user would call: srun has no MPI of its own beside it.
void AddMpirunOnPath(Directories* directories) {
  const char* path = Env("PATH");
  std::istringstream entries(path != nullptr ? path : "");
  for (std::string entry; std::getline(entries, entry, ':');) {
    std::string program = entry + "/mpirun";
    if (entry.rfind('/', 0) != 0 || ::access(program.c_str(), X_OK) != 0) continue;
    AddInstallation(program, directories);
    char resolved[PATH_MAX];
    if (::realpath(program.c_str(), resolved) != nullptr) AddInstallation(resolved, directories);
    return;
  }
}

}  // namespace

const char* LibraryName(bool open_mpi) { return open_mpi ? "libmpi.so.40" : "libmpi.so.12"; }

std::vector<std::string> LibraryPaths(bool open_mpi) {
  Directories directories;
  if (open_mpi) {
    if (const char* directory = Env("OMPI_LIBDIR_LOC")) directories.emplace_back(directory);
    if (const char* prefix = Env("OPAL_PREFIX"))
      directories.push_back(std::string(prefix) + "/lib");
  }
  AddAncestors(&directories);
  AddMpirunOnPath(&directories);
  std::vector<std::string> paths;
  for (const std::string& directory : directories) {
    std::string path = directory + "/" + LibraryName(open_mpi);
    bool known = std::find(paths.begin(), paths.end(), path) != paths.end();
    if (!known && ::access(path.c_str(), R_OK) == 0) paths.push_back(path);
  }
  paths.emplace_back(LibraryName(open_mpi));
  return paths;
}

}  // namespace smddp

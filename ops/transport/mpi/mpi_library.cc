#include "transport/mpi/mpi_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/deadline.h"
#include "core/detached_thread.h"
#include "core/log.h"
#include "transport/mpi/idle_waits.h"
#include "transport/mpi/library_paths.h"
#include "transport/mpi/mpi_alarm.h"
#include "transport/mpi/mpi_group.h"

namespace smddp {
namespace {

// MPICH's ABI, stable since 2014 (mpi.h of any MPICH 3, 4 or 5).
constexpr MpiHandle kMpichCommWorld = 0x44000000, kMpichByte = 0x4c00010d;
constexpr MpiHandle kMpichErrorsReturn = 0x54000001;
constexpr int kThreadMultiple = 3;
// What a rank contributes to Meet(): it is in Finalize, or in an init that initialized MPI itself,
// or in one that found MPI initialized.
constexpr char kToEnd = 'e', kBegan = 'b', kFoundBegun = 'f', kStarted = 's';
constexpr unsigned kLongestNap = 1000;  // microseconds

// A rank that fails alone. The tag is one that a script which shares the communicator hardly uses.
constexpr int kFailureTag = 32749, kOpenMpiAnySource = -1, kMpichAnySource = -2;
constexpr size_t kFailureBytes = 2048;  // below every MPI's limit for eager messages
constexpr double kTellSeconds = 2;

const char* Env(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// Per process: an init that fails later leaves MPI running for the next one.
bool we_began_mpi = false;

// A parameter of Open MPI 5 while MPI is initialized. A user's own setting is kept.
class Parameter {
 public:
  Parameter(const char* name, const char* value, bool wanted)
      : name_(name), set_(wanted && std::getenv(name) == nullptr) {
    if (set_) ::setenv(name_, value, 0);
  }
  ~Parameter() {
    if (set_) ::unsetenv(name_);
  }

 private:
  const char* name_;
  bool set_;
};

// A component that uses libfabric for one-sided transfers takes a second to probe the networks,
// which ranks of a single node do not need.
bool OnOneNode(const LaunchInfo& launch) {
  const char* local = Env("OMPI_COMM_WORLD_LOCAL_SIZE");
  return local != nullptr && std::atoi(local) == launch.size;
}

// When the connection to a killed rank closes, Open MPI ends this process before it can say what it
// waited for, unless MPI's fault tolerance is on: then the call fails. That works with messages by
// "ob1" only (Open MPI's own ft-mpi parameters say so), which mpirun's --mca pml ob1 makes sure of.
bool MayFailCalls(const LaunchInfo& launch) {
  const char* layer = Env("OMPI_MCA_pml");
  return !OnOneNode(launch) && layer != nullptr && std::strcmp(layer, "ob1") == 0;
}

// Whether to open Open MPI (true) or MPICH, the launcher's library first. Only mpirun implies
// exactly one of them.
std::vector<bool> Kinds(const LaunchInfo& launch) {
  using Launcher = LaunchInfo::Launcher;
  bool open_mpi = launch.launcher == Launcher::kOpenMpi || launch.launcher == Launcher::kPmix;
  return launch.by_mpirun() ? std::vector<bool>{open_mpi} : std::vector<bool>{open_mpi, !open_mpi};
}

void* Loaded(bool open_mpi) { return ::dlopen(LibraryName(open_mpi), RTLD_NOW | RTLD_NOLOAD); }

// "launched by Open MPI's mpirun"
std::string LaunchedBy(const LaunchInfo& launch) {
  if (launch.launcher == LaunchInfo::Launcher::kOpenMpi) return "launched by Open MPI's mpirun";
  if (launch.launcher == LaunchInfo::Launcher::kMpich) return "launched by MPICH's mpirun";
  return "launched as one of several processes (" + launch.seen + ")";
}

}  // namespace

bool MpiLibrary::IsRunning() {
  for (bool open_mpi : {true, false}) {
    void* library = Loaded(open_mpi);
    if (library == nullptr) continue;
    MpiLibrary mpi;
    int flag = 0;
    if (mpi.Resolve(library).ok() && mpi.initialized_(&flag) == 0 && flag) return true;
  }
  return false;
}

Status MpiLibrary::Open(const LaunchInfo& launch, const std::string& forced_path, MpiLibrary* mpi,
                        std::string* problem) {
  Status status;
  if (!forced_path.empty()) {
    status = mpi->LoadForced(launch, forced_path);
    *problem = status.message();
    if (status.ok()) return mpi->Initialize(launch);
  }
  Status found = mpi->Load(launch);
  if (found.ok()) found = mpi->Initialize(launch);
  return found.ok() || status.ok() ? found : status;
}

Status MpiLibrary::LoadForced(const LaunchInfo& launch, const std::string& path) {
  std::string option = "SMDDP_MPI_LIBRARY='" + path + "'";
  // RTLD_LOCAL until it is known to work: otherwise its symbols would hide another library's.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return {Code::kSystem, option + " cannot be opened: " + (why ? why : "no reason is given") +
                               "; it takes the path of the launcher's libmpi.so"};
  }
  name_ = path;
  Status status = Resolve(library);
  bool want_open_mpi = launch.launcher == LaunchInfo::Launcher::kOpenMpi;
  if (status.ok() && launch.by_mpirun() && open_mpi_ != want_open_mpi) {
    status = {Code::kUsage, std::string("it is ") + (open_mpi_ ? "" : "not ") +
                                "Open MPI, but this process was " + LaunchedBy(launch) +
                                "; unset it, or use the mpirun of that library"};
  }
  if (status.ok()) {
    ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    return {};
  }
  ::dlclose(library);
  return {Code::kSystem, option + " cannot serve: " + status.message()};
}

Status MpiLibrary::Load(const LaunchInfo& launch) {
  std::vector<bool> kinds = Kinds(launch);
  // A library that is already loaded (by mpi4py, say) must be used.
  for (bool open_mpi : kinds) {
    if (void* loaded = Loaded(open_mpi)) return Resolve(loaded);
  }
  bool first = kinds[0];
  if (kinds.size() == 1 && Loaded(!first) != nullptr) {
    return {Code::kSystem, "this process was " + LaunchedBy(launch) +
                               " but has loaded another MPI (" + LibraryName(!first) +
                               ", by mpi4py perhaps); launch it with the mpirun of that MPI"};
  }
  std::string tried;
  for (bool open_mpi : kinds) {
    for (const std::string& path : LibraryPaths(open_mpi)) {
      // RTLD_GLOBAL, because Open MPI's plugins resolve their symbols in the process.
      void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
      if (library != nullptr) {
        name_ = path;
        return Resolve(library);
      }
      const char* why = ::dlerror();
      tried += std::string(" [") + (why ? why : path.c_str()) + "]";
    }
  }
  return {Code::kSystem, LaunchedBy(launch) + ", but its library " + LibraryName(first) +
                             " cannot be opened:" + tried +
                             "; install it where the loader finds it, or set SMDDP_MPI_LIBRARY to "
                             "its path" +
                             (launch.by_mpirun() ? "" : "; or else " + LaunchRemedy())};
}

Status MpiLibrary::Resolve(void* library) {
  library_ = library;
  open_mpi_ = ::dlsym(library, "ompi_mpi_comm_world") != nullptr;
  std::string missing;
  auto find = [&](const char* symbol, auto* function) {
    void* address = ::dlsym(library, symbol);
    if (address == nullptr) missing += std::string(" ") + symbol;
    std::memcpy(function, &address, sizeof address);
  };
  find("MPI_Initialized", &initialized_);
  find("MPI_Finalized", &finalized_);
  find("MPI_Init_thread", &init_thread_);
  find("MPI_Query_thread", &query_thread_);
  find("MPI_Finalize", &finalize_);
  find("MPI_Comm_split", &comm_split_);
  find("MPI_Comm_free", &comm_free_);
  find("MPI_Comm_set_errhandler", &set_errhandler_);
  find("MPI_Error_string", &error_string_);
  find("MPI_Get_library_version", &library_version_);
  find("MPI_Iallgather", &iallgather);
  find("MPI_Iallgatherv", &iallgatherv);
  find("MPI_Ialltoallv", &ialltoallv);
  find("MPI_Ibcast", &ibcast);
  find("MPI_Test", &test);
  find("MPI_Isend", &isend);
  find("MPI_Iprobe", &iprobe);
  find("MPI_Recv", &recv);
  find("MPI_Comm_rank", &comm_rank);
  find("MPI_Comm_size", &comm_size);
  in_place_ = reinterpret_cast<void*>(open_mpi_ ? kOne : ~uintptr_t{0});
  any_source_ = open_mpi_ ? kOpenMpiAnySource : kMpichAnySource;
  if (open_mpi_) {
    find("ompi_mpi_comm_world", &world_);
    find("ompi_mpi_byte", &byte_);
    find("ompi_mpi_errors_return", &errors_return_);
  } else {
    world_ = kMpichCommWorld;
    byte_ = kMpichByte;
    errors_return_ = kMpichErrorsReturn;
  }
  if (missing.empty()) return {};
  return {Code::kSystem, "the MPI library " + name_ + " lacks" + missing +
                             "; Open MPI 4 or 5, or MPICH 3.3 or later is needed"};
}

Status MpiLibrary::Initialize(const LaunchInfo& launch) {
  int flag = 0;
  finalized_(&flag);
  if (flag) {
    return {Code::kSystem,
            "MPI was finalized already, by shutdown() perhaps, and MPI can begin only once in a "
            "process; call init() once and shutdown() at the end, or have mpi4py begin MPI before "
            "the first init() (from mpi4py import MPI), so that it goes on between the jobs"};
  }
  initialized_(&flag);
  if (!flag) {
    int provided = 0;
    Parameter quick_start("OMPI_MCA_btl", "^ofi", OnOneNode(launch));
    Parameter failing_calls("OMPI_MCA_mpi_ft_enable", "1", MayFailCalls(launch));
    Parameter idle_waits(kIdleWaitsParameter, kIdleWaitsByNaps, true);
    const char* waits = std::getenv(kIdleWaitsParameter);
    const bool naps = waits != nullptr && std::strcmp(waits, kIdleWaitsByNaps) == 0;
    int error = init_thread_(nullptr, nullptr, kThreadMultiple, &provided);
    if (error != 0) {
      return {Code::kSystem, std::string("MPI_Init_thread failed with error ") +
                                 std::to_string(error) + "; this process was " +
                                 LaunchedBy(launch) + ": does the library (" + name_ +
                                 ") belong to that launcher?"};
    }
    we_began_mpi = true;
    if (naps) FindIdleWaits(library_);
  }

  query_thread_(&thread_level_);
  set_errhandler_(world_, errors_return_);
  comm_rank(world_, &rank_);
  comm_size(world_, &size_);

  char version[8192] = "";
  int length = 0;
  library_version_(version, &length);
  name_ = std::string(version).substr(0, std::string(version).find_first_of(",\n"));
  return CheckSize(launch);
}

// MPI's size is authoritative, unless MPI runs as a singleton in one of several processes.
Status MpiLibrary::CheckSize(const LaunchInfo& launch) const {
  if (size_ == launch.size) return {};
  if (launch.by_mpirun()) {
    if (launch.size == 0) return {};
    return {Code::kSystem, "mpirun started " + std::to_string(launch.size) +
                               " ranks but the MPI library (" + name_ + ") sees " +
                               std::to_string(size_) +
                               ": they belong to different installations; use the mpirun of that "
                               "library, or set SMDDP_MPI_LIBRARY to the library of this mpirun"};
  }
  if (size_ > 1 || (launch.size == 0 && launch.rank == 0)) return {};
  std::string of = launch.size > 1 ? " of " + std::to_string(launch.size) : "";
  return {Code::kSystem, "this process is rank " + std::to_string(launch.rank) + of + " (" +
                             launch.seen + "), but the MPI library (" + name_ +
                             ") sees no other rank: it cannot talk to this launcher, and would "
                             "train by itself; " +
                             LaunchRemedy()};
}

bool MpiLibrary::CanFollow() const { return !we_began_mpi; }

void MpiLibrary::Finalize(const std::function<bool()>& stop) {
  int flag = 0;
  if (!we_began_mpi || finalized_(&flag) != 0 || flag) return;
  // A rank that failed never arrives, and MPI_Finalize itself could not be interrupted.
  std::string purposes;
  auto stopped = [&] { return stop() ? Status(Code::kRemote, "a rank has failed") : Status(); };
  if (all_began_ && !Meet(kToEnd, stopped, &purposes).ok()) return;
  IdleWaits naps(IdleWaits::kNap);
  int error = finalize_();
  if (error != 0) LogWarning("MPI_Finalize failed with error " + std::to_string(error));
}

Status MpiLibrary::Allgather(const void* send, int bytes, void* recv,
                             const Problem& problem) const {
  // Leaked if there is a problem, because MPI may still write to it.
  size_t size = static_cast<size_t>(bytes);
  auto* memory = new std::vector<char>(size * (static_cast<size_t>(size_) + 1));
  char* all = memory->data();
  char* own = all + size * static_cast<size_t>(size_);
  std::memcpy(own, send, size);
  MpiHandle request = 0;
  Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status = CheckError(iallgather(own, bytes, byte_, all, bytes, byte_, world_, &request),
                        "MPI_Iallgather");
  }
  if (status.ok()) status = Wait(request, problem);
  if (!status.ok()) return status;
  std::memcpy(recv, all, size * static_cast<size_t>(size_));
  delete memory;
  return {};
}

Status MpiLibrary::Wait(MpiHandle request, const Problem& problem) const {
  alignas(8) char ignored[64];  // an MPI_Status
  int flag = 0;
  for (unsigned nap = 0;; nap = std::min(nap + 1, kLongestNap)) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      IdleWaits none(IdleWaits::kLookOnly);
      Status status = CheckError(test(&request, &flag, ignored), "MPI_Test");
      if (!status.ok() || flag) return status;
    }
    Status status = problem();
    if (!status.ok()) return status;
    ::usleep(nap);
  }
}

Status MpiLibrary::MeetToBegin(const Problem& problem, bool* ending) {
  std::string purposes;
  Status status = Meet(we_began_mpi ? kBegan : kFoundBegun, problem, &purposes);
  if (!status.ok()) return status;
  all_began_ = purposes.find(kFoundBegun) == std::string::npos;
  *ending = purposes.find(kToEnd) != std::string::npos;
  return {};
}

Status MpiLibrary::MeetStarted(const Problem& problem) const {
  std::string purposes;
  return Meet(kStarted, problem, &purposes);
}

Status MpiLibrary::Meet(char purpose, const Problem& problem, std::string* purposes) const {
  purposes->resize(static_cast<size_t>(size_));
  return Allgather(&purpose, 1, purposes->data(), problem);
}

Status MpiLibrary::Split(int color, int key, MpiHandle* comm, const Problem& problem) const {
  *comm = 0;
  Status status;
  if (multiple_threads()) {
    status = SplitAside(color, key, problem, comm);
  } else {
    IdleWaits naps(IdleWaits::kNap);
    status = CheckError(comm_split_(world_, color, key, comm), "MPI_Comm_split");
  }
  if (status.ok() && color != kNoColor) set_errhandler_(*comm, errors_return_);
  return status;
}

Status MpiLibrary::SplitAside(int color, int key, const Problem& problem, MpiHandle* comm) const {
  struct Call {
    std::atomic<bool> over{false};
    int error = 0;
    MpiHandle comm = 0;
    Status thrown;
  };
  auto call = std::make_shared<Call>();
  auto split = [this, color, key, call] {
    // Other threads go on calling MPI where they may, such as the alarm if this call never ends.
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (thread_level_ < kThreadMultiple) lock.lock();
    IdleWaits naps(IdleWaits::kNap);
    call->error = comm_split_(world_, color, key, &call->comm);
    call->over = true;
  };
  RunDetached(split, [call](const Status& thrown) {
    call->thrown = thrown;
    call->over = true;
  });
  for (unsigned nap = 0; !call->over; nap = std::min(nap + 1, kLongestNap)) {
    Status why = problem();
    if (!why.ok()) return why;
    ::usleep(nap);
  }
  *comm = call->comm;
  return call->thrown.ok() ? CheckError(call->error, "MPI_Comm_split") : call->thrown;
}

void MpiLibrary::TellFailure(const std::string& why) const {
  struct Sends {
    char text[kFailureBytes] = "";
    std::vector<MpiHandle> requests;
  };
  auto* sends = new Sends;  // leaked, since MPI may read it later
  std::strncpy(sends->text, why.c_str(), kFailureBytes - 1);
  IdleWaits none(IdleWaits::kLookOnly);
  std::lock_guard<std::mutex> lock(mutex_);
  for (int r = 0; r < size_; ++r) {
    MpiHandle request = 0;
    if (r == rank_ ||
        isend(sends->text, kFailureBytes, byte_, r, kFailureTag, world_, &request) != 0)
      continue;
    sends->requests.push_back(request);
  }
  // Until they are on their way: the process may end next.
  Deadline deadline(kTellSeconds);
  for (size_t next = 0; next < sends->requests.size() && !deadline.Passed();) {
    alignas(8) char ignored[64];
    int sent = 0;
    if (test(&sends->requests[next], &sent, ignored) != 0 || sent)
      ++next;
    else
      ::usleep(100);
  }
}

std::string MpiLibrary::HeardFailure() const {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return "";
  IdleWaits none(IdleWaits::kLookOnly);
  alignas(8) char status[64];
  char text[kFailureBytes] = "";
  int there = 0;
  if (iprobe(any_source_, kFailureTag, world_, &there, status) != 0 || !there) return "";
  if (recv(text, kFailureBytes, byte_, any_source_, kFailureTag, world_, status) != 0) return "";
  return text;
}

Status MpiLibrary::BetweenNodes() const {
  if (multiple_threads()) return {};
  return {Code::kSystem,
          "MPI was initialised without thread support, which a job on several nodes needs; call "
          "smddp_tf.init() before mpi4py initialises MPI, or let mpi4py ask for "
          "MPI_THREAD_MULTIPLE (its default)"};
}

Status MpiLibrary::MakeGroup(int color, int key, const Problem& problem,
                             std::unique_ptr<PeerGroup>* group) const {
  MpiHandle comm = 0;
  Status status = Split(color, key, &comm, problem);
  if (status.ok() && color != kNoColor) *group = MakeMpiGroup(this, comm);
  return status;
}

Status MpiLibrary::MakeAlarm(const std::vector<int>& firsts, int node, const Problem& problem,
                             std::unique_ptr<Alarm>* alarm) const {
  MpiHandle comm = 0;
  Status status = Split(0, rank_, &comm, problem);
  if (status.ok()) *alarm = MakeMpiAlarm(this, comm, firsts, node);
  return status;
}

Status MpiLibrary::Restrict(int color, int key, const Problem& problem) {
  MpiHandle comm = 0;
  Status status = Split(color, key, &comm, problem);
  if (!status.ok()) return status;
  world_ = comm;
  comm_rank(world_, &rank_);
  comm_size(world_, &size_);
  return {};
}

}  // namespace smddp

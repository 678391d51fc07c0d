#include "transport/shm/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <utility>  // for swap

namespace smddp {
namespace {

Status SystemError(const std::string& what) {
  return {Code::kSystem, what + ": " + std::strerror(errno)};
}

}  // namespace

Segment::~Segment() {
  CloseDescriptor();
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

Status Segment::Create(size_t bytes) {
  fd_ = ::memfd_create("smddp", MFD_CLOEXEC);
  if (fd_ < 0) return SystemError("memfd_create");
  if (::fchmod(fd_, 0600) != 0) return SystemError("fchmod of the shared segment");
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) return SystemError("ftruncate");
  return Map(bytes, MAP_SHARED);
}

Status Segment::Commit(Range part) {
  // A signal, such as a profiler's, would end the call, and the kernel take back what it gave.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error =
      ::posix_fallocate(fd_, static_cast<off_t>(part.begin), static_cast<off_t>(part.size()));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == 0) return {};
  return {Code::kSystem, "no " + std::to_string(part.size() >> 10) +
                             " KiB of memory for the segment that the ranks of this node share (" +
                             std::strerror(error) +
                             "); raise the memory limit or lower "
                             "SMDDP_CHUNK_BYTES"};
}

Status Segment::Attach(int creator_pid, int creator_fd, size_t bytes) {
  std::string path = "/proc/" + std::to_string(creator_pid) + "/fd/" + std::to_string(creator_fd);
  fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0) return SystemError("open " + path);
  struct stat info;
  if (::fstat(fd_, &info) != 0) return SystemError("fstat " + path);
  if (static_cast<size_t>(info.st_size) != bytes) {
    return {Code::kSystem, path + " is not the segment that was announced"};
  }
  return Map(bytes, MAP_SHARED);
}

Status Segment::CreatePrivate(size_t bytes) { return Map(bytes, MAP_PRIVATE | MAP_ANONYMOUS); }

void Segment::Forget() {
  if (memory_ != nullptr) ::madvise(memory_, bytes_, MADV_DONTNEED);
}

Status Segment::Map(size_t bytes, int flags) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd_, 0);
  if (memory == MAP_FAILED) return SystemError("mmap of the segment");
  memory_ = memory;
  bytes_ = bytes;
  return {};
}

void Segment::CloseDescriptor() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

uint64_t Segment::NewCookie() {
  uint64_t cookie = 0;
  while (cookie == 0) {
    // Falls back to the device file where the kernel lacks or forbids the system call.
    if (::getrandom(&cookie, sizeof cookie, 0) == sizeof cookie) continue;
    std::random_device device("/dev/urandom");
    cookie = (static_cast<uint64_t>(device()) << 32) | device();
  }
  return cookie;
}

std::string Segment::NodeKey() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char name_space[128] = "";
  ssize_t n = ::readlink("/proc/self/ns/pid", name_space, sizeof name_space - 1);
  return boot + " " + std::string(name_space, n > 0 ? static_cast<size_t>(n) : 0);
}

}  // namespace smddp

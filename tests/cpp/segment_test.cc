// The memory that ranks share: how it is reserved, and given back.
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "check.h"
#include "engine_job.h"
#include "transport/shm/segment.h"

namespace {

using namespace smddp_test;

constexpr size_t kBytes = 1 << 20;

// A kernel that a profiler's signal always interrupts, where the thread takes such signals.
std::atomic<bool> signals_come{false};
std::atomic<int> calls{0};

bool TakesSignals() {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, SIGPROF) == 0 || sigismember(&blocked, SIGALRM) == 0;
}

}  // namespace

// Instead of the C library's.
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  ++calls;
  if (signals_come && TakesSignals()) return EINTR;
  return ::syscall(SYS_fallocate, fd, 0, offset, bytes) == 0 ? 0 : errno;
}

TEST(MemoryIsReservedAlthoughSignalsCome) {
  Segment segment;
  ASSERT(segment.Create(kBytes).ok());
  signals_come = true;
  calls = 0;
  Status status = segment.Commit({0, kBytes});
  signals_come = false;
  EXPECT(status.ok(), status.message());
  EXPECT_EQ(calls.load(), 1);
  EXPECT(TakesSignals());  // as before
}

TEST(MemoryThatIsForgottenIsGivenBack) {
  Segment segment;
  ASSERT(segment.CreatePrivate(kBytes).ok());
  char* memory = static_cast<char*>(segment.memory());
  std::memset(memory, 1, kBytes);
  segment.Forget();
  for (size_t at = 0; at < kBytes; at += 4096) EXPECT_EQ(static_cast<int>(memory[at]), 0);
}

TEST(ARankAloneGivesItsMemoryBackWhenItLeaves) {
  auto connection = std::make_unique<Connection>();
  connection->topology = Topology::FromKeys(0, std::vector<int>{0});
  ASSERT(connection->segment.CreatePrivate(ShmGroup::BytesNeeded(1, kChunk)).ok());
  connection->shm = std::make_unique<ShmGroup>(connection->segment.memory(), 0, 1, kChunk);
  connection->channels.resize(kChannels);
  for (int index = 0; index < kChannels; ++index) {
    connection->channels[index].topology = &connection->topology;
    connection->channels[index].shm = connection->shm.get();
    connection->channels[index].index = index;
  }
  ShmGroup* shm = connection->shm.get();
  auto communicator =
      std::make_unique<Communicator>(std::make_unique<JobContext>(), std::move(connection));
  ASSERT(communicator->Start().ok());
  char* slot = shm->slot(0, 0, 0);
  std::memset(slot, 1, kChunk);
  communicator->Leave(false);
  EXPECT_EQ(static_cast<int>(slot[kChunk - 1]), 0);
}

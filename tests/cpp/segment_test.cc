// The memory that ranks share: how it is reserved, and given back.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
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

// So that they are in the memory of the socket on which it runs.
TEST(EachRankCommitsItsOwnSlots) {
  for (int size : {1, 3, 8}) {
    size_t bytes = ShmGroup::BytesNeeded(size, kChunk), at = 0;
    std::vector<char> memory(bytes + 64);
    char* start = memory.data() + 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
    for (int r = 0; r < size; ++r) {
      Range part = ShmGroup::PartOf(r, size, kChunk);
      EXPECT_EQ(part.begin, at);
      EXPECT_EQ(part.end % 4096, 0u);
      at = part.end;
      ShmGroup shm(start, r, size, kChunk);
      for (int channel = 0; channel < kChannels; ++channel) {
        for (uint64_t chunk = 0; chunk < kSlots; ++chunk) {
          auto header = reinterpret_cast<char*>(&shm.header(r, channel, chunk)) - start;
          auto slot = shm.slot(r, channel, chunk) - start;
          EXPECT(static_cast<size_t>(header) >= part.begin, "a header");
          EXPECT(static_cast<size_t>(slot) + kChunk <= part.end, "a slot");
        }
      }
    }
    EXPECT_EQ(at, bytes);
  }
}

TEST(MemoryIsReservedBeforeItIsUsed) {
  Segment segment;
  Status status = segment.Create(kBytes);
  ASSERT(status.ok(), status.message());
  auto reserved = [&] {
    struct stat info;
    EXPECT_EQ(::fstat(segment.fd(), &info), 0);
    return static_cast<size_t>(info.st_blocks) * 512;
  };
  EXPECT_EQ(reserved(), 0u);
  status = segment.Commit({kBytes / 4, kBytes / 2});
  EXPECT(status.ok(), status.message());
  EXPECT(reserved() >= kBytes / 4, "more if pages are large");
}

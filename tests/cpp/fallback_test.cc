// Ranks of a node that cannot read a peer's memory after all, ranks that have joined, and more
// ranks than slots were made for.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "check.h"
#include "collective/joined.h"
#include "emulation.h"
#include "inproc_job.h"
#include "transport/shm/peer_memory.h"
#include "transport/shm/segment.h"

namespace {

using namespace smddp;
using smddp_test::InprocJob;
using smddp_test::kChunk;
using smddp_test::RunRanks;

constexpr Kind kMoves[] = {Kind::kBroadcast, Kind::kAllgather, Kind::kAlltoall};

// From now on the kernel refuses to let this thread read another process.
void RefuseReads(int error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter = {sizeof program / sizeof program[0], program};
  EXPECT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  EXPECT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0, std::strerror(errno));
}

// Memory that its owner can use and the kernel reads for nobody; nullptr: this kernel has none.
char* SecretMemory(size_t bytes) {
  constexpr long kMemfdSecret = 447;
  int fd = static_cast<int>(::syscall(kMemfdSecret, 0));
  if (fd < 0) return nullptr;
  void* memory = ::ftruncate(fd, static_cast<off_t>(bytes)) == 0
                     ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
  ::close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

// Each rank has `count` bytes, or for each peer; byte i of rank r is r * 10 + i % 7.
void CheckMove(InprocJob* job, Kind kind, int size, int self, size_t count, char* in) {
  size_t n = static_cast<size_t>(size), parts = kind == Kind::kAlltoall ? n : 1;
  for (size_t i = 0; i < parts * count; ++i) in[i] = static_cast<char>(self * 10 + i % 7);
  size_t received = kind == Kind::kBroadcast ? 1 : n;
  std::vector<char> out(received * count, '?');
  Request request;
  request.kind = kind;
  request.dtype = DType::kUint8;
  request.root = size - 1;
  request.part_bytes.assign(kind == Kind::kBroadcast ? 0 : parts * n, count);
  request.tensors = {{in, out.data(), {static_cast<int64_t>(parts * count)}}};
  Status status = job->Run(self, request);
  ASSERT(status.ok(), status.message());
  for (size_t r = 0; r < received; ++r) {
    size_t from = kind == Kind::kBroadcast ? n - 1 : r;
    size_t first = kind == Kind::kAlltoall ? static_cast<size_t>(self) * count : 0;
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(out[r * count + i], static_cast<char>(from * 10 + (first + i) % 7), KindName(kind));
    }
  }
}

// The sizes that come before an allgather, of `size` ranks of which `joined` has joined.
void CheckPartSizes(InprocJob* job, int size, int self, int joined) {
  size_t n = static_cast<size_t>(size);
  ChannelResources& resources = job->resources(self);
  std::vector<int64_t> in(n, self + 1), out(n * n, -1);
  Request request;
  std::vector<char> memory;
  if (self == joined) {
    int peer = self == 0 ? 1 : 0;
    while (resources.shm->channel_cell(peer, resources.index).staged.load() <= resources.next_chunk)
      ::usleep(100);
    SlotHeader begun = resources.shm->header(peer, resources.index, resources.next_chunk);
    request = JoinedRequest(begun, *resources.topology, &memory);
  } else {
    request.kind = Kind::kPartSizes;
    request.dtype = DType::kInt64;
    request.part_bytes.assign(n, n * sizeof(int64_t));
    request.tensors = {{in.data(), out.data(), {static_cast<int64_t>(n)}}};
  }
  Status status = job->Run(self, request);
  ASSERT(status.ok(), status.message());
  if (self == joined) return;
  for (size_t i = 0; i < n * n; ++i) {
    int from = static_cast<int>(i / n);
    ASSERT_EQ(out[i], from == joined ? 0 : from + 1);
  }
}

}  // namespace

TEST(RanksThatCannotReadAPeerGoThroughTheSlots) {
  if (smddp_test::NoPeerReads()) return;
  for (int size : {2, 3, 5}) {
    for (int refused : {0, size - 1, size}) {  // size: all of them
      InprocJob job(size, 1, kChunk, true);
      RunRanks(size, [&](int self) {
        std::vector<char> in(size * size_t{20011});
        for (Kind kind : kMoves) CheckMove(&job, kind, size, self, 3000, in.data());
        if (self == refused || refused == size) RefuseReads(size == 3 ? EFAULT : EPERM);
        for (size_t count : {20011, 1, 0, 5000}) {
          for (Kind kind : kMoves) CheckMove(&job, kind, size, self, count, in.data());
        }
      });
    }
  }
}

TEST(MemoryThatNobodyElseMayReadIsMoved) {
  constexpr size_t kBytes = 20011;
  for (int size : {2, 3, 5}) {
    InprocJob job(size, 1, kChunk, true);
    RunRanks(size, [&](int self) {
      std::vector<char> ordinary(size * kBytes);
      char* secret = self == size - 1 ? SecretMemory(size * kBytes) : nullptr;
      char byte;
      if (secret != nullptr) {
        Status read =
            ReadPeer(::getpid(), {{&byte, reinterpret_cast<uintptr_t>(secret), sizeof byte}});
        EXPECT(!read.ok());
      }
      for (Kind kind : kMoves) {
        CheckMove(&job, kind, size, self, kBytes, secret != nullptr ? secret : ordinary.data());
        CheckMove(&job, kind, size, self, kBytes, ordinary.data());
      }
      if (secret != nullptr) ::munmap(secret, size * kBytes);
    });
  }
}

TEST(WhatAPeerThatGaveUpHasLentDoesNotCount) {
  for (Kind kind : {Kind::kAlltoall, Kind::kAllgather}) {
    InprocJob job(2, 1, kChunk, true);
    Selector selector;
    selector.PreferSingleCopy();
    std::vector<std::vector<char>> in(2, std::vector<char>(5000, 'a'));
    std::vector<char> out(10000, '?');
    Request requests[2];
    std::unique_ptr<Collective> collectives[2];
    for (int r = 0; r < 2; ++r) {
      requests[r].kind = kind;
      requests[r].dtype = DType::kUint8;
      requests[r].part_bytes.assign(kind == Kind::kAllgather ? 2 : 4,
                                    kind == Kind::kAllgather ? 5000 : 2500);
      requests[r].tensors = {{in[r].data(), out.data(), {5000}}};
      collectives[r] = selector.Make(&job.resources(r), &requests[r], nullptr);
    }
    std::vector<char> other(10000, '?');
    requests[0].tensors[0].out = other.data();
    for (int i = 0; i < 2; ++i) EXPECT(collectives[0]->Advance() != Progress::kDone);
    // Rank 1 has all it wants and lends its memory, until it gives up.
    ChannelCell& lender = job.resources(1).shm->channel_cell(1, 0);
    for (int i = 0; i < 2; ++i) EXPECT(collectives[1]->Advance() != Progress::kDone);
    EXPECT_EQ(lender.unpacked.load(), uint64_t{1});
    lender.given_up = 1;
    in[1].assign(5000, 'z');
    for (int i = 0; i < 10; ++i) EXPECT(collectives[0]->Advance() != Progress::kDone);
  }
}

TEST(AJoinedRankStandsForZerosWhereItsMemoryWouldBeRead) {
  if (smddp_test::NoPeerReads()) return;
  for (int size : {2, 3, 66}) {
    InprocJob job(size, 1, kChunk, true);
    RunRanks(size, [&](int self) {
      CheckPartSizes(&job, size, self, size / 2);
      if (self == 0) RefuseReads(EPERM);
      // Now in two steps, if there is a rank to be read; the one that has joined serves both.
      int steps = self == size / 2 && size > 2 ? 2 : 1;
      for (int step = 0; step < steps; ++step) CheckPartSizes(&job, size, self, size / 2);
      CheckPartSizes(&job, size, self, -1);
    });
  }
}

TEST(ManyRanksShareASmallSlot) {
  constexpr int kSize = 66;
  InprocJob job(kSize, 1, kChunk);  // 63 bytes for each peer
  RunRanks(kSize, [&](int self) {
    std::vector<char> in(kSize * size_t{200});
    for (size_t count : {0, 1, 200})
      CheckMove(&job, Kind::kAlltoall, kSize, self, count, in.data());
    std::vector<double> rows(kSize * 20, self), own(20);
    Request request;
    request.kind = Kind::kReduceScatter;
    request.dtype = DType::kFloat64;
    request.op = ReduceOp::kSum;
    request.tensors = {{rows.data(), own.data(), {kSize * 20}}};
    Status status = job.Run(self, request);
    ASSERT(status.ok(), status.message());
    EXPECT(own == std::vector<double>(20, kSize * (kSize - 1) / 2));
  });
}

TEST(CookiesCannotBeGuessed) {
  std::vector<uint64_t> cookies;
  uint64_t ones = 0, zeros = 0;
  for (int i = 0; i < 64; ++i) {
    cookies.push_back(Segment::NewCookie());
    ones |= cookies.back();
    zeros |= ~cookies.back();
  }
  // Every bit takes both values; by chance one does not once in 10^17 runs.
  EXPECT_EQ(ones, ~uint64_t{0});
  EXPECT_EQ(zeros, ~uint64_t{0});
  std::sort(cookies.begin(), cookies.end());
  EXPECT(std::adjacent_find(cookies.begin(), cookies.end()) == cookies.end());
}

TEST(OnlyTheLaunchersProcessesAreLetIn) {
  EXPECT_EQ(ReadersUnder("1", 4711), 4711);
  EXPECT_EQ(ReadersUnder("1", 1), 0);  // all of a container, or of a machine
  EXPECT_EQ(ReadersUnder("1", 0), 0);
  for (const char* scope : {"", "0", "2", "3"}) EXPECT_EQ(ReadersUnder(scope, 4711), 0);
}

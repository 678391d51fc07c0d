// The way from a kernel's context to its stream, over contexts that are made up here as each
// TensorFlow has them, right and broken in every way. What none of them may do is crash.
#include "tf/runtime/stream_layout.h"

#include <sys/mman.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "check.h"

namespace smddp_tf {
namespace {

using Word = uintptr_t;

#if defined(__x86_64__)

// What tests/scripts/stream_layout.py prints; offsets in bytes.
struct Version {
  const char* name;
  Word params, device_context, device;
  Word implementation;  // 0: the stream itself has the handle
  Word handle_slot;
};
constexpr Version kVersions[] = {
    {"2.15.1", 0x10, 0xd8, 0x30, 0x8, 0x28}, {"2.16.2", 0x10, 0xd0, 0x28, 0x8, 0x28},
    {"2.17.1", 0x10, 0xd8, 0x28, 0, 0x10},   {"2.18.1", 0x10, 0xd8, 0x28, 0, 0x10},
    {"2.19.1", 0x10, 0xd8, 0x28, 0, 0x10},   {"2.20.0", 0x18, 0xd8, 0x28, 0, 0x10},
    {"2.21.0", 0x18, 0xd8, 0x28, 0, 0x10},   {"2.22.0-rc0", 0x18, 0xd8, 0x28, 0, 0x10},
};

// A stretch of memory whose words are set by their offsets; all others hold a number that is no
// address.
class Object {
 public:
  Word& at(Word offset) { return words_[offset / sizeof(Word)]; }
  Word address() const { return reinterpret_cast<Word>(words_); }

 private:
  Word words_[48] = {3, 5, 7, 11, 13};
};

// A kernel of a GPU: context -> params -> device context -> stream -> CUstream.
class Kernel {
 public:
  explicit Kernel(const Version& version) : version_(version) {
    context.at(version.params) = params.address();
    params.at(0) = static_cast<Word>(numbers.step);
    params.at(version.device) = device.address();
    params.at(version.device_context) = device_context.address();
    params.at(version.device_context + 8) = static_cast<Word>(numbers.frame);
    params.at(version.device_context + 16) = static_cast<Word>(numbers.iteration);
    device.at(0) = device_functions.address();
    device_functions.at(0x18) = reinterpret_cast<Word>(InfoOf);
    device.at(0x20) = info.address();
    info.at(0x8) = device_context.address();
    device_context.at(0) = context_functions.address();
    context_functions.at(0x18) = reinterpret_cast<Word>(StreamOf);
    device_context.at(0x18) = stream.address();
    stream.at(version.implementation) =
        version.implementation == 0 ? handle_functions.address() : implementation.address();
    implementation.at(0) = handle_functions.address();
    handle_functions.at(version.handle_slot) = reinterpret_cast<Word>(HandleOf);
    holder().at(0x28) = kHandle;
    the_version = &version_;
  }
  Kernel(const Kernel&) = delete;

  // The problem, or "" if the CUstream was found.
  std::string Find(const char* version) {
    const StreamLayout* layout = FindStreamLayout(version);
    if (layout == nullptr) return "no layout";
    void* found = nullptr;
    std::string problem = FindStream(*layout, reinterpret_cast<const void*>(context.address()),
                                     numbers, NameOf, &found);
    EXPECT_EQ(reinterpret_cast<Word>(found), problem.empty() ? kHandle : 0, problem);
    return problem;
  }
  std::string Find() { return Find(version_.name); }

  // What knows the CUstream.
  Object& holder() { return version_.implementation == 0 ? stream : implementation; }

  static constexpr Word kHandle = 0x7edcba987650;
  KernelNumbers numbers = {-4231, 0x5eed5eed5eed, 17};
  Object context, params, device, device_functions, info, device_context, context_functions;
  Object stream, implementation, handle_functions;

 private:
  // The virtual functions; `this` is their only argument.
  static void* InfoOf(void* self) { return Member(self, 0x20); }
  static void* StreamOf(void* self) { return Member(self, 0x18); }
  static void* HandleOf(void* self) { return Member(self, 0x28); }
  static void* Member(void* self, Word offset) {
    return reinterpret_cast<void*>(static_cast<Object*>(self)->at(offset));
  }
  static std::string NameOf(const void* function) {
    Word address = reinterpret_cast<Word>(function);
    if (address == reinterpret_cast<Word>(InfoOf)) {
      return "_ZNK10tensorflow10DeviceBase34tensorflow_accelerator_device_infoEv";
    }
    if (address == reinterpret_cast<Word>(StreamOf)) {
      return "_ZNK10tensorflow16GPUDeviceContext6streamEv";
    }
    if (address != reinterpret_cast<Word>(HandleOf)) return "";
    std::string name = the_version->name;
    if (name == "2.15.1") return "_ZN15stream_executor3gpu9GpuStream13GpuStreamHackEv";
    if (name == "2.16.2") return "_ZN15stream_executor3gpu9GpuStream24platform_specific_streamEv";
    return "_ZNK15stream_executor3gpu10CudaStream24platform_specific_handleEv";
  }

  static const Version* the_version;
  const Version& version_;
};

const Version* Kernel::the_version = nullptr;

bool Says(const std::string& problem, const char* words) {
  return problem.find(words) != std::string::npos;
}

}  // namespace

TEST(AKernelsStreamIsFoundInEveryVersion) {
  for (const Version& version : kVersions) {
    EXPECT_EQ(Kernel(version).Find(), "", version.name);
    Kernel by_device(version);
    by_device.params.at(version.device_context) = 0;
    EXPECT_EQ(by_device.Find(), "", std::string(version.name) + ", the device's default context");
  }
}

TEST(AContextThatSaysOtherNumbersThanTheApiIsNotTrusted) {
  for (const Version& version : kVersions) {
    Kernel kernel(version);
    ++kernel.numbers.step;
    EXPECT(Says(kernel.Find(), "the step's number is not where"), version.name);
    --kernel.numbers.step;
    ++kernel.numbers.frame;
    EXPECT(Says(kernel.Find(), "the frame's number is not where"), version.name);
    --kernel.numbers.frame;
    ++kernel.numbers.iteration;
    EXPECT(Says(kernel.Find(), "the iteration's number is not where"), version.name);
    --kernel.numbers.iteration;
    EXPECT_EQ(kernel.Find(), "");
  }
}

TEST(AnotherVersionsLayoutDoesNotFit) {
  for (const Version& version : kVersions) {
    for (const Version& other : kVersions) {
      bool alike = FindStreamLayout(version.name) == FindStreamLayout(other.name);
      EXPECT_EQ(Kernel(version).Find(other.name).empty(), alike,
                std::string(version.name) + " read as " + other.name);
    }
  }
}

TEST(ADeviceWithoutAStreamIsSaidToHaveNone) {
  for (const Version& version : kVersions) {
    Kernel cpu(version);
    cpu.params.at(version.device_context) = 0;
    cpu.info.at(0x8) = 0;
    EXPECT(Says(cpu.Find(), "device has no context"), version.name);
    cpu.device.at(0x20) = 0;
    EXPECT(Says(cpu.Find(), "device is no accelerator"), version.name);
    Kernel no_stream(version);
    no_stream.device_context.at(0x18) = 0;
    EXPECT(Says(no_stream.Find(), "device has no stream"), version.name);
    Kernel pluggable(version);
    pluggable.holder().at(0x28) = 0;
    EXPECT(Says(pluggable.Find(), "device is not CUDA's"), version.name);
  }
}

// Every word on the way, replaced by what is no address, what is not mapped, what may not be read,
// and memory that can be read but holds something else.
TEST(BrokenPointersAreProblemsAndNoCrashes) {
  void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT(page != MAP_FAILED);
  Object other;
  const Word broken[] = {1,
                         8,
                         12345,
                         ~Word{0},
                         ~Word{7},
                         Word{1} << 63,
                         reinterpret_cast<Word>(page),
                         other.address()};
  using Links = std::vector<std::function<Word&(Kernel&, const Version&)>>;
  const Links always = {
      [](Kernel& k, const Version& v) -> Word& { return k.context.at(v.params); },
      [](Kernel& k, const Version& v) -> Word& { return k.params.at(v.device_context); },
      [](Kernel& k, const Version&) -> Word& { return k.device_context.at(0); },
      [](Kernel& k, const Version&) -> Word& { return k.context_functions.at(0x18); },
      [](Kernel& k, const Version&) -> Word& { return k.device_context.at(0x18); },
      [](Kernel& k, const Version& v) -> Word& { return k.stream.at(v.implementation); },
      [](Kernel& k, const Version&) -> Word& { return k.holder().at(0); },
      [](Kernel& k, const Version& v) -> Word& { return k.handle_functions.at(v.handle_slot); },
  };
  const Links by_device = {
      [](Kernel& k, const Version& v) -> Word& { return k.params.at(v.device); },
      [](Kernel& k, const Version&) -> Word& { return k.device.at(0); },
      [](Kernel& k, const Version&) -> Word& { return k.device_functions.at(0x18); },
      [](Kernel& k, const Version&) -> Word& { return k.device.at(0x20); },
      [](Kernel& k, const Version&) -> Word& { return k.info.at(0x8); },
  };
  for (const Version& version : kVersions) {
    for (Word address : broken) {
      for (const Links* links : {&always, &by_device}) {
        for (size_t i = 0; i < links->size(); ++i) {
          Kernel kernel(version);
          if (links == &by_device) kernel.params.at(version.device_context) = 0;
          ASSERT_EQ(kernel.Find(), "");
          (*links)[i](kernel, version) = address;
          EXPECT(!kernel.Find().empty(), std::string(version.name) + ", link " + std::to_string(i) +
                                             ", " + std::to_string(address));
        }
      }
    }
  }
  munmap(page, 4096);
}

TEST(OnlyKnownVersionsHaveALayout) {
  for (const char* version : {"", "2", "2.", "2.14.1", "2.23.0", "1.15.5", "3.17.0", "two.15.1"}) {
    EXPECT(FindStreamLayout(version) == nullptr, version);
  }
  EXPECT(FindStreamLayout(nullptr) == nullptr);
}

#else

}  // namespace

TEST(NoLayoutIsKnownOnThisProcessor) {
  for (const char* version : {"2.15.1", "2.21.0"}) EXPECT(FindStreamLayout(version) == nullptr);
}

#endif

}  // namespace smddp_tf

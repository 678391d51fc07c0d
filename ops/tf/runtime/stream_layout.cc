#include "tf/runtime/stream_layout.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace smddp_tf {
namespace {

using Word = uintptr_t;

constexpr const char* kHandle = "24platform_specific_handleEv";
// Read from x86-64 code; docs/gpu.md has the table of what was read where.
[[maybe_unused]] constexpr StreamLayout kLayouts[] = {
    {15, 15, 0x10, 0xd8, 0x30, 0x8, 0x28, "13GpuStreamHackEv"},
    {16, 16, 0x10, 0xd0, 0x28, 0x8, 0x28, "24platform_specific_streamEv"},
    {17, 19, 0x10, 0xd8, 0x28, 0, 0x10, kHandle},
    {20, 22, 0x18, 0xd8, 0x28, 0, 0x10, kHandle},
};

// The same in all of these versions.
constexpr size_t kFrame = 0x8, kIteration = 0x10;  // after the device context
constexpr size_t kStreamSlot = 0x18;               // of a device context
constexpr size_t kInfoSlot = 0x18;                 // of a device
constexpr size_t kDefaultContext = 0x8;            // in a device's info
constexpr const char* kStreamName = "DeviceContext6streamEv";
constexpr const char* kInfoName = "34tensorflow_accelerator_device_infoEv";

bool EndsWith(const std::string& text, const char* end) {
  size_t length = std::strlen(end);
  return text.size() >= length && text.compare(text.size() - length, length, end) == 0;
}

// The steps from a context to its stream. Each returns false once something does not fit.
class Walk {
 public:
  explicit Walk(NameOfFunction name_of) : name_of_(name_of) {}

  bool ReadWord(Word address, const char* what, Word* word);
  bool Expect(Word address, const char* what, Word expected);
  // Calls object->function(), which takes nothing and returns a pointer.
  bool Call(Word object, size_t slot, const char* name, Word* result);
  bool Fail(const std::string& problem) {
    problem_ = problem;
    return false;
  }
  const std::string& problem() const { return problem_; }

 private:
  const NameOfFunction name_of_;
  std::string problem_;
};

bool Walk::ReadWord(Word address, const char* what, Word* word) {
  if (address % sizeof(Word) != 0) {
    return Fail(std::string(what) + " is not at an address of a word");
  }
  iovec to = {word, sizeof *word};
  iovec from = {reinterpret_cast<void*>(address), sizeof *word};
  if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof *word) return true;
  return Fail(std::string(what) + " cannot be read (" + std::strerror(errno) + ")");
}

bool Walk::Expect(Word address, const char* what, Word expected) {
  Word found = 0;
  if (!ReadWord(address, what, &found)) return false;
  if (found == expected) return true;
  return Fail(std::string(what) + " is not where this version has it");
}

bool Walk::Call(Word object, size_t slot, const char* name, Word* result) {
  Word table = 0, function = 0;
  if (!ReadWord(object, name, &table) || !ReadWord(table + slot, name, &function)) return false;
  std::string found = name_of_(reinterpret_cast<const void*>(function));
  if (!EndsWith(found, name)) {
    return Fail("a function " + std::string(name) + " is expected where there is " +
                (found.empty() ? "none with a name" : found));
  }
  using Function = void* (*)(void*);
  void* returned = reinterpret_cast<Function>(function)(reinterpret_cast<void*>(object));
  *result = reinterpret_cast<Word>(returned);
  return true;
}

// Checks that the context is one of this layout, and sets *params to where its parameters are.
bool CheckContext(Walk* walk, const StreamLayout& layout, Word context,
                  const KernelNumbers& numbers, Word* params) {
  if (!walk->ReadWord(context + layout.params, "the kernel's context", params)) return false;
  Word next = *params + layout.device_context;
  return walk->Expect(*params, "the step's number", static_cast<Word>(numbers.step)) &&
         walk->Expect(next + kFrame, "the frame's number", static_cast<Word>(numbers.frame)) &&
         walk->Expect(next + kIteration, "the iteration's number",
                      static_cast<Word>(numbers.iteration));
}

// The kernel's own device context, else its device's.
bool FindDeviceContext(Walk* walk, const StreamLayout& layout, Word params, Word* found) {
  if (!walk->ReadWord(params + layout.device_context, "the device context", found)) return false;
  if (*found != 0) return true;
  Word device = 0, info = 0;
  if (!walk->ReadWord(params + layout.device, "the device", &device)) return false;
  if (!walk->Call(device, kInfoSlot, kInfoName, &info)) return false;
  if (info == 0) return walk->Fail("the kernel's device is no accelerator");
  if (!walk->ReadWord(info + kDefaultContext, "the device's default context", found)) return false;
  return *found != 0 || walk->Fail("the kernel's device has no context");
}

}  // namespace

const StreamLayout* FindStreamLayout([[maybe_unused]] const char* version) {
#if defined(__x86_64__)
  int major = 0, minor = 0;
  if (version == nullptr || std::sscanf(version, "%d.%d.", &major, &minor) != 2) return nullptr;
  for (const StreamLayout& layout : kLayouts) {
    if (major == 2 && layout.first_minor <= minor && minor <= layout.last_minor) return &layout;
  }
#endif
  return nullptr;
}

std::string FindStream(const StreamLayout& layout, const void* context,
                       const KernelNumbers& numbers, NameOfFunction name_of, void** stream) {
  Walk walk(name_of);
  Word params = 0, device_context = 0, object = 0, handle = 0;
  if (!CheckContext(&walk, layout, reinterpret_cast<Word>(context), numbers, &params) ||
      !FindDeviceContext(&walk, layout, params, &device_context) ||
      !walk.Call(device_context, kStreamSlot, kStreamName, &object)) {
    return walk.problem();
  }
  if (object == 0) return "the kernel's device has no stream";
  if (layout.implementation != 0 &&
      !walk.ReadWord(object + layout.implementation, "the stream", &object)) {
    return walk.problem();
  }
  if (!walk.Call(object, layout.handle_slot, layout.handle_name, &handle)) return walk.problem();
  if (handle == 0) return "the kernel's device is not CUDA's";
  *stream = reinterpret_cast<void*>(handle);
  return "";
}

}  // namespace smddp_tf

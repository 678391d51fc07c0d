// Where TensorFlow has the stream of a kernel that runs on NVIDIA's GPU.
//
// The C API hands out the streams of pluggable devices only. So the way from a kernel's context to
// its stream is a table of offsets, for each minor version, which tests/scripts/stream_layout.py
// reads from TensorFlow's machine code. Nothing of it is taken on trust, as a TensorFlow may differ
// from what its version says:
//
// - Memory is read by the system, so an address that cannot be read is an answer, not a crash.
// - The context must hold in their places what the C API says of the kernel: the numbers of the
//   step, the frame and the iteration. The last two stand beside the device context.
// - A virtual function is called only if the linker's name of what is in its slot is the right one.
//
// What does not fit is a sentence for the log. These functions know no TensorFlow, so they are
// tested with made-up contexts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace smddp_tf {

// What the C API says of a running kernel.
struct KernelNumbers {
  int64_t step;
  uint64_t frame;
  int64_t iteration;
};

// In bytes, from the beginning of the object or of its table of virtual functions.
struct StreamLayout {
  int first_minor, last_minor;  // of TensorFlow 2
  size_t params;                // in OpKernelContext
  size_t device_context;        // in Params; the frame and the iteration follow it
  size_t device;                // in Params; used where there is no device context
  size_t implementation;        // in Stream, whose CUstream that knows; 0: Stream knows it
  size_t handle_slot;           // the function that returns the CUstream
  const char* handle_name;
};

// The layout of a version such as "2.21.0"; null if it is not known.
const StreamLayout* FindStreamLayout(const char* version);

// The linker's name of a function; "" if it has none.
using NameOfFunction = std::string (*)(const void* function);

// Sets *stream to the CUstream of the kernel with that context. Returns "", or what does not fit.
std::string FindStream(const StreamLayout& layout, const void* context,
                       const KernelNumbers& numbers, NameOfFunction name_of, void** stream);

}  // namespace smddp_tf

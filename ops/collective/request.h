// Request: the arguments of one rank's collective, and how they are compared with the other ranks'.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>  // for move
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/span.h"

namespace smddp {

enum class Kind : int {
  kAllreduce = 0,
  kBroadcast = 1,
  kAllgather = 2,
  kBarrier = 3,
  kAlltoall = 4,
  kReduceScatter = 5,
  // An allgather of a few integers, equally many from each rank, before a collective of parts whose
  // sizes differ (engine/part_sizes.h). Zeros stand in for a rank that has joined.
  kPartSizes = 6,
  // Whether all ranks can let their devices run a collective (collective/device/vote.h): an
  // allreduce of one integer. Zeros stand in for a rank that has joined.
  kVote = 7,
  // Not collectives: the two sides of a message (engine/messages.h).
  kSend = 8,
  kReceive = 9,
};

// Horovod's numbers.
enum class ReduceOp : int { kAverage = 0, kSum = 1, kAdasum = 2, kMin = 3, kMax = 4, kProduct = 5 };

// How an operation is matched with its counterparts on the other ranks.
enum class Matching : int {
  // All ranks request the same operations in the same order, one at a time: several at once are of
  // several threads, and are matched by name.
  kInOrder = 0,
  kPerhaps = 1,         // in order, unless names differ: then several threads may have called
  kByName = 2,          // in the order of the first rank of the set
  kSeveralInOrder = 3,  // in order, any number at once; names need not differ
};

struct TensorArg {
  const void* in = nullptr;
  void* out = nullptr;
  std::vector<int64_t> dims;
  size_t count() const;
};

struct Request {
  Kind kind = Kind::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kAverage;
  int root = 0;  // job rank
  int process_set = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string name;
  Matching matching = Matching::kInOrder;
  std::vector<TensorArg> tensors;
  // Where the tensors' bytes are, and the point at which the inputs have been computed; null: in
  // host memory, where they are ready.
  Device* device = nullptr;
  DevicePoint ready;
  // Where the caller's tensors are, which is the same on all ranks; HostCopy runs a request on
  // copies.
  std::string memory = "host";
  // Allgather: bytes that each rank of the set contributes; the output is laid out in rank order.
  // Alltoall: bytes from rank r to rank p at [r * size + p]; both buffers are in rank order.
  std::vector<size_t> part_bytes;
  // Where each rank's part goes on this rank, and of an alltoall, where the part for each rank is;
  // empty: in the tensor's output and input.
  std::vector<char*> part_outputs;
  std::vector<const char*> part_inputs;
  // Gradient buckets: the plan's fingerprint, the number of the run, and the bucket; `plan_text`
  // has one line per gradient. Of other requests it is what else must be equal on all ranks: words
  // on one line, or lines.
  uint64_t plan = 0;
  uint64_t run = 0;
  int bucket = -1;
  std::shared_ptr<const std::string> plan_text;
  // Nothing may stand still for longer; 0: the configuration's limit.
  double timeout_seconds = 0;

  // Of a vote: the request that is voted on, by which the ranks match and describe the vote. It
  // must outlive this one.
  const Request* subject = nullptr;

  // Set on a rank that has joined (collective/joined.h), from a peer's header.
  struct Joined {
    uint64_t signature = 0;  // 0: this rank has not joined
    uint64_t key = 0;
    size_t chunks = 0;
    uint32_t round = 0;  // join round
  } joined;

  void PlaceOn(Device* where, DevicePoint inputs_ready) {
    device = where;
    ready = std::move(inputs_ready);
    memory = where->kind();
  }
  bool has_joined() const { return joined.signature != 0; }
  size_t count() const;  // elements of all tensors
  // The count in the header for joined ranks: the elements of an allreduce; for an allgather the
  // smallest part in bytes, so 0 if some rank contributes nothing.
  size_t joined_count() const;
  // Over all ranks: the sum of an allgather's parts, of all pairs of an alltoall, and for a
  // broadcast the bytes that each rank receives.
  size_t moved_bytes() const;
  size_t bytes() const { return count() * Info(dtype).size; }
  SpanList Spans() const;
  // Of what gathers, for rank `rank` of `size`: part_outputs and part_inputs, or the parts' places
  // in the tensor.
  std::vector<char*> PartOutputs(int rank, int size) const;
  std::vector<const char*> PartInputs(int rank, int size) const;
  size_t PartBytes(int source, int target, int size) const {
    return part_bytes[kind == Kind::kAlltoall ? static_cast<size_t>(source) * size + target
                                              : static_cast<size_t>(source)];
  }

  // Distinguishes operations of one rank: a hash of the name, and of whether it gathers sizes.
  uint64_t Key() const;
  static uint64_t KeyOf(const std::string& name, bool gathers_sizes = false);
  // Equal on two ranks exactly if they request the same operation.
  uint64_t Signature() const;
  // For error messages: one line for the operation, then one line per tensor.
  std::string Describe() const;
  bool reduces() const { return kind == Kind::kAllreduce || kind == Kind::kReduceScatter; }
  // Whether the tensors legitimately differ between ranks; part_bytes is equal on all.
  bool gathers() const {
    return kind == Kind::kAllgather || kind == Kind::kAlltoall || kind == Kind::kPartSizes;
  }
  // "allreduce 'loss'" or "gradient bucket 1 of 'tape' (step 17)".
  std::string Title() const;
};

const char* KindName(Kind kind);
const char* ReduceOpName(ReduceOp op);

// The error message of a mismatch. texts[i] is the Describe() of job rank ranks[i].
std::string ExplainMismatch(const std::vector<int>& ranks, const std::vector<std::string>& texts);

}  // namespace smddp

// Which calls of NCCL make up a collective.
#include <algorithm>
#include <numeric>  // for partial_sum

#include "transport/nccl/runner.h"

namespace smddp {
namespace {

int DTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return kNcclFloat32;
    case DType::kFloat64:
      return kNcclFloat64;
    case DType::kInt32:
      return kNcclInt32;
    case DType::kUint8:
      return kNcclUint8;
    case DType::kInt8:
      return kNcclInt8;
    case DType::kInt64:
      return kNcclInt64;
    case DType::kBfloat16:
      return kNcclBfloat16;
    default:
      return kNcclFloat16;
  }
}

int OpOf(DeviceCollective::Op op) {
  switch (op) {
    case DeviceCollective::Op::kMin:
      return kNcclMin;
    case DeviceCollective::Op::kMax:
      return kNcclMax;
    case DeviceCollective::Op::kProduct:
      return kNcclProduct;
    default:
      return kNcclSum;
  }
}

bool Always(size_t) { return true; }

// Where each part begins, and where the last one ends.
std::vector<size_t> Starts(const size_t* parts, size_t count) {
  std::vector<size_t> starts(count + 1);
  std::partial_sum(parts, parts + count, starts.begin() + 1);
  return starts;
}

}  // namespace

Status NcclRunner::AllReduce(const std::vector<Span>& spans, DType dtype, int op) {
  auto has = [&](size_t i) { return spans[i].count > 0; };
  return InGroups("ncclAllReduce", spans.size(), has, [&](size_t i) {
    const Span& span = spans[i];
    return library_->AllReduce(span.in, span.out, span.count, DTypeOf(dtype), op, comm_, stream_);
  });
}

// Parts that differ are reduced one by one, each to its rank, since ncclReduceScatter takes equal
// ones only: like it they take a rank's bytes into the network once.
Status NcclRunner::ReduceScatter(const DeviceCollective& collective, int op) {
  size_t ranks = static_cast<size_t>(membership_.size), element = Info(collective.dtype).size;
  int dtype = DTypeOf(collective.dtype);
  auto equal = [&](size_t i) {
    return collective.spans[i / ranks].count == ranks * collective.parts[i - i % ranks];
  };
  auto has = [&](size_t i) { return collective.parts[i] > 0 && (i % ranks == 0 || !equal(i)); };
  return InGroups("ncclReduceScatter", collective.spans.size() * ranks, has, [&](size_t i) {
    size_t r = i % ranks;
    const Span& span = collective.spans[i / ranks];
    const size_t* parts = &collective.parts[i - r];
    if (equal(i)) {
      return library_->ReduceScatter(span.in, span.out, parts[0], dtype, op, comm_, stream_);
    }
    const char* in = span.in + std::accumulate(parts, parts + r, size_t{0}) * element;
    return library_->Reduce(in, span.out, parts[r], dtype, op, static_cast<int>(r), comm_, stream_);
  });
}

Status NcclRunner::Reduce(const DeviceCollective& collective, int op) {
  bool scatters = collective.kind == DeviceCollective::Kind::kReduceScatter;
  return scatters ? ReduceScatter(collective, op)
                  : AllReduce(collective.spans, collective.dtype, op);
}

Status NcclRunner::Broadcast(const DeviceCollective& collective) {
  auto has = [&](size_t i) { return collective.spans[i].count > 0; };
  return InGroups("ncclBroadcast", collective.spans.size(), has, [&](size_t i) {
    const Span& span = collective.spans[i];
    return library_->Broadcast(span.in, span.out, span.count, kNcclUint8, collective.root, comm_,
                               stream_);
  });
}

// Parts that differ are broadcast one by one, since ncclAllGather takes equal ones only: each byte
// then enters a rank once, as in an allgather, and a node's network once, where sends and receives
// would take it there once for each of the node's ranks.
Status NcclRunner::Allgather(const DeviceCollective& collective) {
  const Span& own = collective.spans[0];
  const std::vector<size_t>& parts = collective.parts;
  auto differs = [&](size_t bytes) { return bytes != parts[0]; };
  if (std::none_of(parts.begin(), parts.end(), differs)) {
    return InGroups("ncclAllGather", 1, Always, [&](size_t) {
      return library_->AllGather(own.in, own.out, parts[0], kNcclUint8, comm_, stream_);
    });
  }
  std::vector<size_t> starts = Starts(parts.data(), parts.size());
  auto has = [&](size_t r) { return parts[r] > 0; };
  return InGroups("ncclBroadcast", parts.size(), has, [&](size_t r) {
    char* out = own.out + starts[r];
    int root = static_cast<int>(r);
    const char* in = root == membership_.rank ? own.in : out;
    return library_->Broadcast(in, out, parts[r], kNcclUint8, root, comm_, stream_);
  });
}

// A send and a receive in each step, to the rank that is as many ranks ahead as the other one is
// behind: so both ends of a message are in the same step, and in the same group, on all ranks.
// Empty ones are left out at both ends.
Status NcclRunner::Alltoall(const DeviceCollective& collective) {
  size_t ranks = static_cast<size_t>(membership_.size);
  size_t self = static_cast<size_t>(membership_.rank);
  const size_t *sent = collective.parts.data(), *received = sent + ranks;
  std::vector<size_t> sent_at = Starts(sent, ranks), received_at = Starts(received, ranks);
  const Span& span = collective.spans[0];
  auto receiver = [&](size_t step) { return (self + step) % ranks; };
  auto sender = [&](size_t step) { return (self + ranks - step) % ranks; };
  auto has = [&](size_t step) { return sent[receiver(step)] > 0 || received[sender(step)] > 0; };
  return InGroups("ncclSend and ncclRecv", ranks, has, [&](size_t step) {
    size_t to = receiver(step), from = sender(step);
    NcclResult result = kNcclSuccess;
    if (sent[to] > 0) {
      result = library_->Send(span.in + sent_at[to], sent[to], kNcclUint8, static_cast<int>(to),
                              comm_, stream_);
    }
    bool fine = result == kNcclSuccess || result == kNcclInProgress;
    if (!fine || received[from] == 0) return result;
    return library_->Recv(span.out + received_at[from], received[from], kNcclUint8,
                          static_cast<int>(from), comm_, stream_);
  });
}

Status NcclRunner::EnqueueInPlace(const DeviceCollective& collective) {
  switch (collective.kind) {
    case DeviceCollective::Kind::kBroadcast:
      return Broadcast(collective);
    case DeviceCollective::Kind::kAllgather:
      return Allgather(collective);
    case DeviceCollective::Kind::kAlltoall:
      return Alltoall(collective);
    default:
      return EnqueueReduction(collective);
  }
}

// NCCL scales by an op that is made for the factor.
Status NcclRunner::EnqueueReduction(const DeviceCollective& collective) {
  int op = OpOf(collective.op);
  if (!collective.scaled()) return Reduce(collective, op);
  double factor = collective.prescale * collective.postscale;
  auto single = static_cast<float>(factor);
  bool wide = collective.dtype == DType::kFloat64;
  void* scalar = wide ? static_cast<void*>(&factor) : &single;
  NcclResult result = library_->RedOpCreatePreMulSum(&op, scalar, DTypeOf(collective.dtype),
                                                     kNcclScalarOnHost, comm_);
  if (result != kNcclSuccess) return library_->Failure("ncclRedOpCreatePreMulSum", result, comm_);
  Status status = Reduce(collective, op);
  if (!status.ok()) return status;
  result = library_->RedOpDestroy(op, comm_);
  return result == kNcclSuccess ? Status() : library_->Failure("ncclRedOpDestroy", result, comm_);
}

Status NcclRunner::EnqueuePacked(const Job& job) {
  const DeviceCollective& collective = job.collective;
  int op = OpOf(collective.op);
  char* table = job.table.get();
  auto reduce = [&](char* in, char* out, size_t count, DType dtype) {
    return AllReduce({{in, out, count}}, dtype, op);
  };
  auto scatter = [&](char* in, char* out, size_t count, DType dtype) {
    return InGroups("ncclReduceScatter", 1, Always, [&](size_t) {
      return library_->ReduceScatter(in, out, count, DTypeOf(dtype), op, comm_, stream_);
    });
  };
  bool scatters = collective.kind == DeviceCollective::Kind::kReduceScatter;
  return scatters ? packer_->Reduce(collective, stream_, table, scatter)
                  : packer_->Reduce(collective, stream_, table, reduce);
}

}  // namespace smddp

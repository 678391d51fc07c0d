// OpCall: one execution of an op, from its compute function until it is done.
//
// Each op that waits for peers comes in two forms. Where TensorFlow keeps program order, a
// synchronous kernel blocks its thread: nothing else may run before it anyway, and TensorFlow runs
// what follows on the same thread. After an asynchronous kernel it would wake another thread, which
// doubles the cost of a small collective where ranks share cores.
//
// Where there is no order (threads and TF1 sessions), the kernel is asynchronous: a thread of
// TensorFlow's pool waits for a millisecond at most (RankSet::Post in engine/rank_set.h) and is
// then released. Otherwise all threads could block in collectives that the other ranks run later,
// and those running there could never start.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/guarded.h"
#include "tf/runtime/async_done.h"
#include "tf/runtime/op_kernel.h"

namespace smddp_tf {

class OpCall {
 public:
  OpCall() = default;
  virtual ~OpCall() = default;
  OpCall(const OpCall&) = delete;
  OpCall& operator=(const OpCall&) = delete;

  // Of smddp_memory: where the tensors of the op's type T are.
  void SetMemory(int memory) { memory_ = memory; }
  // Both run the call, which deletes itself.
  void Run(const void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);
  void RunBlocking(const void* kernel, TF_OpKernelContext* context);

 protected:
  // Does the work. Its last statement must call Fail, Finish or Post: the call may be deleted by
  // then.
  virtual void Start() = 0;

  void Fail(int code, const std::string& message);
  // Runs what ends with Fail, Finish or Post; the call fails if it throws before that.
  template <typename Fn>
  void Guard(Fn&& fn) {
    smddp::Guarded(fn, [this](const smddp::Status& thrown) {
      Fail(static_cast<int>(thrown.code()), thrown.message());
    });
  }
  // Completes the call, on success or after a failure that was already reported to TensorFlow.
  void Finish() noexcept;
  // Runs the collective, and then `next` if it succeeded.
  void Post(smddp_request request, std::function<void()> next);
  // Tells the request where its tensors are. Their outputs must have been allocated before.
  void Place(smddp_request* request) const;
  // Gives the request of a TF1 session a name of its own, which `name` holds; see op_call.cc.
  // Returns false after a failure, which it has reported to TensorFlow.
  bool NumberRun(smddp_request* request, std::string* name) const;

  const Attributes& attributes() const { return *static_cast<const Attributes*>(kernel_); }
  const void* kernel_ = nullptr;
  TF_OpKernelContext* context_ = nullptr;
  int memory_ = SMDDP_HOST;

  // For Post and the C API.
  static void Done(void* call, int code, const char* message);
  std::function<void()> next_;

 private:
  struct Latch;
  AsyncDone done_;
  Latch* latch_ = nullptr;  // used instead of done_ where the compute function blocks
};

// The compute functions of kernels.
template <typename Call, int kMemory>
void ComputeAsync(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  auto* call = new Call();
  call->SetMemory(kMemory);
  call->Run(kernel, context, done);
}
template <typename Call, int kMemory>
void ComputeBlocking(void* kernel, TF_OpKernelContext* context) {
  auto* call = new Call();
  call->SetMemory(kMemory);
  call->RunBlocking(kernel, context);
}

// Registers an op with asynchronous kernels.
template <typename Call, void* (*kCreate)(TF_OpKernelConstruction*), void (*kDestroy)(void*)>
void RegisterAsync(const OpSpec& spec) {
  RegisterOp(spec);
  RegisterKernels(spec, [](const char* op, const char* device, int memory) {
    auto compute =
        memory == SMDDP_CUDA ? ComputeAsync<Call, SMDDP_CUDA> : ComputeAsync<Call, SMDDP_HOST>;
    return TF_NewAsyncKernelBuilder(op, device, kCreate, compute, kDestroy);
  });
}

// What a collective's op has apart from what all of them have.
struct CollectiveSpec {
  std::vector<const char*> inputs, outputs, attrs;
  ShapeFunction shape;
};

// Registers both forms of a collective: Smddp<kind>, and SmddpUnordered<kind>, which has the number
// of the call of its function as its last input.
template <typename Call, void* (*kCreate)(TF_OpKernelConstruction*), void (*kDestroy)(void*)>
void RegisterCollective(const std::string& kind, const CollectiveSpec& spec) {
  OpSpec op{"Smddp" + kind, spec.inputs, spec.outputs, spec.attrs, true, spec.shape};
  for (const char* attr : {kNameAttr, kSetAttr, kMatchingAttr}) op.attrs.push_back(attr);
  RegisterOp(op);
  RegisterKernels(op, [](const char* name, const char* device, int memory) {
    auto compute = memory == SMDDP_CUDA ? ComputeBlocking<Call, SMDDP_CUDA>
                                        : ComputeBlocking<Call, SMDDP_HOST>;
    return TF_NewKernelBuilder(name, device, kCreate, compute, kDestroy);
  });

  op.name = "SmddpUnordered" + kind;
  op.inputs.push_back("call: int64");
  if (op.shape == SameShapes) op.shape = SameShapesButLast;
  RegisterAsync<Call, kCreate, kDestroy>(op);
}

}  // namespace smddp_tf

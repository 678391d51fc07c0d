// No exception leaves a function of the C API: each allocation that a call makes fails once.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "capi/smddp.h"
#include "check.h"

namespace {

thread_local int until_failure = 0;  // allocations of this thread; 0: none fails
thread_local bool has_failed = false;

}  // namespace

// Of the whole program, which otherwise gets what it always does.
void* operator new(size_t bytes) {
  if (until_failure > 0 && --until_failure == 0) {
    has_failed = true;
    throw std::bad_alloc();
  }
  void* memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes > 0 ? bytes : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

constexpr int kNotTold = -1;
constexpr int kManyAllocations = 3000;

// The callback's view of an operation.
struct Told {
  std::atomic<int> code{kNotTold}, times{0};
  std::vector<char> output;

  static void Done(void* told, int code, const char*) {
    until_failure = 0;  // what follows is no longer the call's
    static_cast<Told*>(told)->code = code;
    ++static_cast<Told*>(told)->times;
  }
  static int Allocate(void* told, const int64_t* rows, int, void** out) {
    auto& output = static_cast<Told*>(told)->output;
    output.resize(static_cast<size_t>(*rows) * sizeof(float) + 1);
    *out = output.data();
    return SMDDP_OK;
  }
  // Returns the code, or kNotTold after some seconds.
  int Await() const {
    for (int i = 0; i < 5000 && times == 0; ++i) ::usleep(1000);
    return code;
  }
};

struct Tensors {
  float in[4] = {1, 2, 3, 4}, out[4] = {};
  int64_t dims[1] = {4};
  smddp_tensor tensor{in, out, 1, dims};

  smddp_request Request(int kind) {
    smddp_request request = {};
    request.kind = kind;
    request.dtype = SMDDP_FLOAT32;
    request.op = SMDDP_SUM;
    request.prescale = request.postscale = 1;
    // Longer than a string without memory of its own.
    request.name = "a tensor with a rather long name";
    request.description = "what it is";
    request.num_tensors = 1;
    request.tensors = &tensor;
    return request;
  }
};

// Calls `call` with failures at its 1st, 2nd, ... allocation, until it makes no more, each time in
// a job of its own. It returns an smddp_code.
void FailEach(const std::string& what, const std::function<int()>& call) {
  int failures = 0;
  for (int at = 1; at < kManyAllocations; ++at) {
    if (smddp_init() != SMDDP_OK) return EXPECT(false, what + ": " + smddp_last_error());
    has_failed = false;
    until_failure = at;
    int code = call();
    until_failure = 0;
    const bool failed = has_failed;
    std::string error = code == SMDDP_OK ? "" : smddp_last_error();
    smddp_shutdown(1);
    if (code != SMDDP_OK) {
      ++failures;
      EXPECT_EQ(code, static_cast<int>(SMDDP_SYSTEM), what + ", allocation " + std::to_string(at));
    }
    if (!failed) {
      EXPECT_EQ(code, static_cast<int>(SMDDP_OK), what + " without a failure: " + error);
      EXPECT(failures > 0, what);
      return;
    }
  }
  EXPECT(false, what + " makes no end of allocations");
}

// As above, for a function that takes a callback, which is called once.
void FailEachPosted(const std::string& what, const std::function<void(Tensors*, Told*)>& post) {
  FailEach(what, [&] {
    Tensors tensors;
    Told told;
    post(&tensors, &told);
    until_failure = 0;
    int code = told.Await();
    EXPECT_EQ(told.times.load(), 1, what);
    return code;
  });
}

}  // namespace

TEST(MemoryRunsOutInACall) {
  FailEach("smddp_run", [] {
    Tensors tensors;
    smddp_request request = tensors.Request(SMDDP_ALLREDUCE);
    return smddp_run(&request);
  });
  FailEach("smddp_agree", [] { return smddp_agree("a text that all ranks have alike"); });
}

TEST(MemoryRunsOutInAPost) {
  FailEachPosted("smddp_post", [](Tensors* tensors, Told* told) {
    smddp_request request = tensors->Request(SMDDP_ALLREDUCE);
    smddp_post(&request, Told::Done, told);
  });
  FailEachPosted("smddp_post_ragged", [](Tensors* tensors, Told* told) {
    smddp_request request = tensors->Request(SMDDP_ALLGATHER);
    smddp_post_ragged(&request, nullptr, 0, Told::Allocate, Told::Done, told);
  });
}

TEST(MemoryRunsOutInAStep) {
  auto make = [] {
    return smddp_plan_new(7, "a plan with a rather long name", "what it is", 1, 0);
  };
  FailEach("smddp_plan_new", [&] {
    smddp_plan* plan = make();
    if (plan != nullptr) smddp_plan_delete(plan);
    return plan != nullptr ? SMDDP_OK : SMDDP_SYSTEM;
  });
  smddp_plan* plan = make();
  FailEach("smddp_plan_begin", [&] {
    int64_t run = 0;
    return smddp_plan_begin(plan, &run);
  });
  // Begin and bucket, then the end of the step.
  FailEachPosted("smddp_plan_bucket", [&](Tensors* tensors, Told* told) {
    const int at = until_failure;
    until_failure = 0;
    int64_t run = 0;
    EXPECT_EQ(smddp_plan_begin(plan, &run), static_cast<int>(SMDDP_OK));
    until_failure = at;
    smddp_request request = tensors->Request(SMDDP_ALLREDUCE);
    smddp_plan_bucket(run, 0, &request, Told::Done, told);
  });
  smddp_plan_delete(plan);
  FailEachPosted("smddp_plan_end",
                 [](Tensors*, Told* told) { smddp_plan_end(0, 1, Told::Done, told); });
}

TEST(MemoryRunsOutAnywhereElse) {
  FailEach("smddp_stats_json", [] {
    char text[2048] = "";
    smddp_stats_json(text, sizeof text);
    return std::strcmp(text, "{}") == 0 ? SMDDP_SYSTEM : SMDDP_OK;
  });
  FailEach("smddp_timeline_start", [] { return smddp_timeline_start("/tmp/smddp_test_timeline"); });
  FailEach("smddp_process_set_ranks", [] {
    int32_t rank = 0;
    return smddp_process_set_ranks(0, &rank, 1) == 1 ? SMDDP_OK : SMDDP_SYSTEM;
  });
}

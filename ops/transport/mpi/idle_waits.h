// How Open MPI 5 waits for messages: with its nap or without a pause, but not by yielding the core.
//
// Open MPI polls. With more ranks than cores it yields the core after each poll that found nothing,
// and Linux 6.18 was seen to give two ranks that yield like that a core each for over a minute:
// whoever else wanted to run did not, the peer that both waited for among them. Open MPI 5 can nap
// instead ("nanosleep", parameter threads_pthreads_yield_strategy). A call that blocks does so
// here, on free cores too; one that only looks must not, since a nap takes longer than a message.
#pragma once

namespace smddp {

// For MPI_Init: has Open MPI 5 nap where it would yield. A user's own setting is kept.
constexpr char kIdleWaitsParameter[] = "OMPI_MCA_threads_pthreads_yield_strategy";
constexpr char kIdleWaitsByNaps[] = "nanosleep";

// Once MPI_Init has returned. Without it, or with another MPI, IdleWaits does nothing.
void FindIdleWaits(void* library);

// While one exists, MPI waits like this, in all threads; that it looks only comes before the other.
class IdleWaits {
 public:
  enum Kind { kNap, kLookOnly };
  explicit IdleWaits(Kind kind);
  ~IdleWaits();
  IdleWaits(const IdleWaits&) = delete;
  IdleWaits& operator=(const IdleWaits&) = delete;

 private:
  Kind kind_;
  bool counted_;
};

}  // namespace smddp

// One thread plays all threads of all ranks: fibers that are switched where the library waits, with
// a clock that only moves as the scheduler says and a choice of who is next that follows from a
// seed. So a run with one seed is the same run each time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace smddp_sim {

// xorshift64*, seeded as splitmix64 does, of which the upper 56 bits are used.
class Random {
 public:
  explicit Random(uint64_t seed);
  uint64_t Next();
  int Below(int n) { return static_cast<int>(Next() % static_cast<uint64_t>(n)); }
  double Unit() { return static_cast<double>(Next()) * 0x1p-56; }
  bool Chance(double p) { return Unit() < p; }

 private:
  uint64_t state_;
};

struct Fiber;

class Scheduler {
 public:
  enum class End { kDone, kTooLong };

  explicit Scheduler(uint64_t seed);
  ~Scheduler();
  // The one whose fiber is running; null outside of fibers.
  static Scheduler* Current();

  Random& random() { return random_; }
  double now() const { return now_; }
  int rank() const;  // of the running fiber

  // `main`: Run() lasts until this fiber is done, unless its rank has died.
  int Spawn(int rank, const char* role, bool main, std::function<void()> body);
  void At(double time, std::function<void()> event);
  // Until all main fibers are done and no event is left. kTooLong: not by `limit`.
  End Run(double limit);

  // ---- for fibers ----

  // Returns whether Wake(key) ended it; otherwise the time is over. Negative: without limit.
  bool Block(const void* key, double seconds, const char* why);
  void Pause(double seconds, const char* why) { Block(nullptr, seconds, why); }
  int Wake(const void* key, int most);
  // Where a thread may lose its core in the midst of something.
  void Preempt(const char* where);
  // Who looks at the clock again and again gives up its core at last.
  void LookAtClock();
  bool Done(int fiber) const;

  // ---- faults ----

  void Kill(int rank);
  bool dead(int rank) const { return dead_[rank]; }
  void Stop(int rank, double until) { stopped_until_[rank] = until; }
  void set_preemption(double chance) { preemption_ = chance; }

  uint64_t steps() const { return steps_; }
  uint64_t preemptions() const { return preemptions_; }
  // What every fiber that is not done waits for.
  std::string Describe() const;
  void set_trace(bool on) { trace_ = on; }

 private:
  bool Runnable(const Fiber& fiber) const;
  Fiber* Choose();
  bool Advance();  // the clock, to when something can run
  void FireEvents();
  bool MainsDone() const;
  void SwitchTo(Fiber* fiber);
  void Leave();  // back from the running fiber

  Random random_;
  double now_ = 1000.0;  // some time after the machine started
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber* running_ = nullptr;
  std::multimap<double, std::function<void()>> events_;
  std::vector<char> dead_ = std::vector<char>(64, 0);
  std::vector<double> stopped_until_ = std::vector<double>(64, 0.0);
  double preemption_ = 0;
  uint64_t steps_ = 0, preemptions_ = 0;
  int looks_ = 0;  // at the clock, of the running fiber
  bool trace_ = false;
};

}  // namespace smddp_sim

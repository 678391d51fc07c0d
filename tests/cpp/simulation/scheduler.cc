// A fortified longjmp refuses to go to another stack.
#undef _FORTIFY_SOURCE
#include "scheduler.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace smddp_sim {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr double kStepSeconds = 1e-6;

Scheduler* current = nullptr;
jmp_buf scheduler_context;

// Stacks are used again and again: each has a page that nobody may touch at its end.
std::vector<char*>& FreeStacks() {
  static std::vector<char*> stacks;
  return stacks;
}

char* TakeStack() {
  if (!FreeStacks().empty()) {
    char* stack = FreeStacks().back();
    FreeStacks().pop_back();
    return stack;
  }
  void* memory = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || ::mprotect(memory, 4096, PROT_NONE) != 0) std::abort();
  return static_cast<char*>(memory);
}

}  // namespace

struct Fiber {
  int rank = 0;
  const char* role = "";
  bool main = false;
  std::function<void()> body;
  char* stack = nullptr;
  ucontext_t start;
  jmp_buf context;
  bool started = false, done = false, woken = false;
  const void* key = nullptr;  // what it is blocked on
  double wake_at = 0;         // < 0: only by Wake
  const char* why = "";
};

Random::Random(uint64_t seed) {
  uint64_t z = seed + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  state_ = (z ^ (z >> 31)) | 1;
}

uint64_t Random::Next() {
  state_ ^= state_ >> 12;
  state_ ^= state_ << 25;
  state_ ^= state_ >> 27;
  return state_ * 0x2545f4914f6cdd1dull >> 8;
}

Scheduler::Scheduler(uint64_t seed) : random_(seed) {}

// What dead fibers had is lost: processes that die do not clean up either.
Scheduler::~Scheduler() {
  for (auto& fiber : fibers_) FreeStacks().push_back(fiber->stack);
}

Scheduler* Scheduler::Current() { return current; }
int Scheduler::rank() const { return running_->rank; }
bool Scheduler::Done(int fiber) const { return fibers_[fiber]->done; }

int Scheduler::Spawn(int rank, const char* role, bool main, std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->rank = rank;
  fiber->role = role;
  fiber->main = main;
  fiber->body = std::move(body);
  fiber->stack = TakeStack();
  fiber->wake_at = now_;
  fibers_.push_back(std::move(fiber));
  return static_cast<int>(fibers_.size()) - 1;
}

void Scheduler::At(double time, std::function<void()> event) {
  events_.emplace(time, std::move(event));
}

void Scheduler::Kill(int rank) {
  dead_[rank] = 1;
  if (trace_) std::printf("%.6f rank %d dies\n", now_, rank);
}

bool Scheduler::Runnable(const Fiber& fiber) const {
  if (fiber.done || dead_[fiber.rank] || stopped_until_[fiber.rank] > now_) return false;
  return fiber.woken || (fiber.wake_at >= 0 && fiber.wake_at <= now_);
}

Fiber* Scheduler::Choose() {
  Fiber* chosen = nullptr;
  int seen = 0;
  for (auto& fiber : fibers_) {
    if (Runnable(*fiber) && random_.Below(++seen) == 0) chosen = fiber.get();
  }
  return chosen;
}

bool Scheduler::Advance() {
  double next = -1;
  auto consider = [&](double time) {
    if (next < 0 || time < next) next = time;
  };
  for (auto& fiber : fibers_) {
    if (fiber->done || dead_[fiber->rank]) continue;
    double ready = fiber->woken ? now_ : fiber->wake_at;
    if (ready >= 0) consider(std::max(ready, stopped_until_[fiber->rank]));
  }
  if (!events_.empty()) consider(events_.begin()->first);
  if (next < 0) return false;
  now_ = std::max(now_, next);
  return true;
}

void Scheduler::FireEvents() {
  while (!events_.empty() && events_.begin()->first <= now_) {
    auto event = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    event();
  }
}

bool Scheduler::MainsDone() const {
  for (auto& fiber : fibers_) {
    if (fiber->main && !fiber->done && !dead_[fiber->rank]) return false;
  }
  return true;
}

Scheduler::End Scheduler::Run(double limit) {
  limit += now_;
  for (;;) {
    FireEvents();
    if (MainsDone() && events_.empty()) return End::kDone;
    if (now_ > limit) return End::kTooLong;
    Fiber* fiber = Choose();
    if (fiber == nullptr) {
      if (!Advance()) return End::kTooLong;
      continue;
    }
    ++steps_;
    now_ += kStepSeconds;
    SwitchTo(fiber);
  }
}

void Scheduler::SwitchTo(Fiber* fiber) {
  if (trace_) {
    std::printf("%.6f rank %d %s (after: %s)\n", now_, fiber->rank, fiber->role, fiber->why);
  }
  running_ = fiber;
  looks_ = 0;
  current = this;
  if (_setjmp(scheduler_context) == 0) {
    if (fiber->started) _longjmp(fiber->context, 1);
    fiber->started = true;
    ::getcontext(&fiber->start);
    fiber->start.uc_stack.ss_sp = fiber->stack;
    fiber->start.uc_stack.ss_size = kStackBytes;
    fiber->start.uc_link = nullptr;
    ::makecontext(&fiber->start, reinterpret_cast<void (*)()>(+[] {
      Scheduler* scheduler = current;
      scheduler->running_->body();
      scheduler->running_->done = true;
      scheduler->Leave();
    }),
                  0);
    ::setcontext(&fiber->start);
  }
  running_ = nullptr;
  current = nullptr;
}

void Scheduler::Leave() {
  if (_setjmp(running_->context) == 0) _longjmp(scheduler_context, 1);
}

bool Scheduler::Block(const void* key, double seconds, const char* why) {
  Fiber* self = running_;
  self->key = key;
  self->wake_at = seconds < 0 ? -1 : now_ + seconds;
  self->why = why;
  self->woken = false;
  Leave();
  bool woken = self->woken;
  self->key = nullptr;
  self->woken = false;
  return woken;
}

int Scheduler::Wake(const void* key, int most) {
  int count = 0;
  for (auto& fiber : fibers_) {
    if (count == most) break;
    if (fiber->done || fiber->woken || fiber->key != key) continue;
    fiber->woken = true;
    ++count;
  }
  return count;
}

void Scheduler::Preempt(const char* where) {
  ++preemptions_;
  if (preemption_ == 0 || !random_.Chance(preemption_)) return;
  // Mostly a moment, sometimes as long as a system that is busy takes to come back.
  Pause(random_.Chance(0.1) ? 2e-3 * random_.Unit() : 0, where);
}

void Scheduler::LookAtClock() {
  constexpr int kLooks = 50;
  if (++looks_ % kLooks == 0) Pause(20e-6, "looked at the clock too often");
}

std::string Scheduler::Describe() const {
  std::string text;
  for (auto& fiber : fibers_) {
    if (fiber->done) continue;
    text += "    rank " + std::to_string(fiber->rank) + " " + fiber->role + ": " + fiber->why;
    text += dead_[fiber->rank] ? " (dead)\n" : "\n";
  }
  return text;
}

}  // namespace smddp_sim

// Threads that nobody joins. std::thread::detach() is not for them: glibc's pthread_detach looks at
// the thread once more after it has detached it, when a short one may have ended and its memory be
// unmapped, or be another thread's. A crash there was seen with glibc 2.36.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <memory>
#include <system_error>
#include <utility>  // for move

#include "core/guarded.h"

namespace smddp {

// Runs `body` on a thread of its own, which takes no signals: a handler may be a script's, and
// wait. If the body throws, the thread ends with failed(status). Throws std::system_error, as
// std::thread does, if there can be no more threads.
inline void RunDetached(std::function<void()> body, std::function<void(const Status&)> failed) {
  struct Work {
    std::function<void()> body;
    std::function<void(const Status&)> failed;
  };
  auto owned = std::make_unique<Work>(Work{std::move(body), std::move(failed)});
  auto run = [](void* argument) -> void* {
    std::unique_ptr<Work> own(static_cast<Work*>(argument));
    Guarded(own->body, own->failed);
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread{};
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&thread, &attributes, run, owned.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) throw std::system_error(error, std::generic_category(), "pthread_create");
  static_cast<void>(owned.release());  // the thread has it
}

}  // namespace smddp

// What an emulator of another processor may lack: qemu-user has no process_vm_readv() and no
// seccomp.
#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace smddp_test {

// True, with a line that says so, if this system does not know how to read another process. A
// refusal is another error, and no reason to leave a test out.
inline bool NoPeerReads() {
  char from = 0, to = 0;
  iovec here = {&to, 1}, there = {&from, 1};
  if (::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) >= 0 || errno != ENOSYS) return false;
  std::printf("skip the next one: process_vm_readv is not implemented here\n");
  return true;
}

}  // namespace smddp_test

// Memory of a device that does not exist: its addresses are of pages without any access, and only
// its own copies know where the bytes really are. A line of the library that reads or writes such
// memory itself ends the process.
#pragma once

#include <cstddef>

extern "C" {

void* FakeAllocate(size_t bytes);  // on device 0
void* FakeAllocateOn(int device, size_t bytes);
void FakeFree(void* address);
// Where the bytes of device memory really are; a host address is returned as it is.
char* FakeBytes(const void* address);
int FakeIsDevice(const void* address);
int FakeDeviceOf(const void* address);  // -1: the host's
// Whether an allocation of device memory begins there.
int FakeBegins(const void* address);

// Makes the device forget that it is broken (driver.cc).
void FakeRepair(void);
// How many kernels were launched whose names begin like that, in this process.
int FakeLaunches(const char* name);
// Enqueues work as a kernel would be; a CUresult.
int FakeLaunch(void* stream, void (*work)(void*), void* argument);
// Whether something is a stream of the driver's.
int FakeIsStream(const void* handle);
// The context of a stream; null if there is no such stream.
void* FakeStreamContext(const void* handle);
// Waits for all that the current context's device has to do, as cuCtxSynchronize() does; how often
// that was called in this process.
int FakeWaitForAll(void);
int FakeSynchronizations(void);

}  // extern "C"

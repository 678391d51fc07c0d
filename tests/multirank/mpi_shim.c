// An MPI library for SMDDP_MPI_LIBRARY: it calls the real one, to which it is linked, but one rank
// sends itself a signal when it comes to a certain call of SHIM_FUNCTION.
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int number(const char* name) {
  const char* text = getenv(name);
  return text == NULL ? -1 : atoi(text);
}

static void called(const char* function) {
  static int calls = 0;
  int rank = number("OMPI_COMM_WORLD_RANK");
  if (rank < 0) rank = number("PMI_RANK");
  if (strcmp(function, getenv("SHIM_FUNCTION")) != 0) return;
  ++calls;
  if (calls == number("SHIM_CALL") && rank == number("SHIM_RANK")) {
    kill(getpid(), number("SHIM_SIGNAL"));
  }
}

int MPI_Comm_split(uintptr_t comm, int color, int key, void* out) {
  typedef int (*Split)(uintptr_t, int, int, void*);
  called("MPI_Comm_split");
  return ((Split)dlsym(RTLD_DEFAULT, "PMPI_Comm_split"))(comm, color, key, out);
}

int MPI_Iallgather(const void* send, int count, uintptr_t type, void* receive, int counts,
                   uintptr_t types, uintptr_t comm, void* request) {
  typedef int (*Gather)(const void*, int, uintptr_t, void*, int, uintptr_t, uintptr_t, void*);
  called("MPI_Iallgather");
  return ((Gather)dlsym(RTLD_DEFAULT, "PMPI_Iallgather"))(send, count, type, receive, counts, types,
                                                          comm, request);
}

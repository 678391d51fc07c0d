// An MPI library for SMDDP_MPI_LIBRARY: it calls the real one, to which it is linked, but one rank
// sends itself SHIM_SIGNAL when it comes to a certain call of SHIM_FUNCTION, or the call fails.
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

#define FAILED 16  // MPI_ERR_OTHER

// Whether the call fails.
static int called(const char* function) {
  static int calls = 0;
  int rank = number("OMPI_COMM_WORLD_RANK");
  if (rank < 0) rank = number("PMI_RANK");
  if (strcmp(function, getenv("SHIM_FUNCTION")) != 0) return 0;
  ++calls;
  if (calls != number("SHIM_CALL") || rank != number("SHIM_RANK")) return 0;
  if (getenv("SHIM_SIGNAL") == NULL) return FAILED;
  kill(getpid(), number("SHIM_SIGNAL"));
  return 0;
}

int MPI_Comm_split(uintptr_t comm, int color, int key, void* out) {
  typedef int (*Split)(uintptr_t, int, int, void*);
  if (called("MPI_Comm_split")) return FAILED;
  return ((Split)dlsym(RTLD_DEFAULT, "PMPI_Comm_split"))(comm, color, key, out);
}

int MPI_Iallgather(const void* send, int count, uintptr_t type, void* receive, int counts,
                   uintptr_t types, uintptr_t comm, void* request) {
  typedef int (*Gather)(const void*, int, uintptr_t, void*, int, uintptr_t, uintptr_t, void*);
  if (called("MPI_Iallgather")) return FAILED;
  return ((Gather)dlsym(RTLD_DEFAULT, "PMPI_Iallgather"))(send, count, type, receive, counts, types,
                                                          comm, request);
}

// An MPI library for SMDDP_MPI_LIBRARY: it calls the real one, to which it is linked, but one rank
// sends itself a signal when it comes to a call of MPI_Comm_split.
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

static int number(const char* name) {
  const char* text = getenv(name);
  return text == NULL ? -1 : atoi(text);
}

int MPI_Comm_split(uintptr_t comm, int color, int key, void* out) {
  typedef int (*Split)(uintptr_t, int, int, void*);
  static int calls = 0;
  int rank = number("OMPI_COMM_WORLD_RANK");
  if (rank < 0) rank = number("PMI_RANK");
  ++calls;
  if (calls == number("SHIM_CALL") && rank == number("SHIM_RANK")) {
    kill(getpid(), number("SHIM_SIGNAL"));
  }
  return ((Split)dlsym(RTLD_DEFAULT, "PMPI_Comm_split"))(comm, color, key, out);
}

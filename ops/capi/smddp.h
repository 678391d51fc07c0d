// The C API of libsmddp.so: what Python (ctypes) and the TensorFlow ops call.
//
// Functions that return int return 0 or one of the codes below; smddp_last_error() then has the
// sentence. They may be called from any thread.
#ifndef SMDDP_CAPI_SMDDP_H_
#define SMDDP_CAPI_SMDDP_H_

#include <stddef.h>
#include <stdint.h>

#define SMDDP_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum {
  SMDDP_OK = 0,
  SMDDP_USAGE = 1,            // bad argument; nothing was sent
  SMDDP_MISMATCH = 2,         // ranks asked for different things; the job can go on
  SMDDP_TIMEOUT = 3,          // SMDDP_TIMEOUT_SECONDS passed
  SMDDP_REMOTE = 4,           // a peer died or left
  SMDDP_SYSTEM = 5,           // the operating system or MPI refused
  SMDDP_NOT_INITIALIZED = 6,  // smddp_init has not been called
};

// ---- the job ------------------------------------------------------------------------------------

SMDDP_EXPORT int smddp_init(void);  // idempotent
// The job is these ranks of the launcher's, renumbered in this order; one that is not listed is a
// job of its own.
//
// Before anything is shared the ranks tell each other what they start with, as lines of NAME=value:
// a difference in `must_agree` is an error on all ranks, one in `should_agree` a warning. With a
// `problem` this rank cannot start, and all ranks fail with that sentence. Each may be null.
SMDDP_EXPORT int smddp_init_job(const int32_t* ranks, int n, const char* must_agree,
                                const char* should_agree, const char* problem);
// failed != 0: this process ends because of an error, so MPI is not finalized. Idempotent.
SMDDP_EXPORT int smddp_shutdown(int failed);
SMDDP_EXPORT int smddp_is_initialized(void);
// -1 before smddp_init.
SMDDP_EXPORT int smddp_rank(void);
SMDDP_EXPORT int smddp_size(void);
SMDDP_EXPORT int smddp_local_rank(void);
SMDDP_EXPORT int smddp_local_size(void);
SMDDP_EXPORT int smddp_cross_rank(void);
SMDDP_EXPORT int smddp_cross_size(void);
SMDDP_EXPORT int smddp_is_homogeneous(void);
SMDDP_EXPORT const char* smddp_version(void);
SMDDP_EXPORT void smddp_warn(const char* text);  // one line in the log
// Of the calling thread's last failure.
SMDDP_EXPORT const char* smddp_last_error(void);
// Counters as JSON, cut to n bytes with the terminating zero. Returns the length it would take.
SMDDP_EXPORT int smddp_stats_json(char* buffer, size_t n);

// A Chrome trace of this rank's collectives; trace.json becomes trace.rank3.json on rank 3.
SMDDP_EXPORT int smddp_timeline_start(const char* path);
SMDDP_EXPORT int smddp_timeline_stop(void);

// ---- process sets; number 0 is all ranks
// ---------------------------------------------------------

// Collective over all ranks of the job, and fail on all alike. Numbers are never used again.
SMDDP_EXPORT int smddp_process_set_add(const int32_t* ranks, int n, int* process_set);
SMDDP_EXPORT int smddp_process_set_remove(int process_set);
// The set's ranks in the job, ascending, as many as n. Returns their number; -1: there is no such
// set.
SMDDP_EXPORT int smddp_process_set_ranks(int process_set, int32_t* ranks, int n);
// Collective over all ranks: fails on all, with both sides, unless all give the same text.
SMDDP_EXPORT int smddp_agree(const char* text);

// ---- collectives --------------------------------------------------------------------------------

enum {
  SMDDP_ALLREDUCE = 0,
  SMDDP_BROADCAST = 1,
  SMDDP_ALLGATHER = 2,
  SMDDP_BARRIER = 3,
  SMDDP_ALLTOALL = 4,
  SMDDP_REDUCESCATTER = 5,
};

// The root of an allgather of a few numbers, the same for each rank, in which zeros stand for a
// rank that has joined.
enum { SMDDP_NUMBERS = -1 };

typedef struct {
  const void* in;
  void* out;  // may equal in
  int32_t ndim;
  const int64_t* dims;
} smddp_tensor;

typedef struct {
  int32_t kind;   // of the list above
  int32_t dtype;  // TensorFlow's DataType
  int32_t op;     // Horovod's: 0 Average, 1 Sum, 3 Min, 4 Max, 5 Product
  // Of a broadcast: a rank of the job, whatever the process set. Of an allgather: SMDDP_NUMBERS, or
  // 0.
  int32_t root;
  int32_t process_set;
  int32_t matching;  // how its turn is found: 0 program order, 1 perhaps from several threads, 2 by
                     // name
  double prescale, postscale;
  const char* name;
  const char* description;  // a line for each tensor, for messages; null: shapes
  int32_t num_tensors;
  const smddp_tensor* tensors;
  // Allgather: bytes of each rank's part, one for each rank of the process set. The one tensor's
  // `out` takes all parts. Alltoall: bytes from rank r to rank p of the set, at [r * size + p].
  // Reducescatter: of dims[0] rows each rank gets an equal number, early ranks the odd ones;
  // `out` has this rank's rows.
  const int64_t* part_bytes;
} smddp_request;

// Blocks until this rank's part is done.
SMDDP_EXPORT int smddp_run(const smddp_request* request);

typedef void (*smddp_done)(void* argument, int code, const char* message);
// Does not wait for peers that are late: `done` is called exactly once, perhaps before this
// returns, on some thread. The request's arrays are copied, the tensors' memory is used until then.
SMDDP_EXPORT void smddp_post(const smddp_request* request, smddp_done done, void* argument);

// Takes part in the others' collectives, with zeros, until all ranks of the job have called this.
// *last: the rank that was the last to do so.
SMDDP_EXPORT int smddp_join(int* last);

// Short forms.
SMDDP_EXPORT int smddp_allreduce(const void* in, void* out, int64_t count, int dtype, int op,
                                 double prescale, double postscale, const char* name);
SMDDP_EXPORT int smddp_broadcast(void* buffer, int64_t bytes, int root, const char* name);
SMDDP_EXPORT int smddp_barrier(const char* name);

// ---- gradient plans (engine/plan_runs.h) --------------------------------------------------------

typedef struct smddp_plan smddp_plan;
SMDDP_EXPORT smddp_plan* smddp_plan_new(int64_t fingerprint, const char* name, const char* text,
                                        int num_buckets, int process_set);
SMDDP_EXPORT void smddp_plan_delete(smddp_plan* plan);
SMDDP_EXPORT int smddp_plan_begin(const smddp_plan* plan, int64_t* run);
// Returns at once; otherwise as smddp_post.
SMDDP_EXPORT void smddp_plan_bucket(int64_t run, int bucket, const smddp_request* request,
                                    smddp_done done, void* argument);
SMDDP_EXPORT void smddp_plan_end(int process_set, int64_t run, smddp_done done, void* argument);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SMDDP_CAPI_SMDDP_H_

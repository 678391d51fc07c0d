// The C API of libsmddp.so, called by Python (ctypes) and by the TensorFlow ops.
//
// Functions that return int return an smddp_code unless they say otherwise; smddp_last_error() then
// returns the error message. All functions may be called from any thread.
//
// The enums here are the source of their values: to_request.cc checks the engine's own at compile
// time, and tests/python/test_enums.py those of Python.
#ifndef SMDDP_CAPI_SMDDP_H_
#define SMDDP_CAPI_SMDDP_H_

#include <stddef.h>
#include <stdint.h>

#define SMDDP_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum smddp_code {
  SMDDP_OK = 0,
  SMDDP_USAGE = 1,            // bad argument; nothing was sent
  SMDDP_MISMATCH = 2,         // the ranks' requests differ; the job can continue
  SMDDP_TIMEOUT = 3,          // SMDDP_TIMEOUT_SECONDS, or the request's own limit, passed
  SMDDP_REMOTE = 4,           // a peer died or left
  SMDDP_SYSTEM = 5,           // an operating system or MPI call failed
  SMDDP_NOT_INITIALIZED = 6,  // smddp_init was not called
};

// ---- the job ------------------------------------------------------------------------------------

SMDDP_EXPORT int smddp_init(void);  // idempotent
// The job is these launcher ranks, renumbered in this order (n = 0: all of them); a rank that is
// not listed becomes a job of one rank.
//
// Before sharing anything, the ranks compare their settings, given as lines of NAME=value: a
// difference in `must_agree` is an error on all ranks, one in `should_agree` a warning. A non-null
// `problem` means that this rank cannot start; all ranks then fail with that message. Each of the
// three may be null.
SMDDP_EXPORT int smddp_init_job(const int32_t* ranks, int n, const char* must_agree,
                                const char* should_agree, const char* problem);
// How the ranks of a job reach each other while they start, other than by MPI. The functions are
// called one at a time, by the thread that is in smddp_init_with, in
// smddp_process_set_add_by_members or, on several hosts, in smddp_process_set_add; `context` is
// passed to them.
typedef struct smddp_bootstrap {
  int32_t rank, size;
  void* context;
  // Begins an allgather of `bytes` bytes of each rank. 0, or -1: `why` tells the reason.
  int (*start)(void* context, const void* send, int64_t bytes);
  // 1: it is done and recv has all blocks, `bytes` in all, in rank order; 0: not yet; -1: it
  // failed.
  int (*test)(void* context, void* recv, int64_t bytes);
  // Tells the other ranks that this one cannot start.
  void (*fail)(void* context, const char* text);
  // Why the ranks can no longer start together; "" if nothing is known of.
  const char* (*why)(void* context);
  // The numeric address of this host by which ranks on others reach it.
  const char* host;
  // Writes 32 bytes that nobody outside of the job can know: connections begin with them.
  void (*sign)(void* context, const void* data, int64_t bytes, void* signature);
} smddp_bootstrap;
// smddp_init_job of all ranks of a bootstrap, which TCP connects if they are on several hosts.
// Another job can follow in the process, also after an error.
SMDDP_EXPORT int smddp_init_with(const smddp_bootstrap* bootstrap, const char* must_agree,
                                 const char* should_agree, const char* problem);
// failed != 0: the process exits because of an error, so MPI is not finalized. Idempotent.
SMDDP_EXPORT int smddp_shutdown(int failed);
// The process is about to end with an exception, of this type and message: ranks of its machine
// that wait for it say so. To be called before smddp_shutdown.
SMDDP_EXPORT void smddp_ends_with(const char* exception);
SMDDP_EXPORT int smddp_is_initialized(void);
// 1 once a collective of the job has failed on some rank, so that all others of it fail; -1 before
// smddp_init.
SMDDP_EXPORT int smddp_is_broken(void);
// Fails the job: what is under way and what follows, on all ranks, with `why` behind "rank N ".
// Waits of this rank have ended when it returns, unless a thread is inside MPI.
SMDDP_EXPORT int smddp_abort(const char* why);
// While ranks wait for each other, SIGINT is answered: if `ask` returns other than 0, the wait
// fails on all ranks. It is called on any thread. Null: SIGINT does not end waits.
SMDDP_EXPORT void smddp_ask_before_interrupts(int (*ask)(void));
// After SIGTERM, a process for which `ask` returns other than 0 goes on. It is called on a thread
// of the library's. Null: the signal ends the process. To be called before smddp_init.
SMDDP_EXPORT void smddp_ask_before_termination(int (*ask)(void));
// These return -1 before smddp_init.
SMDDP_EXPORT int smddp_rank(void);
SMDDP_EXPORT int smddp_size(void);
SMDDP_EXPORT int smddp_local_rank(void);
SMDDP_EXPORT int smddp_local_size(void);
SMDDP_EXPORT int smddp_cross_rank(void);
SMDDP_EXPORT int smddp_cross_size(void);
SMDDP_EXPORT int smddp_is_homogeneous(void);
// 1 if no job of other ranks can follow this one in this process: it has one rank and no MPI, or
// ends the MPI that smddp_init began. 0 if a script or mpi4py began MPI, which goes on, and without
// MPI after smddp_init_with.
SMDDP_EXPORT int smddp_is_last_job(void);
SMDDP_EXPORT const char* smddp_version(void);
// One line for bug reports: compiler, glibc, architecture and SIMD levels.
SMDDP_EXPORT const char* smddp_build(void);
// One line for bug reports: NCCL's version and path, or why it cannot be used. Opens it.
SMDDP_EXPORT const char* smddp_nccl(void);
// One line for bug reports: the GPUs that the library has kernels for, or "none: " and why.
SMDDP_EXPORT const char* smddp_kernels(void);
// Where an NCCL may be, for a process that has loaded none and does not set SMDDP_NCCL_LIBRARY. To
// be called before smddp_init.
SMDDP_EXPORT void smddp_suggest_nccl(const char* path);
SMDDP_EXPORT void smddp_warn(const char* text);  // writes one line to the log
SMDDP_EXPORT void smddp_info(const char* text);  // the same, with SMDDP_LOG_LEVEL=info
// The message of the calling thread's last failure.
SMDDP_EXPORT const char* smddp_last_error(void);
// The name of the collective of the op that this thread runs next, whose attribute is empty.
SMDDP_EXPORT void smddp_name_next(const char* name);
SMDDP_EXPORT const char* smddp_next_name(void);
// What may be the cause, if ranks wait for each other or disagree later: such a failure's message
// ends with it. "" for nothing.
SMDDP_EXPORT void smddp_suspect(const char* text);
// Writes counters as JSON, truncated to n bytes including the terminating zero. Returns the full
// length.
SMDDP_EXPORT int smddp_stats_json(char* buffer, size_t n);

// Writes a Chrome trace of this rank's collectives; on rank 3 of the launcher's, trace.json becomes
// trace.rank3.json.
SMDDP_EXPORT int smddp_timeline_start(const char* path);
SMDDP_EXPORT int smddp_timeline_stop(void);

// ---- process sets; number 0 is all ranks --------------------------------------------------------

// Adding and removing are collective over all ranks of the job and succeed or fail on all of them.
// Numbers are never reused.
SMDDP_EXPORT int smddp_process_set_add(const int32_t* ranks, int n, int* process_set);
// Adds the set that an earlier job of this process, or of another rank's, had under this number.
SMDDP_EXPORT int smddp_process_set_add_again(const int32_t* ranks, int n, int process_set);
SMDDP_EXPORT int smddp_process_set_remove(int process_set);
// Adds a set by its own ranks alone, in ascending order, which `members` connects; other ranks of
// the job do not know of it, and it cannot be removed. A failure ends the job, unless its code is
// SMDDP_SYSTEM: then no member has the set. `limit`: in seconds; 0 for SMDDP_TIMEOUT_SECONDS.
SMDDP_EXPORT int smddp_process_set_add_by_members(const int32_t* ranks, int n,
                                                  const smddp_bootstrap* members, double limit,
                                                  int* process_set);
// This rank no longer uses such a set. The next one of the same ranks is it again, if all of them
// have left it.
SMDDP_EXPORT int smddp_process_set_leave(int process_set);
// Writes up to n job ranks of the set, ascending. Returns the size of the set, or -1 if it does not
// exist.
SMDDP_EXPORT int smddp_process_set_ranks(int process_set, int32_t* ranks, int n);
// Collective over all ranks: fails on all ranks, showing both texts, unless all texts are equal.
SMDDP_EXPORT int smddp_agree(const char* text);

// ---- collectives --------------------------------------------------------------------------------

enum smddp_kind {
  SMDDP_ALLREDUCE = 0,
  SMDDP_BROADCAST = 1,
  SMDDP_ALLGATHER = 2,
  SMDDP_BARRIER = 3,
  SMDDP_ALLTOALL = 4,
  SMDDP_REDUCESCATTER = 5,
};

enum smddp_op {  // Horovod's values
  SMDDP_AVERAGE = 0,
  SMDDP_SUM = 1,
  SMDDP_ADASUM = 2,  // not an op of the engine: Python makes it of allgathers
  SMDDP_MIN = 3,
  SMDDP_MAX = 4,
  SMDDP_PRODUCT = 5,
};

enum smddp_dtype {  // TensorFlow's values
  SMDDP_FLOAT32 = 1,
  SMDDP_FLOAT64 = 2,
  SMDDP_INT32 = 3,
  SMDDP_UINT8 = 4,
  SMDDP_INT16 = 5,
  SMDDP_INT8 = 6,
  SMDDP_INT64 = 9,
  SMDDP_BOOL = 10,
  SMDDP_BFLOAT16 = 14,
  SMDDP_UINT16 = 17,
  SMDDP_FLOAT16 = 19,
};

// How ranks match their operations.
enum smddp_matching {
  SMDDP_IN_ORDER = 0,  // in program order, one at a time: several at once are matched by name
  // In order, unless names differ: then several threads may have called.
  SMDDP_IN_ORDER_OR_BY_NAME = 1,
  SMDDP_BY_NAME = 2,
  SMDDP_SEVERAL_IN_ORDER = 3,  // in program order, any number at once; names need not differ
};

// Where the tensors of a request are, of all ranks alike.
enum smddp_memory {
  SMDDP_HOST = 0,
  SMDDP_CUDA = 1,  // of one GPU
};

// As the stream of a request: whatever the GPU has to do. The call then waits for it.
#define SMDDP_EVERY_STREAM ((void*)~(uintptr_t)0)

typedef struct {
  const void* in;
  void* out;  // may equal in
  int32_t ndim;
  const int64_t* dims;
} smddp_tensor;

typedef struct {
  int32_t kind;   // smddp_kind
  int32_t dtype;  // smddp_dtype
  int32_t op;     // smddp_op, of what reduces
  int32_t root;   // of a broadcast: a job rank, whatever the process set
  int32_t process_set;
  int32_t matching;  // smddp_matching
  double prescale, postscale;
  const char* name;
  // What must be equal on all ranks besides the shapes, as error messages are to show it: words on
  // one line, or lines. Null: nothing else.
  const char* description;
  int32_t num_tensors;
  const smddp_tensor* tensors;
  // Allgather: bytes of each rank's part, one entry per rank of the process set; the one tensor's
  // `out` receives all parts. Alltoall: bytes from rank r to rank p of the set, at [r * size + p].
  // Null: all parts are equal. smddp_post_ragged needs neither this nor `out`.
  // Reducescatter: `out` receives this rank's rows of each tensor, smddp_own_rows() of dims[0].
  const int64_t* part_bytes;
  int32_t memory;  // smddp_memory
  // SMDDP_CUDA: the CUstream in which the inputs are computed and the outputs were allocated. The
  // outputs are complete for any stream when the collective is.
  void* stream;
  // The collective fails once nothing in it has moved for so long; 0: SMDDP_TIMEOUT_SECONDS. Each
  // rank's own: ranks do not compare it.
  double timeout_seconds;
  // Allgather and alltoall in host memory: where each rank's part goes, by its rank in the set,
  // instead of the tensor's `out`; and of an alltoall, where the part for each rank is, instead of
  // its `in`. Each rank's own choice; null: the tensor's.
  void* const* outputs;
  const void* const* inputs;
} smddp_request;

// Blocks until this rank's part is complete.
SMDDP_EXPORT int smddp_run(const smddp_request* request);

typedef void (*smddp_done)(void* argument, int code, const char* message);
// Asynchronous: does not wait for late peers. `done` is called exactly once, on any thread,
// possibly before this returns. The request's arrays are copied; the tensors' memory must stay
// valid until `done` is called.
SMDDP_EXPORT void smddp_post(const smddp_request* request, smddp_done done, void* argument);

// Allocates the output of smddp_post_ragged: rows[r] rows, of `ranks` entries, come from rank r of
// the set. Sets *out and returns SMDDP_OK, or returns another code, with which the collective then
// fails on this rank.
typedef int (*smddp_allocate)(void* argument, const int64_t* rows, int ranks, void** out);
// An allgather or alltoall of one tensor by ranks that do not know each other's sizes: they
// exchange them first. Like smddp_post; calls `allocate` before `done`, at most once and on any
// thread. splits: the rows of an alltoall for each rank of the set; null and 0: the same number for
// each.
SMDDP_EXPORT void smddp_post_ragged(const smddp_request* request, const int32_t* splits,
                                    int num_splits, smddp_allocate allocate, smddp_done done,
                                    void* argument);

// ---- messages between two ranks -----------------------------------------------------------------

#define SMDDP_ANY_RANK (-1)

typedef struct smddp_message smddp_message;
// 1 if ranks of the set can send each other messages, the same on all of them: they are on one node
// and can read each other's memory; 0 if not. -1 if this rank is not in the set.
SMDDP_EXPORT int smddp_has_messages(int process_set);
// Starts to send bytes to a rank of the set, or to receive them: into `bytes` of room, which may be
// more than what comes. Messages of one name between the same two ranks are matched in order. Both
// ranks fail with SMDDP_MISMATCH if there is too little room. peer: its rank in the set; a receiver
// may give SMDDP_ANY_RANK. `data` must stay valid until the message is over.
// timeout_seconds: as in smddp_request; it counts while a thread is in smddp_message_wait.
SMDDP_EXPORT int smddp_message_start(int process_set, int sends, int peer, void* data,
                                     int64_t bytes, const char* name, double timeout_seconds,
                                     smddp_message** message);
// Waits for so many seconds: 0: only looks; < 0: without a limit. Sets *over if the message has
// ended; only then the code is its outcome, and *source the rank of the set that has sent it.
SMDDP_EXPORT int smddp_message_wait(smddp_message* message, double seconds, int* over, int* source);
// Ends the message, with SMDDP_USAGE, unless a peer has begun to read it or it has been received.
SMDDP_EXPORT void smddp_message_withdraw(smddp_message* message);
// Frees what smddp_message_start returned, but does not end the message.
SMDDP_EXPORT void smddp_message_delete(smddp_message* message);

// ---- copies of a GPU's memory -------------------------------------------------------------------

// Copies bytes of a GPU, and waits: to the host after what `stream` has to do, and from it at once.
SMDDP_EXPORT int smddp_copy_to_host(void* to, const void* from, size_t bytes, void* stream);
SMDDP_EXPORT int smddp_copy_from_host(void* to, const void* from, size_t bytes);

// How many of `rows` rows this rank receives in a reducescatter: they are divided evenly, and the
// first ranks get the remainder. -1 if this rank is not in the set.
SMDDP_EXPORT int64_t smddp_own_rows(int process_set, int64_t rows);
// Fails unless this is rank `rank` of the set's `size` ranks: a program that was compiled for those
// numbers may run in a later job.
SMDDP_EXPORT int smddp_check_place(int process_set, int rank, int size);

// Writes whom the explicit collective of this name waits for: "rank 1", "ranks 1, 2", or what runs
// before it and whom that waits for. "" if it does not wait. Truncated to n bytes including the
// terminating zero.
SMDDP_EXPORT void smddp_waits_for(int process_set, const char* name, char* buffer, size_t n);

// Whether ranks match explicit collectives by name, one waits here, and it is the turn of another
// that this rank has not requested: of the one of this name, or of any if `name` is null.
SMDDP_EXPORT int smddp_is_awaited(int process_set, const char* name);

// Takes part in the other ranks' collectives, contributing zeros, until all ranks of the job have
// called it. *last: the last rank to do so.
SMDDP_EXPORT int smddp_join(int* last);

// Convenience forms of smddp_run.
SMDDP_EXPORT int smddp_allreduce(const void* in, void* out, int64_t count, int dtype, int op,
                                 double prescale, double postscale, const char* name);
SMDDP_EXPORT int smddp_broadcast(void* buffer, int64_t bytes, int root, const char* name);
SMDDP_EXPORT int smddp_barrier(const char* name);

// ---- compressors (kernels/cpu/compress.h): no job is needed -------------------------------------

// dtype: of a floating type. Codes and scales of whole chunks of SMDDP_INT8_CHUNK elements, the
// last one filled with zeros.
#define SMDDP_INT8_CHUNK 256
SMDDP_EXPORT int smddp_int8_quantize(int dtype, const void* in, int64_t count, int8_t* codes,
                                     float* scales);
// The sum of what `ranks` ranks made of `count` elements, divided.
SMDDP_EXPORT int smddp_int8_sum(const int8_t* codes, const float* scales, int ranks, float divisor,
                                int dtype, void* out, int64_t count);
// The k largest of in + kept by magnitude, and the rest: in + kept with zeros in their place.
SMDDP_EXPORT int smddp_topk_select(int dtype, const void* in, const float* kept, int64_t count,
                                   int64_t k, int32_t* indices, float* values, float* residual);
SMDDP_EXPORT int smddp_topk_sum(const int32_t* indices, const float* values, int ranks, int64_t k,
                                float divisor, int dtype, void* out, int64_t count);

// ---- gradient plans (engine/bucket_scheduler.h) -------------------------------------------------

typedef struct smddp_plan smddp_plan;
// Null if memory has run out; smddp_last_error() says so.
SMDDP_EXPORT smddp_plan* smddp_plan_new(int64_t fingerprint, const char* name, const char* text,
                                        int num_buckets, int process_set);
SMDDP_EXPORT void smddp_plan_delete(smddp_plan* plan);
SMDDP_EXPORT int smddp_plan_begin(const smddp_plan* plan, int64_t* run);
// Never blocks; otherwise like smddp_post.
SMDDP_EXPORT void smddp_plan_bucket(int64_t run, int bucket, const smddp_request* request,
                                    smddp_done done, void* argument);
SMDDP_EXPORT void smddp_plan_end(int process_set, int64_t run, smddp_done done, void* argument);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SMDDP_CAPI_SMDDP_H_

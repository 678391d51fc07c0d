// Pipeline: the skeleton of every collective inside a node.
//
// The payload is cut into chunks. Each chunk passes three phases on every rank; a rank works on
// different chunks in different phases at the same time:
//
//   stage    copy the bytes that the peers will read into the own slot   needs: a free slot
//   combine  reduce the own share, leave the result in the slot          needs: all peers staged it
//   unpack   copy the peers' results into the own tensors                needs: all peers combined
//   it
//
// A slot is free for chunk k when every peer has unpacked chunk k - kSlots. The slot header of the
// first chunk carries the operation's signature, and no rank combines before it has seen that all
// signatures are equal. So all ranks detect a mismatch together, before any tensor was modified;
// they then exchange descriptions and skip kSlots chunks (no rank can have staged more), and the
// channel stays usable. If only names differ and a rank has several threads, the order may differ
// rather than the program: all ranks then fail with kOutOfTurn, and their channels run the
// operation again when its turn has come.
//
// Between nodes, the owners of a share also compare signatures with their peers on the other nodes,
// and publish the result to their own node in SlotHeader::verdict.
#pragma once

#include <string>
#include <vector>

#include "collective/collective.h"

namespace smddp {

class Pipeline : public Collective {
 public:
  // A one-hop pipeline writes its results in Combine and has no unpack phase.
  Pipeline(ChannelResources* resources, const Request* request, size_t num_chunks, bool one_hop);

  Progress Advance() final;
  const Status& status() const final { return status_; }
  double met_at() const final { return met_at_; }
  std::vector<int> Missing() const final;
  bool MayWaitForOtherNodes() const final;

 protected:
  // The chunks of a payload of `total` bytes or elements; an empty one takes a chunk too, whose
  // header carries the signature.
  static size_t ChunksOf(size_t total, size_t per_chunk) {
    return total == 0 ? 1 : (total + per_chunk - 1) / per_chunk;
  }

  // `i` counts from the operation's first chunk. Unpack is called for each peer, the owner of a
  // part of the results.
  virtual void Stage(size_t i) = 0;
  // Returns false if it has to wait for another node; it is then called again.
  virtual bool Combine(size_t i) = 0;
  virtual void Unpack(size_t, int /*owner*/) {}
  // On an owner, with several nodes: writes what travels with the header of the first chunk, which
  // all ranks of the node have staged; at most HeaderExchange::PayloadBytes().
  virtual void SendWithHeader(char* /*to*/) {}
  // On an owner whose peers in the node have all come, with several nodes: whether it waits for
  // what comes from that node, or goes there, now that the headers are compared.
  virtual bool AwaitsNode(int /*node*/) const { return true; }
  // Called after the last chunk until it returns true; sets *moved if it made progress.
  virtual bool Conclude(bool* /*moved*/) { return true; }

  char* Slot(int local_rank, size_t i) const {
    return shm_->slot(local_rank, resources_->index, base_ + i);
  }
  // The header of the operation's first chunk, which describes the operation as a whole.
  SlotHeader& Header(int local_rank) const {
    return shm_->header(local_rank, resources_->index, base_);
  }
  // Writes bytes of chunk i, for the peers, into the own slot: through the cache or past it.
  void Write(size_t i, char* slot, const void* from, size_t bytes);
  // Whether chunk i is written past the cache.
  bool Streams(size_t i) const;
  // Bytes that Combine or Unpack has read from peers' slots.
  void CountRead(size_t bytes) { bytes_ += bytes; }
  // Peers read this rank's tensors: the operation is not over until all of them have finished it.
  void LendMemory() {
    lends_ = true;
    kind_ = -1;
  }
  // The algorithm writes its slots through the cache or past it as it sees fit; nothing is
  // measured.
  void ChooseNoStaging() { kind_ = -1; }
  void Fail(Status status) { status_ = std::move(status); }
  // Whether the oldest exchange of the owners' group has; false too if it failed.
  bool ExchangeHasEnded();
  // Combine made progress although it has to wait.
  void NoteProgress() { progressed_ = true; }
  bool StagedByAll(size_t i) const;
  size_t num_chunks() const { return num_chunks_; }

  ChannelResources* resources_;
  const Request* request_;
  ShmGroup* shm_;
  const Topology& topo_;

 private:
  enum class State { kRunning, kMismatchPost, kMismatchRead, kDone };

  void Publish(std::atomic<uint64_t>* counter, uint64_t value);
  bool TryStage();
  int StagingKind() const;
  void StageTimed(size_t i);
  bool CombineTimed(size_t i);
  void UnpackTimed(size_t i, int owner, bool timed);
  Writing WrittenBy(int local_rank, size_t i) const;
  void ChooseStaging();
  bool TryCombine();
  bool TryUnpack();
  bool Verify();
  SlotHeader OwnHeader() const;
  bool CompareAcrossNodes();
  bool SlotFree(size_t i) const;
  // Whether this counter of all ranks has come to `value`.
  template <std::atomic<uint64_t> ChannelCell::* kCounter>
  bool AllReached(uint64_t value) const;
  bool AnyVerdict() const;
  bool AdvanceMismatch();
  bool MismatchInNode();
  std::vector<int> MissingInMismatch() const;
  std::vector<int> MissingOnOtherNodes() const;
  bool MismatchAcrossNodes();
  MismatchReport OwnReport() const;
  void Resume(const std::vector<MismatchReport>& reports, const std::vector<int>& ranks,
              const std::vector<std::string>& texts);

  uint64_t base_;
  uint64_t signature_;
  size_t num_chunks_;
  bool one_hop_;
  int kind_;          // of the operation; see StorePolicy
  size_t bytes_ = 0;  // written or read in the present step
  bool lends_ = false;
  State state_ = State::kRunning;
  bool verified_ = false;
  bool progressed_ = false;
  double met_at_ = 0;
  bool local_mismatch_ = false;
  size_t staged_ = 0, combined_ = 0, unpacked_ = 0;
  char* texts_ = nullptr;  // in the memory of the channel's group
  Status status_;
};

}  // namespace smddp

// Pipeline: the skeleton of every collective inside a node.
//
// The payload is cut into chunks. Each chunk passes three phases on every rank, and a rank works
// on different chunks in different phases at once:
//
//   stage    copy into the own slot what the peers will read       needs: the slot is free
//   combine  compute the own share, leave the result in the slot   needs: all peers staged it
//   unpack   copy the peers' results into the own tensors          needs: all peers combined it
//
// A slot is free for chunk k when every peer has unpacked chunk k - kSlots. The first chunk's slot
// header carries the signature of the operation. Nobody combines before all signatures were seen
// to be equal, so a mismatch is found by all ranks together, before a tensor was touched. They then
// exchange descriptions, skip kSlots chunks (nobody can have staged more) and the channel is
// usable. Where names differ it may be only the order, if a rank has several threads: then all
// ranks fail with kOutOfTurn, and their channels run the operation again when its turn has come.
//
// Across nodes the owners of a share also compare signatures with their peers on the other nodes,
// and tell the ranks of their own node through SlotHeader::verdict.
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

 protected:
  // `i` counts from the operation's first chunk.
  virtual void Stage(size_t i) = 0;
  // False: not finished (waiting for another node); it is called again.
  virtual bool Combine(size_t i) = 0;
  virtual void Unpack(size_t) {}
  // After the last chunk; false: not finished. *moved is set if anything was done.
  virtual bool Conclude(bool* /*moved*/) { return true; }

  char* Slot(int local_rank, size_t i) const {
    return shm_->slot(local_rank, resources_->index, base_ + i);
  }
  // What a rank says of the operation as a whole.
  SlotHeader& Header(int local_rank) const {
    return shm_->header(local_rank, resources_->index, base_);
  }
  // Peers read this rank's tensors: the operation is not over until they all have finished it.
  void LendMemory() { lends_ = true; }
  void Fail(Status status) { status_ = std::move(status); }

  ChannelResources* resources_;
  const Request* request_;
  ShmGroup* shm_;
  const Topology& topo_;

 private:
  enum class State { kRunning, kMismatchPost, kMismatchRead, kDone };

  bool TryStage();
  bool TryCombine();
  bool TryUnpack();
  bool Verify();
  SlotHeader OwnHeader() const;
  bool CompareAcrossNodes();
  bool StagedByAll(size_t i) const;
  bool CombinedByAll(size_t i) const;
  bool SlotFree(size_t i) const;
  bool UnpackedByAll(uint64_t chunks) const;
  bool AnyVerdict() const;
  bool AdvanceMismatch();
  bool MismatchInNode();
  std::vector<int> MissingInMismatch() const;
  bool MismatchAcrossNodes();
  MismatchReport OwnReport() const;
  void Resume(const std::vector<MismatchReport>& reports, const std::vector<int>& ranks,
              const std::vector<std::string>& texts);
  void Publish(std::atomic<uint64_t>* counter, uint64_t value);

  uint64_t base_;
  uint64_t signature_;
  size_t num_chunks_;
  bool one_hop_;
  bool lends_ = false;
  State state_ = State::kRunning;
  bool verified_ = false;
  double met_at_ = 0;
  bool local_mismatch_ = false;
  size_t staged_ = 0, combined_ = 0, unpacked_ = 0;
  char* texts_ = nullptr;  // in the memory of the channel's group
  Status status_;
};

}  // namespace smddp

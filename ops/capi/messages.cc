// Messages between two ranks.
#include "engine/messages.h"

#include <memory>

#include "capi/last_error.h"
#include "capi/smddp.h"
#include "capi/use.h"

using namespace smddp;  // this file has C functions only

struct smddp_message {
  std::shared_ptr<Message> message;
  int process_set;
};

int smddp_has_messages(int process_set) {
  Use comm;
  Status status;
  std::shared_ptr<RankSet> set = FindSet(comm, process_set, &status);
  if (set == nullptr) return -1;
  return set->messages()->possible() ? 1 : 0;
}

int smddp_message_start(int process_set, int sends, int peer, void* data, int64_t bytes,
                        const char* name, double timeout_seconds, smddp_message** message) {
  return ReturnOf([&] {
    Use comm;
    Status status;
    std::shared_ptr<RankSet> set = FindSet(comm, process_set, &status);
    if (set == nullptr) return status;
    const Topology& topo = set->topology();
    const bool any = !sends && peer == SMDDP_ANY_RANK;
    if (!set->messages()->possible() || peer == topo.rank || peer >= topo.size ||
        (peer < 0 && !any)) {
      return Status(Code::kUsage, "no message between rank " + std::to_string(topo.rank) + " and " +
                                      std::to_string(peer) + " of " + std::to_string(topo.size) +
                                      " ranks: they must be two, on one node");
    }
    auto own = std::make_unique<smddp_message>();
    own->message = std::make_shared<Message>(sends != 0, any ? Message::kAnyRank : peer, data,
                                             static_cast<size_t>(bytes), name, timeout_seconds);
    own->process_set = process_set;
    status = set->StartMessage(own->message);
    if (status.ok()) *message = own.release();
    return status;
  });
}

int smddp_message_wait(smddp_message* message, double seconds, int* over, int* source) {
  return ReturnOf([&] {
    Message& own = *message->message;
    Status status;
    if (!own.over) {
      Use comm;
      std::shared_ptr<RankSet> set = FindSet(comm, message->process_set, &status);
      if (set != nullptr) status = set->AwaitMessage(&own, seconds);
    }
    *over = own.over ? 1 : 0;
    if (!own.over) return status;
    *source = own.source;
    return own.outcome;
  });
}

void smddp_message_withdraw(smddp_message* message) {
  Use comm;
  Status status;
  std::shared_ptr<RankSet> set = FindSet(comm, message->process_set, &status);
  if (set == nullptr) return;  // then it is over
  set->messages()->Withdraw(message->message.get(), {Code::kUsage, "the message was withdrawn"});
}

void smddp_message_delete(smddp_message* message) { delete message; }

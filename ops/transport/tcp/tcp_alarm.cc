// Nothing is sent before an alarm. So the kernels' keepalive probes tell of a link that was cut; a
// rank that is busy or stopped has a kernel that answers them.
#include "transport/tcp/tcp_alarm.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>  // for move

namespace smddp {
namespace {

constexpr int kGoodbye = 0;  // a code that is of no failure
// A silent link is given up after 2 + 4 * 2 = 10 s.
constexpr int kIdleSeconds = 2, kProbeSeconds = 2, kProbes = 4;
constexpr int kUnansweredMs = 10000;

struct Message {
  int code;
  char text[2048];
};

void Watch(int fd) {
  auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUnansweredMs);
}

class TcpAlarm : public Alarm {
 public:
  explicit TcpAlarm(std::vector<Peer> peers) {
    for (Peer& peer : peers) {
      if (!peer.socket.is_open()) continue;
      Watch(peer.socket.fd());
      polls_.push_back({peer.socket.fd(), POLLIN, 0});
      nodes_.emplace_back(std::move(peer));
    }
  }

  ~TcpAlarm() override {
    if (!raised_) Tell({kGoodbye, ""});
  }

  bool Raise(int code, const std::string& text) override {
    if (raised_) return true;
    raised_ = true;
    Message message{code, ""};
    std::strncpy(message.text, text.c_str(), sizeof message.text - 1);
    Tell(message);
    return true;
  }

  bool Heard(int* code, std::string* text) override {
    if (::poll(polls_.data(), polls_.size(), 0) <= 0) return false;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const bool heard = polls_[i].revents != 0 && Receive(&nodes_[i], code, text);
      if (!nodes_[i].peer.socket.is_open()) polls_[i].fd = -1;
      if (heard) return true;
    }
    return false;
  }

 private:
  struct Node {
    explicit Node(Peer p) : peer(std::move(p)) {}
    Peer peer;
    Message message{};
    size_t got = 0;
  };

  // It is the first that is sent, and short: the kernel takes it whole. A node that was lost need
  // not hear it.
  void Tell(const Message& message) {
    for (Node& node : nodes_) {
      if (node.peer.socket.is_open()) {
        static_cast<void>(
            ::send(node.peer.socket.fd(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT));
      }
    }
  }

  // Whether this node has raised the alarm, or was lost.
  static bool Receive(Node* node, int* code, std::string* text) {
    char* to = reinterpret_cast<char*>(&node->message) + node->got;
    ssize_t n = ::recv(node->peer.socket.fd(), to, sizeof(Message) - node->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    if (n > 0) node->got += static_cast<size_t>(n);
    if (n > 0 && node->got < sizeof(Message)) return false;
    Status lost = LostPeer(node->peer.name, n == 0 ? "it has closed the connection"
                                                   : std::system_category().message(errno));
    node->peer.socket.Close();
    if (n > 0 && node->message.code == kGoodbye) return false;
    *code = n > 0 ? node->message.code : static_cast<int>(lost.code());
    *text = n > 0 ? node->message.text : lost.message();
    return true;
  }

  std::vector<Node> nodes_;
  std::vector<pollfd> polls_;  // of each; those that have said goodbye are -1
  bool raised_ = false;
};

}  // namespace

std::unique_ptr<Alarm> MakeTcpAlarm(std::vector<Peer> peers) {
  return std::make_unique<TcpAlarm>(std::move(peers));
}

}  // namespace smddp

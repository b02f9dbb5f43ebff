#include "perfd/server.h"

#include <linux/perf_event.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <span>
#include <utility>

#include "host/file.h"
#include "perf/open_group.h"
#include "perf/own_opener.h"
#include "perfd/rights.h"

namespace haiprof::perfd {

namespace {

using base::UniqueFd;
using perf::Event;
using perf::wire::Answer;
using perf::wire::Request;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kMinute = 60 * kSecond;
constexpr std::int64_t kReplan = 5 * kSecond;
constexpr int kLongestWaitUs = 20'000;
constexpr int kAccepted = 16;  // at a time, so that those who are connected have their turn

std::int64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

// Sends this process SIGALRM again and again; 0: no more.
void interrupt_every(int us) noexcept {
  const itimerval timer{{0, us}, {0, us}};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

void rest(const sigset_t& mask) noexcept {
  const timespec second{1, 0};
  pselect(0, nullptr, nullptr, nullptr, &second, &mask);
}

Answer answer_of(int error, const std::string& reason, const std::string& fix) {
  Answer answer;
  answer.error = error;
  perf::wire::put(answer.reason, reason);
  perf::wire::put(answer.fix, fix);
  return answer;
}

// PMUs with a fixed number of the kernel's count inside a CPU's core or trace what is running, and
// are given to no one. The software events are harmless.
bool forbidden(const Event& event) noexcept {
  return event.type < PERF_TYPE_MAX && event.type != PERF_TYPE_SOFTWARE;
}

Counter counter_of(const Request& request, std::size_t i) noexcept {
  const Request::Counter& counter = request.counters[i];
  return {{request.type, counter.config, counter.config1, counter.config2}, request.cpu};
}

bool send(int fd, const Answer& answer, const std::vector<UniqueFd>& fds) noexcept {
  Answer copy = answer;
  iovec part{&copy, sizeof copy};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(perf::kMaxGroup * sizeof(int))] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (std::size_t i = 0; i < fds.size(); ++i) {
      const int passed = fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof passed, &passed, sizeof passed);
    }
  }
  return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof copy;
}

std::string name_of(const Peer& peer) {
  return "process " + std::to_string(peer.pid) + " of user " + std::to_string(peer.uid);
}

}  // namespace

Server::Server(int listener, Access access, std::function<std::vector<Counter>()> find,
               std::string procfs)
    : listener_(listener),
      access_(std::move(access)),
      find_(std::move(find)),
      procfs_(std::move(procfs)),
      plan_(find_()),
      planned_ns_(monotonic_ns()) {}

void Server::run(const volatile std::sig_atomic_t& stop, const sigset_t& mask) {
  while (stop == 0) {
    // Only those in use: the kernel waits for no more than may be open, and refuses at once.
    std::array<pollfd, kConnections + 1> waited;
    std::array<std::size_t, kConnections + 1> connection_of;
    std::size_t count = 1;
    std::int64_t until_ns = now_ns_ + kMinute;
    const bool deaf = now_ns_ < deaf_until_ns_;
    waited[0] = {deaf ? -1 : listener_, POLLIN, 0};
    if (deaf) until_ns = deaf_until_ns_;
    for (std::size_t i = 0; i < kConnections; ++i) {
      const Connection& connection = connections_[i];
      if (!connection.fd) continue;
      const auto events = static_cast<short>(connection.silenced ? 0 : POLLIN);
      connection_of[count] = i;
      waited[count++] = {connection.fd.get(), events, 0};
      until_ns = std::min(until_ns, connection.heard_ns + kIdleNs);
    }
    const std::int64_t left = std::max<std::int64_t>(until_ns - monotonic_ns(), 0);
    const timespec timeout{left / kSecond, left % kSecond};
    interrupt_every(0);
    const int ready = ppoll(waited.data(), count, &timeout, &mask);
    // Its limit of open files may have been lowered below what is open. The signals that end it
    // come only while it waits.
    if (ready < 0 && errno != EINTR) rest(mask);
    // A peer may have sent descriptors, too. They are closed with its message, and closing may
    // wait, for a socket that lingers, until a signal comes.
    interrupt_every(kLongestWaitUs);
    now_ns_ = monotonic_ns();
    if (ready > 0) {
      for (std::size_t i = 1; i < count; ++i) {
        if (waited[i].revents != 0) serve(connections_[connection_of[i]]);
      }
      if (waited[0].revents != 0) accept_some();
    }
    end_idle();
  }
  interrupt_every(0);
}

void Server::accept_some() {
  for (int i = 0; i < kAccepted; ++i) {
    UniqueFd fd(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      welcome(std::move(fd));
    } else if (errno != EINTR && errno != ECONNABORTED) {
      if (errno != EAGAIN) deaf_until_ns_ = now_ns_ + kSecond;
      return;
    }
  }
}

void Server::welcome(UniqueFd fd) {
  Peer peer;
  if (!identify(fd.get(), peer)) return;
  if (!allows(access_, fd.get(), peer)) {
    refuse(fd.get(), peer, EACCES, "haiprof-perfd does not serve user " + std::to_string(peer.uid),
           "start haiprof-perfd with --allow-uid " + std::to_string(peer.uid) +
               ", --allow-group or --allow-any");
    return;
  }
  const auto same = [&](const Connection& other) { return other.fd && other.peer.uid == peer.uid; };
  const auto of_user =
      static_cast<std::size_t>(std::count_if(connections_.begin(), connections_.end(), same));
  const auto free = std::find_if(connections_.begin(), connections_.end(),
                                 [](const Connection& other) { return !other.fd; });
  if (of_user >= kConnectionsOfUser || free == connections_.end()) {
    refuse(fd.get(), peer, EBUSY, "too many are connected to haiprof-perfd", "try again later");
    return;
  }
  if (send(fd.get(), Answer{}, {})) *free = {std::move(fd), peer, now_ns_, 0, false};
}

void Server::refuse(int fd, const Peer& peer, int error, const std::string& reason,
                    const std::string& fix) {
  log_.say("refused " + name_of(peer) + ": " + reason + "; " + fix, now_ns_);
  send(fd, answer_of(error, reason, fix), {});
}

void Server::serve(Connection& connection) {
  Request request;
  const ssize_t got = recv(connection.fd.get(), &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  // One that has only ceased to speak keeps what it has not taken.
  if (holds_counters(connection)) {
    connection.silenced = true;
    return;
  }
  if (got <= 0) {
    connection.fd.reset();
    return;
  }
  connection.heard_ns = now_ns_;
  if (got != sizeof request || request.magic != perf::wire::kMagic) {
    refuse(connection.fd.get(), connection.peer, EPROTO, "that is not a request for counters",
           "ask with haiprof");
    connection.fd.reset();
    return;
  }
  if (request.version != perf::wire::kVersion) {
    refuse(connection.fd.get(), connection.peer, EPROTO,
           "version " + std::to_string(request.version) + " of the protocol, not " +
               std::to_string(perf::wire::kVersion),
           "install the same version of haiprof on both sides");
    connection.fd.reset();
    return;
  }
  std::vector<UniqueFd> fds;
  const Answer answer = hand_out(connection, request, fds);
  if (send(connection.fd.get(), answer, fds)) return;
  // With the descriptors it may exceed what this user may have on the way; then the answer goes
  // without them and says so.
  const int error = errno;
  if (fds.empty() ||
      !send(connection.fd.get(),
            answer_of(error, "haiprof-perfd cannot pass counters on: " + host::error_text(error),
                      "raise its limit of open files"),
            {})) {
    connection.fd.reset();
  }
}

Answer Server::hand_out(Connection& connection, const Request& request,
                        std::vector<UniqueFd>& fds) {
  if (request.count == 0 || request.count > perf::kMaxGroup) {
    return answer_of(
        EINVAL,
        "haiprof-perfd opens 1 to " + std::to_string(perf::kMaxGroup) + " counters at a time",
        "install the same version of haiprof on both sides");
  }
  if (!planned(request)) {
    const std::string reason = "not among the counters that haiprof-perfd passes on";
    log_.say("refused " + name_of(connection.peer) + " a counter of type " +
                 std::to_string(request.type) + " on CPU " + std::to_string(request.cpu) + ": " +
                 reason,
             now_ns_);
    return answer_of(EPERM, reason,
                     "give haiprof and haiprof-perfd the same version, --sysfs-root and "
                     "--procfs-root");
  }
  if (!charge(connection, request.count)) {
    return answer_of(EBUSY, "this user has asked haiprof-perfd for too many counters",
                     "try again in a minute");
  }
  Event events[perf::kMaxGroup];
  for (std::size_t i = 0; i < request.count; ++i) events[i] = counter_of(request, i).event;
  const int error = perf::open_group(std::span(events, request.count), request.cpu, fds);
  return error == 0 ? Answer{} : denied(error);
}

bool Server::plans(const Counter& counter) const noexcept {
  return !forbidden(counter.event) && std::find(plan_.begin(), plan_.end(), counter) != plan_.end();
}

bool Server::planned(const Request& request) {
  const auto all = [&] {
    for (std::size_t i = 0; i < request.count; ++i) {
      if (!plans(counter_of(request, i))) return false;
    }
    return true;
  };
  if (all()) return true;
  // A CPU that went, or a driver that came, changes the plan.
  if (now_ns_ - planned_ns_ < kReplan) return false;
  plan_ = find_();
  planned_ns_ = now_ns_;
  return all();
}

bool Server::charge(Connection& connection, std::uint32_t counters) noexcept {
  Account* account = nullptr;
  Account* oldest = accounts_.data();
  for (Account& other : accounts_) {
    if (other.passed > 0 && other.uid == connection.peer.uid) account = &other;
    if (other.since_ns < oldest->since_ns) oldest = &other;
  }
  if (account == nullptr) account = oldest;
  if (account->uid != connection.peer.uid || now_ns_ - account->since_ns >= kMinute) {
    *account = {connection.peer.uid, now_ns_, 0};
  }
  if (connection.passed + counters > kCountersOfConnection ||
      account->passed + counters > kCountersOfUser) {
    return false;
  }
  connection.passed += counters;
  account->passed += counters;
  return true;
}

Answer Server::denied(int error) {
  const perf::Opened why = perf::refused(error, procfs_);
  std::string reason = "haiprof-perfd could not open them: " + why.reason;
  std::string fix = why.fix;
  if (perf::is_denied(error) && !may_count(procfs_)) {
    reason = "haiprof-perfd has no right to open counters itself";
    fix = kHaveTheRight;
  }
  log_.say(reason + "; " + fix, now_ns_);
  return answer_of(error, reason, fix);
}

// The peer has not taken its last answer, which holds counters open for as long.
bool Server::holds_counters(const Connection& connection) noexcept {
  int unread = 0;
  return connection.passed > 0 && ioctl(connection.fd.get(), SIOCOUTQ, &unread) == 0 && unread > 0;
}

// Hanging up would not take back what a peer has not taken. So it stays, and uses up what its user
// may have.
void Server::end_idle() noexcept {
  for (Connection& connection : connections_) {
    if (!connection.fd || now_ns_ - connection.heard_ns < kIdleNs) continue;
    if (holds_counters(connection)) {
      connection.heard_ns = now_ns_;
    } else {
      connection.fd.reset();
    }
  }
}

}  // namespace haiprof::perfd

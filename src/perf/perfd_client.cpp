#include "perf/perfd_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "host/file.h"
#include "perf/open_group.h"
#include "perf/perfd_wire.h"

namespace haiprof::perf {

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kPatience = kSecond;   // of one open(), for all that it waits for
constexpr std::int64_t kQuiet = 5 * kSecond;  // after which a helper that failed is tried again
constexpr long kPause = 10'000'000;           // before a full queue is tried again, ns

constexpr const char* kStartIt =
    "start haiprof-perfd on this machine, or set HAIPROF_PERFD to its socket";
constexpr const char* kSameVersion = "install the same version of haiprof on both sides";
constexpr const char* kRestartIt = "restart haiprof-perfd";

// Why there are no counters from the helper, whatever it would have said of the request itself.
struct Refusal {
  std::string reason;
  std::string fix;
};

std::int64_t now_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

// Whether there is something to receive before the deadline.
bool wait_for(int fd, std::int64_t deadline_ns) noexcept {
  for (;;) {
    const std::int64_t left = deadline_ns - now_ns();
    if (left <= 0) return false;
    pollfd waited{fd, POLLIN, 0};
    const int ready = poll(&waited, 1, static_cast<int>((left + 999'999) / 1'000'000));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool is_counter(int fd) noexcept {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  char target[64];
  const ssize_t got = readlink(path, target, sizeof target);
  return got > 0 &&
         std::string_view(target, static_cast<std::size_t>(got)) == "anon_inode:[perf_event]";
}

class PerfdOpener final : public Opener {
 public:
  explicit PerfdOpener(std::string socket) : socket_(std::move(socket)) {}

  Opened open(std::span<const Event> events, int cpu) override {
    const auto other = [&](const Event& event) { return event.type != events.front().type; };
    if (events.empty() || events.size() > kMaxGroup ||
        std::any_of(events.begin(), events.end(), other)) {
      return {nullptr,
              EINVAL,
              "a group has 1 to " + std::to_string(kMaxGroup) + " counters of one PMU",
              {}};
    }
    if (failed_ && now_ns() < quiet_until_ns_) return as_opened(*failed_);
    failed_.reset();
    std::vector<base::UniqueFd> fds;
    wire::Answer answer;
    std::optional<Refusal> refusal = ask(events, cpu, answer, fds);
    if (refusal) {
      connection_.reset();
      quiet_until_ns_ = now_ns() + kQuiet;
      failed_ = std::move(refusal);
      return as_opened(*failed_);
    }
    if (answer.error != 0) {
      return {nullptr, answer.error, wire::take(answer.reason), wire::take(answer.fix)};
    }
    return {std::make_unique<FdGroup>(std::move(fds)), 0, {}, {}};
  }

 private:
  static Opened as_opened(const Refusal& refusal) {
    return {nullptr, EACCES, refusal.reason, refusal.fix};
  }

  std::optional<Refusal> ask(std::span<const Event> events, int cpu, wire::Answer& answer,
                             std::vector<base::UniqueFd>& fds) {
    const std::int64_t deadline_ns = now_ns() + kPatience;
    wire::Request request;
    request.cpu = cpu;
    request.type = events.front().type;
    request.count = static_cast<std::uint32_t>(events.size());
    for (std::size_t i = 0; i < events.size(); ++i) {
      request.counters[i] = {events[i].config, events[i].config1, events[i].config2};
    }
    // The helper hangs up on those who have asked nothing for a while; that is not a failure.
    if (connection_ && send(request) && receive(answer, fds, deadline_ns) == Received::whole) {
      return check(answer, fds, events.size());
    }
    fds.clear();
    if (std::optional<Refusal> refusal = connect(deadline_ns)) return refusal;
    if (!send(request)) return hung_up();
    if (const Received received = receive(answer, fds, deadline_ns); received != Received::whole) {
      return explain(received);
    }
    return check(answer, fds, events.size());
  }

  std::optional<Refusal> connect(std::int64_t deadline_ns) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket_.size() >= sizeof address.sun_path) {
      return Refusal{"the path of haiprof-perfd's socket has " + std::to_string(socket_.size()) +
                         " bytes, and " + std::to_string(sizeof address.sun_path - 1) +
                         " is the limit",
                     "set HAIPROF_PERFD to a shorter path"};
    }
    socket_.copy(address.sun_path, socket_.size());
    connection_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!connection_) return failed("no socket for asking haiprof-perfd", errno, {});
    while (::connect(connection_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address)) {
      const int error = errno;
      if (error == EINTR) continue;
      if (error != EAGAIN) return unreachable(error);
      if (now_ns() >= deadline_ns) return explain(Received::nothing);
      const timespec pause{0, kPause};
      nanosleep(&pause, nullptr);
    }
    if (std::optional<Refusal> refusal = distrust()) return refusal;
    wire::Answer hello;
    std::vector<base::UniqueFd> fds;
    if (const Received received = receive(hello, fds, deadline_ns); received != Received::whole) {
      return explain(received);
    }
    if (std::optional<Refusal> refusal = check(hello, fds, 0)) return refusal;
    if (hello.error != 0) {
      return Refusal{wire::take(hello.reason), wire::take(hello.fix)};
    }
    return {};
  }

  Refusal unreachable(int error) const {
    if (error == EACCES) {
      return failed("not allowed to reach haiprof-perfd at " + socket_, error,
                    "start it with --mode 0666, in a folder that everybody may enter");
    }
    if (error == EPROTOTYPE || error == ENOTSOCK) {
      return failed("what is at " + socket_ + " is not haiprof-perfd", error, kStartIt);
    }
    return failed("no haiprof-perfd listens at " + socket_, error, kStartIt);
  }

  // Whoever could put a socket there could also have put one there for somebody else to be fooled.
  std::optional<Refusal> distrust() const {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (getsockopt(connection_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
      return failed("cannot tell who listens at " + socket_, errno, kStartIt);
    }
    if (peer.uid == 0 || peer.uid == geteuid()) return {};
    const std::size_t slash = socket_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : socket_.substr(0, slash + 1);
    struct stat status{};
    if (stat(folder.c_str(), &status) == 0 && status.st_uid == peer.uid) return {};
    return Refusal{"user " + std::to_string(peer.uid) + " listens at " + socket_ +
                       ", who is neither root nor this user nor the owner of its folder",
                   "let root, or the owner of the folder, run haiprof-perfd"};
  }

  bool send(const wire::Request& request) const noexcept {
    ssize_t sent = 0;
    do {
      sent = ::send(connection_.get(), &request, sizeof request, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == static_cast<ssize_t>(sizeof request);
  }

  enum class Received : std::uint8_t { whole, nothing, end, foreign, cut };

  Received receive(wire::Answer& answer, std::vector<base::UniqueFd>& fds,
                   std::int64_t deadline_ns) {
    fds.clear();
    fds.reserve(kMaxGroup);
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxGroup * sizeof(int))];
    iovec part{&answer, sizeof answer};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    ssize_t got = 0;
    do {
      if (!wait_for(connection_.get(), deadline_ns)) return Received::nothing;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      got = recvmsg(connection_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (got < 0 && (errno == EINTR || errno == EAGAIN));
    if (got < 0) return Received::end;
    // Descriptors come with an empty message, too.
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= header->cmsg_len; at += sizeof(int)) {
        int fd = -1;
        std::memcpy(&fd, reinterpret_cast<const char*>(header) + at, sizeof fd);
        fds.emplace_back(fd);
      }
    }
    if (got == 0) return Received::end;
    if ((message.msg_flags & MSG_CTRUNC) != 0) return Received::cut;
    const bool whole = got == sizeof answer && (message.msg_flags & MSG_TRUNC) == 0;
    return whole && answer.magic == wire::kMagic ? Received::whole : Received::foreign;
  }

  Refusal explain(Received received) const {
    switch (received) {
      case Received::nothing:
        return {"haiprof-perfd at " + socket_ + " does not answer", kRestartIt};
      case Received::foreign:
        return {"what listens at " + socket_ + " is not haiprof-perfd", kStartIt};
      case Received::cut:
        return {"not all counters that haiprof-perfd passed on have arrived",
                "raise the limit of open files (ulimit -n)"};
      default:
        return hung_up();
    }
  }

  Refusal hung_up() const { return {"haiprof-perfd at " + socket_ + " hung up", kRestartIt}; }

  // Whether it speaks this version, and has passed on what was asked for.
  std::optional<Refusal> check(const wire::Answer& answer, const std::vector<base::UniqueFd>& fds,
                               std::size_t requested) const {
    if (answer.version != wire::kVersion) {
      return Refusal{"haiprof-perfd at " + socket_ + " speaks version " +
                         std::to_string(answer.version) + " of its protocol, and this haiprof " +
                         std::to_string(wire::kVersion),
                     kSameVersion};
    }
    const bool right = answer.error == 0 ? fds.size() == requested : fds.empty();
    if (right && std::all_of(fds.begin(), fds.end(),
                             [](const base::UniqueFd& fd) { return is_counter(fd.get()); })) {
      return {};
    }
    return Refusal{"haiprof-perfd at " + socket_ + " passed on something other than counters",
                   kSameVersion};
  }

  static Refusal failed(const std::string& what, int error, const std::string& fix) {
    return {what + ": " + host::error_text(error), fix};
  }

  std::string socket_;
  base::UniqueFd connection_;
  std::optional<Refusal> failed_;
  std::int64_t quiet_until_ns_ = 0;
};

}  // namespace

std::unique_ptr<Opener> make_perfd_opener(const std::string& socket) {
  return std::make_unique<PerfdOpener>(socket);
}

}  // namespace haiprof::perf

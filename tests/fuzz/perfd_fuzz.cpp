// The protocol of haiprof-perfd and its clients. The first byte of an input says which of
// both is meant, the second how many descriptors come along; the rest is messages, each behind two
// bytes of its length.
#include <fcntl.h>
#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "entry.h"
#include "perf/perfd_client.h"
#include "perf/perfd_wire.h"
#include "perfd/server.h"

using namespace haiprof;
using perf::wire::Answer;
using perf::wire::Request;

namespace {

constexpr std::uint8_t kToServer = 0, kToClient = 1;

void require(bool holds) {
  if (!holds) std::abort();
}

sockaddr_un address_of(const char* name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/dev/shm/haiprof-fuzz-%d-%s.sock",
                static_cast<int>(getpid()), name);
  return address;
}

int listen_at(const sockaddr_un& address, int flags) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
  unlink(address.sun_path);
  require(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  require(listen(fd, 16) == 0);
  std::atexit([] {
    unlink(address_of("server").sun_path);
    unlink(address_of("client").sun_path);
  });
  return fd;
}

std::vector<std::string> messages_of(const std::uint8_t* data, std::size_t bytes) {
  std::vector<std::string> messages;
  while (bytes >= 2 && messages.size() < 16) {
    const std::size_t said = static_cast<std::size_t>(data[0] | data[1] << 8) % 4096;
    const std::size_t length = std::min(said, bytes - 2);
    messages.emplace_back(reinterpret_cast<const char*>(data + 2), length);
    data += 2 + length;
    bytes -= 2 + length;
  }
  return messages;
}

// The file that is passed as a descriptor.
int spare_fd() {
  static const int fd = memfd_create("spare", MFD_CLOEXEC);
  return fd;
}

// Whoever was passed any has closed them; the lowest numbers are given first.
void require_closed() {
  struct stat spare{}, status{};
  require(fstat(spare_fd(), &spare) == 0);
  for (int fd = 0; fd < 128; ++fd) {
    const bool same = fstat(fd, &status) == 0 && status.st_ino == spare.st_ino;
    require(fd == spare_fd() || !same || status.st_dev != spare.st_dev);
  }
}

void send_with(int to, const std::string& text, unsigned descriptors) {
  const int spare = spare_fd();
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))] = {};
  if (descriptors > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    for (unsigned i = 0; i < descriptors; ++i) {
      std::memcpy(CMSG_DATA(header) + i * sizeof spare, &spare, sizeof spare);
    }
  }
  (void)!sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// The server hangs up, or answers each message.
void ask(const sockaddr_un& server, const std::vector<std::string>& messages, unsigned fds) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  require(connect(fd, reinterpret_cast<const sockaddr*>(&server), sizeof server) == 0);
  Answer answer;
  require(recv(fd, &answer, sizeof answer, 0) == sizeof answer);
  for (const std::string& message : messages) {
    send_with(fd, message, fds);
    const ssize_t got = recv(fd, &answer, sizeof answer, 0);
    if (got <= 0) break;
    require(got == sizeof answer && answer.magic == perf::wire::kMagic);
  }
  close(fd);
}

void answer(int listener, const std::vector<std::string>& messages, unsigned fds) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    send_with(fd, messages[i], i == 0 ? 0 : fds);
    char request[4096];
    if (recv(fd, request, sizeof request, 0) <= 0) break;
  }
  close(fd);
}

// Runs for as long as the process does.
sockaddr_un start_server() {
  const sockaddr_un address = address_of("server");
  const int listener = listen_at(address, SOCK_NONBLOCK);
  struct sigaction action{};
  action.sa_handler = [](int) {};  // the server's own timer
  sigaction(SIGALRM, &action, nullptr);
  std::thread([listener] {
    static const volatile std::sig_atomic_t never = 0;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    const auto plan = [] {
      return std::vector<perfd::Counter>{
          {{PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS, 0, 0}, 0}};
    };
    perfd::Server(listener, {}, plan, "/proc").run(never, mask);
  }).detach();
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
  return address;
}

template <typename... Messages>
std::string input_of(std::uint8_t side, std::uint8_t fds, const Messages&... messages) {
  std::string input{static_cast<char>(side), static_cast<char>(fds)};
  const auto add = [&](const auto& message) {
    const auto length = static_cast<std::uint16_t>(sizeof message);
    input.append(reinterpret_cast<const char*>(&length), sizeof length);
    input.append(reinterpret_cast<const char*>(&message), sizeof message);
  };
  (add(messages), ...);
  return input;
}

}  // namespace

std::size_t fuzz::dense_bytes() { return 40; }

std::vector<std::string> fuzz::seeds() {
  Request planned;
  planned.type = PERF_TYPE_SOFTWARE;
  planned.count = 1;
  planned.counters[0].config = PERF_COUNT_SW_PAGE_FAULTS;
  Request unplanned = planned;
  unplanned.cpu = -1;
  Answer refusal;
  refusal.error = EACCES;
  perf::wire::put(refusal.reason, "a reason");
  perf::wire::put(refusal.fix, std::string(perf::wire::kTextBytes, 'x'));
  return {input_of(kToServer, 0, planned, unplanned),
          input_of(kToServer, 3, planned, planned),
          input_of(kToClient, 0, Answer{}, refusal),
          input_of(kToClient, 1, Answer{}, Answer{}),
          input_of(kToClient, 0, refusal),
          input_of(kToClient, 1, Answer{}) + std::string(2, '\0')};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const sockaddr_un server = start_server();
  static const sockaddr_un fake = address_of("client");
  static const int listener = listen_at(fake, 0);
  if (bytes < 2) return 0;
  const std::vector<std::string> messages = messages_of(data + 2, bytes - 2);
  const unsigned fds = data[1] % 64;
  if (data[0] % 2 == kToServer) {
    ask(server, messages, fds);
    return 0;
  }
  std::thread peer([&] { answer(listener, messages, fds); });
  const perf::Event event{PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS, 0, 0};
  perf::make_perfd_opener(fake.sun_path)->open(std::span(&event, 1), 0);
  peer.join();
  require_closed();
  return 0;
}

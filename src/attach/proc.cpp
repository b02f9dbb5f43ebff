#include "attach/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>

namespace haiprof::attach {

int read_proc(pid_t pid, std::string_view name, std::string& text) {
  const std::string path = "/proc/" + std::to_string(pid) + "/" + std::string(name);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  text.clear();
  int error = 0;
  for (std::size_t used = 0;;) {
    text.resize(used + 64 * 1024);
    const ssize_t got = ::read(fd, text.data() + used, text.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    used += got > 0 ? static_cast<std::size_t>(got) : 0;
    text.resize(used);
    if (got <= 0) break;
  }
  close(fd);
  return error;
}

namespace {

template <typename Number>
Number number(std::string_view text, int base = 10) {
  Number value{};
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

std::string_view last_word(std::string_view line) {
  const std::size_t blank = line.find_last_of("\t ");
  return blank == std::string_view::npos ? line : line.substr(blank + 1);
}

}  // namespace

Status parse_status(std::string_view text) {
  Status status;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto is = [line](std::string_view key) { return line.starts_with(key); };
    if (is("State:\t") && line.size() > 7) status.state = line[7];
    if (is("PPid:\t")) status.parent = number<pid_t>(last_word(line));
    if (is("TracerPid:\t")) status.tracer = number<pid_t>(last_word(line));
    if (is("Seccomp:\t")) status.seccomp = number<unsigned>(last_word(line));
    if (is("SigPnd:\t") || is("ShdPnd:\t")) {
      status.pending |= number<std::uint64_t>(last_word(line), 16);
    }
    if (is("SigCgt:\t")) status.caught = number<std::uint64_t>(last_word(line), 16);
  }
  return status;
}

int read_status(pid_t pid, Status& status) {
  std::string text;
  if (const int error = read_proc(pid, "status", text); error != 0) return error;
  status = parse_status(text);
  return 0;
}

Doing parse_doing(std::string_view text) {
  Doing doing;
  if (text.starts_with("running")) {
    doing.running = true;
    return doing;
  }
  const char* at = text.data();
  const char* const end = at + text.size();
  auto read = std::from_chars(at, end, doing.syscall);
  for (std::uint64_t& argument : doing.arguments) {
    if (end - read.ptr < 4) break;
    read = std::from_chars(read.ptr + 3, end, argument, 16);  // after " 0x"
  }
  return doing;
}

namespace {

// Lower is better. What a signal would end early, the kernel ends early for us too (signal(7), last
// section), or its time-out begins anew: only if there is nothing else.
int disturbance(const Doing& doing) {
  if (doing.running) return 2;
  switch (doing.syscall) {
    case SYS_futex:
      // Without a time-out: the thread of a pool that waits for work.
      return doing.arguments[3] == 0 && (doing.arguments[1] & FUTEX_CMD_MASK) != FUTEX_LOCK_PI ? 0
                                                                                               : 1;
    case SYS_read:
    case SYS_readv:
    case SYS_wait4:
    case SYS_waitid:
    case SYS_accept:
    case SYS_accept4:
    case SYS_recvmsg:
    case SYS_recvfrom:
      return 0;
    case SYS_ppoll:
    case SYS_pselect6:
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
#ifdef SYS_poll
    case SYS_poll:
    case SYS_select:
#endif
      return 1;
    case -1:
      return 4;
    default:
      return 3;
  }
}

}  // namespace

std::vector<Thread> threads_to_stop(pid_t pid) {
  std::vector<Thread> threads;
  const std::string folder = "/proc/" + std::to_string(pid) + "/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> task(opendir(folder.c_str()), closedir);
  if (!task) return threads;
  std::string text;
  while (const dirent* entry = readdir(task.get())) {
    Thread thread;
    thread.tid = number<pid_t>(entry->d_name);
    if (thread.tid == 0) continue;
    const std::string name = "task/" + std::string(entry->d_name) + "/syscall";
    if (read_proc(pid, name, text) == 0) thread.doing = parse_doing(text);
    threads.push_back(thread);
  }
  const auto rank = [pid](const Thread& thread) {
    return 2 * disturbance(thread.doing) + (thread.tid == pid ? 1 : 0);
  };
  std::stable_sort(threads.begin(), threads.end(),
                   [&](const Thread& a, const Thread& b) { return rank(a) < rank(b); });
  return threads;
}

}  // namespace haiprof::attach

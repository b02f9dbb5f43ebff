#include "stacks/thread_state.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

namespace haiprof::stacks {
namespace {

// System calls that threads of a job wait in.
const char* name_of(long call) noexcept {
  switch (call) {
    case SYS_futex:
      return "futex";
    case SYS_read:
      return "read";
    case SYS_write:
      return "write";
    case SYS_pread64:
      return "pread64";
    case SYS_pwrite64:
      return "pwrite64";
    case SYS_readv:
      return "readv";
    case SYS_writev:
      return "writev";
    case SYS_recvfrom:
      return "recvfrom";
    case SYS_recvmsg:
      return "recvmsg";
    case SYS_sendto:
      return "sendto";
    case SYS_sendmsg:
      return "sendmsg";
    case SYS_accept:
    case SYS_accept4:
      return "accept";
    case SYS_connect:
      return "connect";
    case SYS_ppoll:
#ifdef SYS_poll
    case SYS_poll:
#endif
      return "poll";
    case SYS_pselect6:
#ifdef SYS_select
    case SYS_select:
#endif
      return "select";
    case SYS_epoll_pwait:
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
#endif
      return "epoll_wait";
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
      return "nanosleep";
    case SYS_wait4:
    case SYS_waitid:
      return "wait";
    case SYS_rt_sigtimedwait:
    case SYS_rt_sigsuspend:
      return "sigwait";
    case SYS_openat:
      return "openat";
    case SYS_fsync:
    case SYS_fdatasync:
      return "fsync";
    case SYS_flock:
      return "flock";
    case SYS_ioctl:
      return "ioctl";
    case SYS_munmap:
      return "munmap";
    case SYS_mmap:
      return "mmap";
    case SYS_io_getevents:
      return "io_getevents";
    case SYS_io_uring_enter:
      return "io_uring_enter";
    default:
      return nullptr;
  }
}

std::string read_from(int fd) {
  char text[512];
  const ssize_t got = fd < 0 ? -1 : pread(fd, text, sizeof text, 0);
  return {text, static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
}

State seen_from_here(const std::string& stat) noexcept {
  const State state = state_in(stat.c_str());
  const bool has_none = state == State::running && cpu_in(stat.c_str()) == sched_getcpu();
  return has_none ? State::ready : state;
}

}  // namespace

State state_in(const char* stat) noexcept {
  const char* const name_end = std::strrchr(stat, ')');  // a name may hold brackets and spaces
  if (name_end == nullptr || name_end[1] != ' ') return State::unknown;
  switch (name_end[2]) {
    case 'R':
      return State::running;
    case 'S':
    case 'I':
      return State::waiting;
    case 'D':
      return State::uninterruptible;
    case 'T':
    case 't':
      return State::stopped;
    default:
      return State::unknown;
  }
}

int cpu_in(const char* stat) noexcept {
  constexpr int kBefore = 37;  // fields between the name and it
  const char* at = std::strrchr(stat, ')');
  for (int field = 0; at != nullptr && field < kBefore; ++field) at = std::strchr(at + 1, ' ');
  if (at == nullptr) return -1;
  char* end = nullptr;
  const long cpu = std::strtol(at, &end, 10);
  return end == at || cpu < 0 || cpu > std::numeric_limits<int>::max() ? -1 : static_cast<int>(cpu);
}

int ThreadStates::open(std::uint32_t thread, const char* name) const {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task/%u/%s", static_cast<int>(pid_), thread, name);
  return ::open(path, O_RDONLY | O_CLOEXEC);
}

std::string ThreadStates::read(std::uint32_t thread, const char* name) const {
  const base::UniqueFd file(open(thread, name));
  return read_from(file.get());
}

void ThreadStates::begin() noexcept {
  for (auto& [thread, known] : known_) known.looked_at = false;
}

void ThreadStates::end() {
  std::erase_if(known_, [](const auto& entry) { return !entry.second.looked_at; });
}

bool ThreadStates::has_run(std::uint32_t thread) {
  Known& known = known_[thread];
  if (std::exchange(known.looked_at, true)) return known.has_run;
  known.has_run = true;
  if (known.ran) {  // it needs no look at the counters to know that
    known.last.clear();
    return true;
  }
  std::string now;
  if (known.schedstat) now = read_from(known.schedstat.get());
  if (now.empty()) {  // new, or another thread has its number
    known.schedstat.reset(open(thread, "schedstat"));
    now = read_from(known.schedstat.get());
    if (known_.size() > kMostFiles) known.schedstat.reset();
  }
  known.has_run = now.empty() || now != known.last;
  known.last = std::move(now);
  return known.has_run;
}

State ThreadStates::state(std::uint32_t thread) {
  const auto found = known_.find(thread);
  if (found == known_.end()) return seen_from_here(read(thread, "stat"));
  Known& known = found->second;
  State state = State::unknown;
  if (known.stat) state = seen_from_here(read_from(known.stat.get()));
  if (state == State::unknown) {
    known.stat.reset(open(thread, "stat"));
    state = seen_from_here(read_from(known.stat.get()));
    if (known_.size() > kMostFiles) known.stat.reset();
  }
  known.ran = state == State::running || state == State::ready;
  return state;
}

std::string ThreadStates::waits_in(std::uint32_t thread) const {
  const std::string channel = read(thread, "wchan");
  // Without what a compiler appends, as in poll_schedule_timeout.constprop.0.
  if (!channel.empty() && channel != "0") return channel.substr(0, channel.find('.'));
  // "running", "-1 …" (it waits, in no system call), or the call's number and arguments.
  const std::string doing = read(thread, "syscall");
  char* end = nullptr;
  const long call = std::strtol(doing.c_str(), &end, 10);
  if (end == doing.c_str() || call < 0) return {};
  const char* const name = name_of(call);
  return name != nullptr ? name : "system call " + std::to_string(call);
}

}  // namespace haiprof::stacks

#include "perfd/rights.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "host/file.h"

namespace haiprof::perfd {

namespace {

constexpr unsigned kPerfmon = 38;   // CAP_PERFMON, which old headers do not know
constexpr unsigned kSysAdmin = 21;  // CAP_SYS_ADMIN, of which it was a part before Linux 5.8

struct Capabilities {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct words[_LINUX_CAPABILITY_U32S_3]{};
};

unsigned counting() noexcept {
  return prctl(PR_CAPBSET_READ, kPerfmon, 0, 0, 0) < 0 ? kSysAdmin : kPerfmon;
}

std::string failed(const char* what) { return std::string(what) + ": " + host::error_text(errno); }

}  // namespace

std::string keep_only_counting() {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return failed("PR_SET_NO_NEW_PRIVS");
  Capabilities current;
  if (syscall(SYS_capget, &current.header, current.words) != 0) return failed("capget");
  Capabilities kept;
  const unsigned word = counting() / 32;
  kept.words[word].permitted = current.words[word].permitted & (1u << (counting() % 32));
  kept.words[word].effective = kept.words[word].permitted;
  if (syscall(SYS_capset, &kept.header, kept.words) != 0) return failed("capset");
  return {};
}

bool may_count(const std::string& procfs) {
  Capabilities current;
  if (syscall(SYS_capget, &current.header, current.words) == 0 &&
      (current.words[counting() / 32].effective & (1u << (counting() % 32))) != 0) {
    return true;
  }
  host::File file(procfs + "/sys/kernel/perf_event_paranoid");
  host::Buffer buffer;
  if (file.read(buffer) != 0) return false;
  int paranoid = 2;
  const std::string_view text = buffer.text();
  std::from_chars(text.data(), text.data() + text.size(), paranoid);
  return paranoid <= 0;
}

void raise_open_files() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace haiprof::perfd

#include "perf/own_opener.h"

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/scan.h"
#include "perf/open_group.h"

namespace haiprof::perf {

namespace {

constexpr const char* kParanoid = "/sys/kernel/perf_event_paranoid";

std::optional<std::string> read_paranoid(const std::string& procfs) {
  host::File file(procfs + kParanoid);
  host::Buffer buffer;
  if (file.read(buffer) != 0) return {};
  std::string_view text = buffer.text();
  std::string_view word;
  if (!host::next_word(text, word)) return {};
  return std::string(word);
}

// CAP_PERFMON, or CAP_SYS_ADMIN, which it was a part of before Linux 5.8.
bool may_count() {
  constexpr std::uint64_t kRights = std::uint64_t{1} << 38 | std::uint64_t{1} << 21;
  constexpr std::string_view kEffective = "CapEff:";
  host::File file("/proc/self/status");
  host::Buffer buffer;
  if (file.read(buffer) != 0) return false;
  std::string_view text = buffer.text();
  std::string_view line;
  while (host::next_line(text, line)) {
    if (!line.starts_with(kEffective)) continue;
    line.remove_prefix(kEffective.size());
    std::string_view word;
    std::uint64_t capabilities = 0;
    if (!host::next_word(line, word)) return false;
    std::from_chars(word.data(), word.data() + word.size(), capabilities, 16);
    return (capabilities & kRights) != 0;
  }
  return false;
}

constexpr const char* kLetContainer =
    "let the container call it: Docker's seccomp profile does with --cap-add PERFMON (before "
    "Docker 23 with --security-opt seccomp=unconfined), Kubernetes with PERFMON in "
    "securityContext.capabilities.add";

bool is_at_most(const std::string& paranoid, int most) noexcept {
  int level = 0;
  const auto [at, error] =
      std::from_chars(paranoid.data(), paranoid.data() + paranoid.size(), level);
  return error == std::errc{} && level <= most;
}

Opened denied(int error, const std::string& procfs) {
  Opened opened;
  opened.error = error;
  const std::string paranoid = read_paranoid(procfs).value_or("unknown");
  if (may_count() || is_at_most(paranoid, 0)) {
    opened.reason =
        "the kernel would allow it (kernel.perf_event_paranoid is " + paranoid +
        "), but a seccomp profile, a user namespace or a security module forbids perf_event_open";
    opened.fix = std::string(kLetContainer) + "; or run haiprof-perfd on the node";
    return opened;
  }
  opened.reason =
      "this process may not count for other processes: it has no CAP_PERFMON, and "
      "kernel.perf_event_paranoid is " +
      paranoid;
  opened.fix =
      "as root run 'sysctl kernel.perf_event_paranoid=0', or 'setcap cap_perfmon+ep' on the Python "
      "that runs the recorder, or start haiprof-perfd; in Kubernetes put PERFMON into "
      "securityContext.capabilities.add (a container that is not root needs one of the others)";
  return opened;
}

Opened denied_thread(int error, const std::string& procfs) {
  Opened opened;
  opened.error = error;
  const std::string paranoid = read_paranoid(procfs).value_or("unknown");
  if (may_count() || is_at_most(paranoid, 2)) {
    opened.reason =
        "the kernel allows it for processes of the same user (kernel.perf_event_paranoid is " +
        paranoid +
        "), but these are another user's, or a seccomp profile or a security module forbids "
        "perf_event_open";
    opened.fix = "sample as the job's user; " + std::string(kLetContainer);
    return opened;
  }
  opened.reason =
      "this process may count nothing: it has no CAP_PERFMON, and kernel.perf_event_paranoid is " +
      paranoid;
  opened.fix =
      "as root run 'sysctl kernel.perf_event_paranoid=2', or 'setcap cap_perfmon+ep' on the Python "
      "that runs the recorder";
  return opened;
}

class OwnOpener final : public Opener {
 public:
  explicit OwnOpener(std::string procfs) : procfs_(std::move(procfs)) {}

  Opened open(std::span<const Event> events, int cpu) override {
    std::vector<base::UniqueFd> fds;
    const int error = open_group(events, cpu, fds);
    if (error != 0) return refused(error, procfs_);
    Opened opened;
    opened.group = std::make_unique<FdGroup>(std::move(fds));
    return opened;
  }

 private:
  std::string procfs_;
};

}  // namespace

bool is_denied(int error) noexcept { return error == EACCES || error == EPERM; }

Opened refused(int error, const std::string& procfs, Scope scope) {
  if (is_denied(error)) {
    return scope == Scope::thread ? denied_thread(error, procfs) : denied(error, procfs);
  }
  Opened opened;
  opened.error = error;
  switch (error) {
    case EBUSY:
      opened.reason = "another tool has these counters reserved";
      opened.fix = "stop what else counts there (perf stat, pcm, likwid, a monitoring agent)";
      break;
    case ENOENT:
    case EOPNOTSUPP:
      opened.reason = "no driver of this kernel knows the event";
      opened.fix = "see whether a newer kernel does; a virtual machine may hide it";
      break;
    case ENODEV:
    case ENXIO:
      opened.reason = "the CPU is offline, or the PMU disappeared";
      opened.fix = "haiprof retries automatically";
      break;
    case EINVAL:
      opened.reason =
          "its driver refuses the events: it does not have that many counters, or is "
          "none for this machine";
      opened.fix = "report this, with the output of haiprof doctor --json";
      break;
    case EMFILE:
      opened.reason = "the recorder has no file descriptors left";
      opened.fix = "raise the limit of open files (ulimit -n)";
      break;
    case ENFILE:
      opened.reason = "the machine has no file descriptors left";
      opened.fix = "raise fs.file-max";
      break;
    case ENOSYS:
      opened.reason = "this kernel has no perf_event_open, or a seccomp profile hides it";
      opened.fix = "use a kernel with CONFIG_PERF_EVENTS, or a profile that allows the call";
      break;
    default:
      opened.reason = "perf_event_open: " + host::error_text(error);
      opened.fix = "report this, with the output of haiprof doctor --json";
      break;
  }
  return opened;
}

std::unique_ptr<Opener> make_own_opener(const std::string& procfs) {
  return std::make_unique<OwnOpener>(procfs);
}

}  // namespace haiprof::perf

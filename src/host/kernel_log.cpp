// What the kernel says that may have ended or slowed a job, as events, from /dev/kmsg: processes
// killed for want of memory, hardware errors, errors of GPUs, disks and network file systems.
//
// Only what is written from now on, and only what the kernel itself writes. Each read() of that
// file answers one record: "priority,number,microseconds,flags;text", then lines of " KEY=value".
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "host/scan.h"
#include "host/sources.h"
#include "host/status.h"

namespace haiprof::host {

namespace {

using sampler::Change;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

struct Known {
  std::string_view about;
  std::string_view text;  // somewhere in the message
};
constexpr Known kKnown[] = {
    {"oom", "ut of memory: Kill"},  // "Out of …", "Memory cgroup out of …"
    {"mce", "[Hardware Error]"},
    {"mce", "Machine check events logged"},
    {"xid", "NVRM: Xid"},
    {"pcie", "PCIe Bus Error"},
    {"hung_task", " blocked for more than "},
    {"nfs", "nfs: server "},
    {"lustre", "LustreError: "},
    {"lustre", "was lost; in progress operations"},
    {"ceph", "libceph: "},
    {"disk", "I/O error, dev "},
};

constexpr std::size_t kMostText = 400;
constexpr unsigned kMostRecords = 512;  // of one reading: a storm must not keep the others waiting
constexpr unsigned kMostEvents = 16;
constexpr std::uint64_t kFacility = 8;  // priority / 8; 0 is the kernel's own

std::string_view about(std::string_view text) noexcept {
  const auto* at = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& known) {
    return text.find(known.text) != std::string_view::npos;
  });
  return at == std::end(kKnown) ? std::string_view{} : at->about;
}

class KernelLog final : public sampler::Source {
 public:
  explicit KernelLog(const Roots& roots) : path_(roots.kmsg) {}

  std::string_view name() const noexcept override { return "kernel_log"; }

  Status open(SeriesTable&) override {
    const int fd = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
      return unreadable(path_, errno,
                        "sysctl kernel.dmesg_restrict=0, or the capability CAP_SYSLOG; a container "
                        "needs the device");
    }
    file_.reset(fd);
    // Containers may have a link to the console there, of which not a byte is ours.
    struct stat status{};
    const bool known =
        fstat(fd, &status) == 0 &&
        (S_ISREG(status.st_mode) || (S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 11)));
    if (known && lseek(fd, 0, SEEK_END) >= 0) return {};
    file_.reset();
    return {State::absent, path_ + " is not the kernel's log", "give the container the device"};
  }

  Status read(SeriesTable&) override {
    unsigned events = 0;
    for (unsigned record = 0; record < kMostRecords; ++record) {
      const ssize_t got = ::read(file_.get(), text_, sizeof text_);
      if (got == 0) return {};
      if (got > 0) {
        take({text_, static_cast<std::size_t>(got)}, events);
      } else if (errno == EAGAIN) {
        return {};
      } else if (errno != EPIPE && errno != EINTR && errno != EINVAL) {
        return unreadable(path_, errno, "report this, with the output of haiprof doctor");
      }  // EPIPE: records were overwritten before they were read; EINVAL: one is too long
    }
    return {};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {}}};
  }

  void take_changes(std::vector<Change>& changes) override {
    std::move(changes_.begin(), changes_.end(), std::back_inserter(changes));
    changes_.clear();
  }

 private:
  void take(std::string_view text, unsigned& events) {
    std::string_view line;
    while (next_line(text, line)) {
      const std::size_t semicolon = line.find(';');
      const std::size_t comma = line.find(',');
      std::uint64_t priority = 0;
      if (semicolon == std::string_view::npos || comma > semicolon) continue;
      if (!to_number(line.substr(0, comma), priority) || priority >= kFacility) continue;
      const std::string_view message = line.substr(semicolon + 1);
      const std::string_view kind = about(message);
      if (kind.empty() || ++events > kMostEvents) continue;
      changes_.push_back({"kernel_log",
                          std::string(message.substr(0, kMostText)),
                          {{"about", std::string(kind)}}});
    }
  }

  std::string path_;
  base::UniqueFd file_;
  char text_[16384];
  std::vector<Change> changes_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_kernel_log(const Roots& roots) {
  return std::make_unique<KernelLog>(roots);
}

}  // namespace haiprof::host

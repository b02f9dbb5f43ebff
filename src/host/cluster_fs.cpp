// Bytes that applications read from and wrote to mounted Lustre and CephFS, as their clients in the
// kernel count them. BeeGFS, WEKA and GPFS show no such counters.
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/scan.h"
#include "host/sources.h"
#include "host/status.h"

namespace haiprof::host {

namespace {

using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::size_t kWays = 2;  // read, write

struct System {
  std::string_view name;
  std::string_view metrics[kWays];
  std::string_view rows[kWays];
  const char* file;    // in the folder of each mount
  std::size_t column;  // of the bytes, the row's name being 0
};

// "read_bytes 12 samples [bytes] 0 1048576 6295552"
constexpr System kLustre = {"lustre",
                            {"io.lustre_read.bytes_per_s", "io.lustre_write.bytes_per_s"},
                            {"read_bytes", "write_bytes"},
                            "/stats",
                            6};
// "read 5 4194304 4194304 4194304 20971520": how many, then mean, least, most and sum
constexpr System kCeph = {"cephfs",
                          {"io.cephfs_read.bytes_per_s", "io.cephfs_write.bytes_per_s"},
                          {"read", "write"},
                          "/metrics/size",
                          5};

constexpr std::size_t kMostMounts = 64;

// The number of a row, in the column.
bool find_column(std::string_view text, std::string_view row, std::size_t column,
                 std::uint64_t& number) noexcept {
  std::string_view line;
  while (next_line(text, line)) {
    std::string_view word;
    if (!next_word(line, word) || word != row) continue;
    for (std::size_t i = 0; i < column; ++i) {
      if (!next_word(line, word)) return false;
    }
    return to_number(word, number);
  }
  return false;
}

class ClusterFs final : public sampler::Source {
 public:
  ClusterFs(const System& system, std::vector<std::string> folders)
      : system_(system), folders_(std::move(folders)) {}

  std::string_view name() const noexcept override { return system_.name; }

  Status open(SeriesTable& table) override {
    for (const Mount& mount : mounts_) {
      for (const SeriesId id : mount.series) table.remove(id);
    }
    mounts_.clear();
    Status status{State::absent, folders_.front() + ": no mount has a folder there",
                  "none is needed where none is mounted; some versions show it to root alone"};
    for (const std::string& folder : folders_) {
      std::error_code error;
      for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        add(entry.path(), table);
      }
      if (error == std::errc::permission_denied) {
        status = unreadable(folder, EACCES, "sample as root: the kernel shows it to root alone");
      }
    }
    return mounts_.empty() ? status : Status{};
  }

  Status read(SeriesTable& table) override {
    bool any = false;
    for (Mount& mount : mounts_) {
      if (mount.file.read(buffer_) != 0) continue;
      any = true;
      for (std::size_t i = 0; i < kWays; ++i) {
        std::uint64_t bytes = 0;
        if (find_column(buffer_.text(), system_.rows[i], system_.column, bytes)) {
          table.rate(mount.series[i], bytes);
        }
      }
    }
    if (any) return {};
    return {State::absent, folders_.front() + ": nothing is mounted any more", "mount it"};
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {system_.metrics[0], system_.metrics[1]}}};
  }

 private:
  struct Mount {
    File file;
    SeriesId series[kWays] = {kNoSeries, kNoSeries};
  };

  void add(const std::filesystem::path& folder, SeriesTable& table) {
    const std::string path = folder.string() + system_.file;
    if (mounts_.size() >= kMostMounts || File(path).read(buffer_) != 0) return;
    Mount& added = mounts_.emplace_back();
    added.file = File(path);
    // The file system's, and something in the kernel that tells its mounts apart.
    const std::string instance = folder.filename().string();
    for (std::size_t i = 0; i < kWays; ++i) {
      added.series[i] = table.add(system_.metrics[i], instance, 0, 1.0, Emit::once_moved);
    }
  }

  const System& system_;
  std::vector<std::string> folders_;
  Buffer buffer_;
  std::vector<Mount> mounts_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_lustre(const Roots& roots) {
  return std::make_unique<ClusterFs>(
      kLustre, std::vector<std::string>{roots.sysfs + "/kernel/debug/lustre/llite",
                                        roots.procfs + "/fs/lustre/llite"});
}

std::unique_ptr<sampler::Source> make_cephfs(const Roots& roots) {
  return std::make_unique<ClusterFs>(kCeph,
                                     std::vector<std::string>{roots.sysfs + "/kernel/debug/ceph"});
}

}  // namespace haiprof::host

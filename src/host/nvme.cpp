// The temperature of NVMe disks, from /sys/class/hwmon. Read seldom: the driver asks the disk.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/scan.h"
#include "host/sources.h"

namespace haiprof::host {

namespace {

using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::string_view kTemperature = "disk.temperature.celsius";
constexpr std::size_t kMost = 256;

class Nvme final : public sampler::Source {
 public:
  explicit Nvme(const Roots& roots) : folder_(roots.sysfs + "/class/hwmon") {}

  std::string_view name() const noexcept override { return "nvme"; }

  Status open(SeriesTable& table) override {
    for (const Disk& disk : disks_) table.remove(disk.series);
    disks_.clear();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
      const std::string path = entry.path().string();
      if (disks_.size() >= kMost || !is_nvme(path)) continue;
      std::error_code unknown;
      const std::string disk =
          std::filesystem::read_symlink(path + "/device", unknown).filename().string();
      if (unknown || disk.empty()) continue;
      // The first one is the disk's as a whole; others are of its parts.
      disks_.push_back({File(path + "/temp1_input"), table.add(kTemperature, disk, 0, 1e-3)});
    }
    return found(!disks_.empty());
  }

  Status read(SeriesTable& table) override {
    bool any = false;
    for (Disk& disk : disks_) {
      if (disk.file.read(buffer_) != 0) continue;
      any = true;
      std::string_view text = buffer_.text();
      std::uint64_t thousandths = 0;
      if (next_number(text, thousandths)) {
        table.gauge(disk.series, static_cast<double>(thousandths));
      }
    }
    return found(any);
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {kTemperature}}};
  }

 private:
  struct Disk {
    File file;
    SeriesId series;
  };

  bool is_nvme(const std::string& path) {
    return File(path + "/name").read(buffer_) == 0 && buffer_.text() == "nvme\n";
  }

  Status found(bool any) const {
    if (any) return {};
    return {State::absent, folder_ + " has no NVMe disk",
            "none is needed where there is none; else use a kernel with CONFIG_NVME_HWMON"};
  }

  std::string folder_;
  Buffer buffer_;
  std::vector<Disk> disks_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_nvme(const Roots& roots) {
  return std::make_unique<Nvme>(roots);
}

}  // namespace haiprof::host

// Errors of the host's memory, from /sys/devices/system/edac: by memory controller.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "host/file.h"
#include "host/scan.h"
#include "host/sources.h"

namespace haiprof::host {

namespace {

using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::size_t kMetrics = 2;
constexpr std::string_view kNames[kMetrics] = {"mem.ecc_corrected.per_s",
                                               "mem.ecc_uncorrected.per_s"};
constexpr const char* kFiles[kMetrics] = {"/ce_count", "/ue_count"};
constexpr std::size_t kMost = 256;

class Edac final : public sampler::Source {
 public:
  explicit Edac(const Roots& roots) : folder_(roots.sysfs + "/devices/system/edac/mc") {}

  std::string_view name() const noexcept override { return "edac"; }

  Status open(SeriesTable& table) override {
    for (const Controller& controller : controllers_) {
      for (const SeriesId id : controller.series) table.remove(id);
    }
    controllers_.clear();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
      const std::string number = entry.path().filename().string();
      if (controllers_.size() >= kMost || !number.starts_with("mc") || number.size() < 3 ||
          number.find_first_not_of("0123456789", 2) != std::string::npos) {
        continue;
      }
      Controller& added = controllers_.emplace_back();
      for (std::size_t i = 0; i < kMetrics; ++i) {
        added.files[i] = File(entry.path().string() + kFiles[i]);
        added.series[i] = table.add(kNames[i], number, 0, 1.0, Emit::once_moved);
      }
    }
    return found();
  }

  Status read(SeriesTable& table) override {
    for (Controller& controller : controllers_) {
      for (std::size_t i = 0; i < kMetrics; ++i) {
        std::uint64_t errors = 0;
        if (controller.files[i].read(buffer_) != 0) continue;
        std::string_view text = buffer_.text();
        if (next_number(text, errors)) table.rate(controller.series[i], errors);
      }
    }
    return found();
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {std::begin(kNames), std::end(kNames)}}};
  }

 private:
  struct Controller {
    File files[kMetrics];
    SeriesId series[kMetrics] = {kNoSeries, kNoSeries};
  };

  Status found() const {
    const bool any = std::any_of(controllers_.begin(), controllers_.end(),
                                 [](const auto& each) { return exists(each.files[0].path()); });
    if (any) return {};
    return {State::absent, folder_ + " has no memory controller",
            "load the kernel's EDAC driver of this CPU; virtual machines and memory without ECC "
            "have none"};
  }

  std::string folder_;
  Buffer buffer_;
  std::vector<Controller> controllers_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_edac(const Roots& roots) {
  return std::make_unique<Edac>(roots);
}

}  // namespace haiprof::host

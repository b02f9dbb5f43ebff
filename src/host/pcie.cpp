// PCIe links of GPUs, network adapters, NVMe disks and accelerators: how much of what both ends of
// a link can do is in use, and the errors that either end has counted. From /sys/bus/pci/devices.
//
// Looked at seldom: the kernel asks the device for the state of its link. One that sleeps is left
// alone, because the question would wake it.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
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

using sampler::Change;
using sampler::Emit;
using sampler::kNoSeries;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

constexpr std::string_view kWidth = "pcie.link_width.percent";
constexpr std::string_view kSpeed = "pcie.link_speed.percent";

constexpr std::size_t kErrors = 3;
constexpr std::string_view kErrorNames[kErrors] = {
    "pcie.correctable_errors.per_s", "pcie.nonfatal_errors.per_s", "pcie.fatal_errors.per_s"};
constexpr const char* kErrorFiles[kErrors] = {"/aer_dev_correctable", "/aer_dev_nonfatal",
                                              "/aer_dev_fatal"};

constexpr std::size_t kMost = 512;

// By the first digits of what stands in the file `class`.
struct Class {
  std::string_view digits;
  std::string_view name;
};
constexpr Class kClasses[] = {{"0x03", "GPU"},
                              {"0x02", "network adapter"},
                              {"0x0108", "NVMe disk"},
                              {"0x12", "accelerator"},
                              {"0x0b40", "accelerator"}};

// What a device, or the port above it, says of its link.
struct Link {
  std::uint64_t lanes = 0;
  std::uint64_t most_lanes = 0;
  std::uint64_t speed = 0;  // 10^8 transfers a second
  std::uint64_t most_speed = 0;
};

double percent(std::uint64_t part, std::uint64_t whole) noexcept {
  return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

class Pcie final : public sampler::Source {
 public:
  explicit Pcie(const Roots& roots) : folder_(roots.sysfs + "/bus/pci/devices") {}

  std::string_view name() const noexcept override { return "pcie_devices"; }

  Status open(SeriesTable& table) override {
    for (const Device& device : devices_) {
      table.remove(device.width);
      table.remove(device.speed);
    }
    for (const Counted& counted : counted_) {
      for (const SeriesId id : counted.series) table.remove(id);
    }
    devices_.clear();
    counted_.clear();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
      if (devices_.size() < kMost) add(entry.path(), table);
    }
    return found();
  }

  Status read(SeriesTable& table) override {
    for (Device& device : devices_) read_link(device, table);
    for (const Counted& counted : counted_) read_errors(counted, table);
    return found();
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    std::vector<sampler::Part> parts = {
        {"pcie_links", status, {kWidth, kSpeed}},
        {"pcie_errors", status, {std::begin(kErrorNames), std::end(kErrorNames)}}};
    if (!status.ok()) return parts;
    if (!any_link_) {
      parts[0].status = {State::absent, "no device says how wide and fast its link is",
                         "none in a virtual machine; else use Linux 4.13 or later"};
    }
    if (!any_errors_) {
      parts[1].status = {State::absent, "the kernel counts no PCIe errors of these devices",
                         "use Linux 4.19 or later with CONFIG_PCIEAER, and a firmware that leaves "
                         "error reporting to it"};
    }
    return parts;
  }

  void take_changes(std::vector<Change>& changes) override {
    std::move(changes_.begin(), changes_.end(), std::back_inserter(changes));
    changes_.clear();
  }

 private:
  struct Device {
    std::string address;
    std::string folder;
    std::string above;  // the folder of the port that it is connected to; may be no PCIe port
    std::string_view what;
    SeriesId width = kNoSeries;
    SeriesId speed = kNoSeries;
    std::uint64_t missing = 0;  // lanes, at the reading before
  };

  // A device or a port.
  struct Counted {
    std::string folder;
    SeriesId series[kErrors] = {kNoSeries, kNoSeries, kNoSeries};
  };

  static std::string_view what(std::string_view number) noexcept {
    const auto* at = std::find_if(std::begin(kClasses), std::end(kClasses),
                                  [&](const Class& one) { return number.starts_with(one.digits); });
    return at == std::end(kClasses) ? std::string_view{} : at->name;
  }

  void add(const std::filesystem::path& entry, SeriesTable& table) {
    if (File(entry.string() + "/class").read(buffer_) != 0) return;
    const std::string_view kind = what(buffer_.text());
    if (kind.empty()) return;
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(entry, error);
    if (error) return;
    Device device{real.filename().string(), real.string(), real.parent_path().string(), kind};
    device.width = table.add(kWidth, device.address);
    device.speed = table.add(kSpeed, device.address);
    count(real, table);
    if (exists(device.above + "/class")) count(real.parent_path(), table);
    devices_.push_back(std::move(device));
  }

  // A port may have several devices below it.
  void count(const std::filesystem::path& place, SeriesTable& table) {
    const std::string folder = place.string();
    if (std::any_of(counted_.begin(), counted_.end(),
                    [&](const Counted& counted) { return counted.folder == folder; })) {
      return;
    }
    Counted& added = counted_.emplace_back();
    added.folder = folder;
    for (std::size_t i = 0; i < kErrors; ++i) {
      added.series[i] =
          table.add(kErrorNames[i], place.filename().string(), 0, 1.0, Emit::once_moved);
    }
  }

  std::string_view text_of(const std::string& path) {
    return File(path).read(buffer_) == 0 ? buffer_.text() : std::string_view{};
  }

  std::uint64_t lanes_of(const std::string& path) {
    constexpr std::uint64_t kMostLanes = 32;  // 255: not known
    std::string_view text = text_of(path);
    std::uint64_t lanes = 0;
    return next_number(text, lanes) && lanes <= kMostLanes ? lanes : 0;
  }

  // "16.0 GT/s PCIe", "8 GT/s", "Unknown": in tenths.
  std::uint64_t speed_of(const std::string& path) {
    constexpr std::uint64_t kMostSpeed = 1024;
    std::string_view text = text_of(path);
    std::string_view word;
    std::uint64_t whole = 0;
    std::uint64_t tenths = 0;
    if (!next_word(text, word)) return 0;
    const std::size_t dot = word.find('.');
    if (!to_number(word.substr(0, dot), whole) || whole > kMostSpeed) return 0;
    if (dot != std::string_view::npos && !to_number(word.substr(dot + 1, 1), tenths)) return 0;
    return whole * 10 + tenths;
  }

  std::optional<Link> link_of(const Device& device) {
    if (text_of(device.folder + "/power/runtime_status").starts_with("suspended")) return {};
    Link link;
    link.lanes = lanes_of(device.folder + "/current_link_width");
    link.most_lanes = lanes_of(device.folder + "/max_link_width");
    link.speed = speed_of(device.folder + "/current_link_speed");
    link.most_speed = speed_of(device.folder + "/max_link_speed");
    if (link.lanes == 0 || link.most_lanes == 0 || link.speed == 0 || link.most_speed == 0) {
      return {};
    }
    // A slot may be smaller than what is in it.
    if (const std::uint64_t slot = lanes_of(device.above + "/max_link_width"); slot != 0) {
      link.most_lanes = std::min(link.most_lanes, slot);
    }
    if (const std::uint64_t slot = speed_of(device.above + "/max_link_speed"); slot != 0) {
      link.most_speed = std::min(link.most_speed, slot);
    }
    // A hypervisor may show a port that it made up.
    link.most_lanes = std::max(link.most_lanes, link.lanes);
    link.most_speed = std::max(link.most_speed, link.speed);
    return link;
  }

  void read_link(Device& device, SeriesTable& table) {
    const std::optional<Link> link = link_of(device);
    if (!link) return;
    any_link_ = true;
    table.gauge(device.width, percent(link->lanes, link->most_lanes));
    table.gauge(device.speed, percent(link->speed, link->most_speed));
    const std::uint64_t missing = link->most_lanes - link->lanes;
    if (std::exchange(device.missing, missing) == missing) return;
    std::string text = "the PCIe link of " + std::string(device.what) + " " + device.address;
    text += " uses " + std::to_string(link->lanes) + " of " + std::to_string(link->most_lanes);
    changes_.push_back({"pcie_link",
                        text + " lanes",
                        {{"instance", device.address},
                         {"device", std::string(device.what)},
                         {"lanes", static_cast<std::int64_t>(link->lanes)},
                         {"most_lanes", static_cast<std::int64_t>(link->most_lanes)}}});
  }

  // A row per kind of error, and last their sum: "TOTAL_ERR_COR 3".
  void read_errors(const Counted& counted, SeriesTable& table) {
    for (std::size_t i = 0; i < kErrors; ++i) {
      std::string_view text = text_of(counted.folder + kErrorFiles[i]);
      std::string_view line;
      while (next_line(text, line)) {
        std::string_view key;
        std::uint64_t errors = 0;
        if (!line.starts_with("TOTAL_ERR_") || !next_word(line, key)) continue;
        if (!next_number(line, errors)) continue;
        any_errors_ = true;
        table.rate(counted.series[i], errors);
      }
    }
  }

  Status found() const {
    if (!devices_.empty()) return {};
    return {State::absent, folder_ + " has no GPU, network adapter, NVMe disk or accelerator",
            "none is needed where there is none; else mount sysfs where haiprof looks"};
  }

  std::string folder_;
  Buffer buffer_;
  std::vector<Device> devices_;
  std::vector<Counted> counted_;
  std::vector<Change> changes_;
  bool any_link_ = false;
  bool any_errors_ = false;
};

}  // namespace

std::unique_ptr<sampler::Source> make_pcie(const Roots& roots) {
  return std::make_unique<Pcie>(roots);
}

}  // namespace haiprof::host

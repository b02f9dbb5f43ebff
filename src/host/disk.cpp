// Traffic of the node's disks, and how long requests take, from /proc/diskstats.
//
// Only whole disks that stand for hardware: a byte written to a file on LVM on a partition appears
// in the rows of the dm device, the partition and the disk, and is counted at the disk.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/block_device.h"
#include "host/file.h"
#include "host/name_table.h"
#include "host/scan.h"
#include "host/sources.h"
#include "host/status.h"

namespace haiprof::host {

namespace {

using sampler::Emit;
using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::Status;

constexpr std::string_view kRead = "disk.read.bytes_per_s";
constexpr std::string_view kWrite = "disk.write.bytes_per_s";
constexpr std::string_view kBusy = "disk.busy.percent";
constexpr std::string_view kReadTime = "disk.read_latency.milliseconds";
constexpr std::string_view kWriteTime = "disk.write_latency.milliseconds";
constexpr std::string_view kQueue = "disk.queue.requests";

// A limit for the mean time of a request: an hour. A share is never above its scale.
constexpr std::uint64_t kLongestMs = 3'600'000;

constexpr double kSector = 512.0;  // of /proc/diskstats, whatever the disk's own sector is

// sda1 is a partition of sda; nvme0n1p2, mmcblk0p1 of the names before the p, which end in a digit.
// The name of the disk it would be a partition of; empty when the name is not a partition's.
std::string_view disk_of(std::string_view name) noexcept {
  const std::size_t last = name.find_last_not_of("0123456789");
  if (last == std::string_view::npos || last + 1 == name.size()) return {};
  std::string_view base = name.substr(0, last + 1);
  if (base.size() > 1 && base.back() == 'p' && is_digit(base[base.size() - 2])) {
    base.remove_suffix(1);
  }
  return base;
}

struct Disk {
  bool counted;
  SeriesId read = sampler::kNoSeries;
  SeriesId write = sampler::kNoSeries;
  SeriesId busy = sampler::kNoSeries;
  SeriesId read_time = sampler::kNoSeries;
  SeriesId write_time = sampler::kNoSeries;
  SeriesId queue = sampler::kNoSeries;
};

class Disks final : public sampler::Source {
 public:
  explicit Disks(const Roots& roots) : file_(roots.procfs + "/diskstats"), sysfs_(roots.sysfs) {}

  std::string_view name() const noexcept override { return "disk"; }

  Status open(SeriesTable&) override { return read_procfs(file_, buffer_); }

  Status read(SeriesTable& table) override {
    Status status = read_procfs(file_, buffer_);
    if (!status.ok()) return status;
    disks_.rewind();
    std::string_view text = buffer_.text();
    std::string_view line;
    while (next_line(text, line)) read_row(line, table);
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {kRead, kWrite, kBusy, kReadTime, kWriteTime, kQueue}}};
  }

 private:
  void read_row(std::string_view line, SeriesTable& table) {
    std::uint64_t device[2];
    std::string_view name;
    if (next_numbers(line, device) < 2 || !next_word(line, name)) return;
    // reads merged sectors ms, writes merged sectors ms, in flight, ms busy, ms of all in flight
    std::uint64_t column[11] = {};
    if (next_numbers(line, column) < 11) return;
    Disk* disk = disks_.find(name);
    if (disk == nullptr) disk = add(name, table);
    if (disk == nullptr || !disk->counted) return;
    table.rate(disk->read, column[2]);
    table.rate(disk->write, column[6]);
    table.share(disk->busy, column[9] * 1'000'000, table.now_ns());
    table.share(disk->read_time, column[3], column[0] * kLongestMs);
    table.share(disk->write_time, column[7], column[4] * kLongestMs);
    table.rate(disk->queue, column[10]);
  }

  Disk* add(std::string_view name, SeriesTable& table) {
    Disk disk;
    disk.counted = stands_for_hardware(name);
    if (disk.counted) {
      disk.read = table.add(kRead, name, 0, kSector, Emit::once_moved);
      disk.write = table.add(kWrite, name, 0, kSector, Emit::once_moved);
      disk.busy = table.add(kBusy, name, 0, 100.0, Emit::once_moved);
      constexpr double kLongest = kLongestMs;
      disk.read_time = table.add(kReadTime, name, 0, kLongest, Emit::once_moved);
      disk.write_time = table.add(kWriteTime, name, 0, kLongest, Emit::once_moved);
      disk.queue = table.add(kQueue, name, 0, 1e-3, Emit::once_moved);
    }
    return disks_.add(name, disk);
  }

  bool stands_for_hardware(std::string_view name) const {
    if (!is_hardware(name, sysfs_)) return false;
    const std::string_view whole = disk_of(name);
    return whole.empty() || !has_row(whole);
  }

  bool has_row(std::string_view name) const noexcept {
    std::string_view text = buffer_.text();
    std::string_view line;
    while (next_line(text, line)) {
      std::uint64_t device[2];
      std::string_view other;
      if (next_numbers(line, device) == 2 && next_word(line, other) && other == name) return true;
    }
    return false;
  }

  File file_;
  std::string sysfs_;
  Buffer buffer_;
  NameTable<Disk> disks_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_disk(const Roots& roots) {
  return std::make_unique<Disks>(roots);
}

}  // namespace haiprof::host

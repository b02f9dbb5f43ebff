// Traffic of each NFS mount, from /proc/self/mountstats.
//
// The applications' requests and the network traffic are separate series: page cache and
// read-ahead lie between them. A file system that is mounted at several places (containers bind
// it) keeps one set of counters and shows it at each; it is counted at the first.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/file.h"
#include "host/mount_text.h"
#include "host/name_table.h"
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

enum Metric : std::size_t {
  kRead,
  kWrite,
  kAppRead,
  kAppWrite,
  kReadRtt,
  kWriteRtt,
  kRetransmits,
  kMetrics,
};

constexpr std::string_view kNames[kMetrics] = {
    "io.nfs_read.bytes_per_s",      "io.nfs_write.bytes_per_s",     "io.nfs_app_read.bytes_per_s",
    "io.nfs_app_write.bytes_per_s", "io.nfs_read_rtt.milliseconds", "io.nfs_write_rtt.milliseconds",
    "io.nfs_retransmits.per_s",
};

// A limit for the mean time of an operation: an hour. A share is never above its scale.
constexpr std::uint64_t kLongestMs = 3'600'000;

struct Operation {
  std::uint64_t count = 0;
  std::uint64_t rtt_ms = 0;  // of all of them, from sending to the answer
  bool known = false;
};

// One section of the file. The texts lie in its buffer.
struct Section {
  std::string_view device;
  std::string_view point;  // as it is written there
  std::uint64_t age = 0;   // seconds
  // Read and written: by read() and write(), with O_DIRECT, from and to the server.
  std::uint64_t bytes[6] = {};
  bool has_bytes = false;
  Operation read;
  Operation write;
  std::uint64_t retransmits = 0;
  bool has_operations = false;
};

// "device SERVER:/PATH mounted on POINT with fstype nfs4 statvers=1.1"
bool begin_section(std::string_view line, Section& section) {
  constexpr std::string_view kDevice = "device ";
  constexpr std::string_view kOn = " mounted on ";
  constexpr std::string_view kType = " with fstype ";
  if (!line.starts_with(kDevice)) return false;
  const std::size_t on = line.find(kOn);
  const std::size_t type = line.rfind(kType);
  if (on == std::string_view::npos || type == std::string_view::npos || type < on + kOn.size()) {
    return false;
  }
  std::string_view rest = line.substr(type + kType.size());
  std::string_view name;
  if (!next_word(rest, name) || (name != "nfs" && name != "nfs4")) return false;
  section = {};
  section.device = line.substr(kDevice.size(), on - kDevice.size());
  section.point = line.substr(on + kOn.size(), type - on - kOn.size());
  return !section.point.empty();
}

// "READ: operations transmissions timeouts sent received queue_ms rtt_ms …"
void add_operation(std::string_view name, std::string_view row, Section& section) {
  std::uint64_t column[7] = {};
  if (next_numbers(row, column) < 7) return;
  section.has_operations = true;
  section.retransmits += column[1] - std::min(column[0], column[1]);
  if (name == "READ:") section.read = {column[0], column[6], true};
  if (name == "WRITE:") section.write = {column[0], column[6], true};
}

void parse(std::string_view text, std::vector<Section>& sections) {
  sections.clear();
  Section section;
  bool inside = false;
  bool operations = false;
  std::string_view line;
  while (next_line(text, line)) {
    if (line.starts_with("device ") || line.starts_with("no device ")) {
      if (inside) sections.push_back(section);
      inside = begin_section(line, section);
      operations = false;
      continue;
    }
    std::string_view word;
    if (!inside || !next_word(line, word)) continue;
    if (operations) {
      if (word.ends_with(':')) add_operation(word, line, section);
    } else if (word == "age:") {
      next_number(line, section.age);
    } else if (word == "bytes:") {
      section.has_bytes = next_numbers(line, section.bytes) == 6;
    } else if (word == "per-op") {
      operations = true;
    }
  }
  if (inside) sections.push_back(section);
}

struct Mount {
  Mount() noexcept { std::fill(std::begin(series), std::end(series), kNoSeries); }

  SeriesId series[kMetrics];
  std::string device;
  std::uint64_t age = 0;
  std::uint64_t pass = 0;  // over the sections, that it was last met in
  bool counted = true;     // not shown at another place already
};

class Nfs final : public sampler::Source {
 public:
  // With somebody else's procfs, its first process is the one that stands in the node's mounts.
  explicit Nfs(const Roots& roots)
      : stats_(process_folder(roots) + "/mountstats"),
        info_(process_folder(roots) + "/mountinfo") {}

  std::string_view name() const noexcept override { return "nfs"; }

  Status open(SeriesTable&) override { return load(); }

  Status read(SeriesTable& table) override {
    Status status = load();
    if (!status.ok()) return status;
    if (changed()) find_twins(table);
    begin_pass();
    for (const Section& section : sections_) {
      Mount* mount = mounts_.find(section.point);
      if (mount != nullptr && first_in_pass(*mount) && mount->counted) put(section, *mount, table);
    }
    return status;
  }

  std::vector<sampler::Part> describe(const Status& status) const override {
    return {{std::string(name()), status, {std::begin(kNames), std::end(kNames)}}};
  }

 private:
  static std::string process_folder(const Roots& roots) {
    const std::string first = roots.procfs + "/1";
    Buffer buffer;
    const bool other = roots.procfs != "/proc" && File(first + "/mountstats").read(buffer) == 0;
    return other ? first : roots.own_procfs + "/self";
  }

  Status load() {
    Status status = read_procfs(stats_, buffer_);
    if (!status.ok()) return status;
    parse(buffer_.text(), sections_);
    if (!sections_.empty()) return status;
    return {State::absent, stats_.path() + " names no NFS file system",
            "none is needed where the job reads from none; what only the job's container mounts is "
            "seen by a recorder in that container"};
  }

  void begin_pass() noexcept {
    ++pass_;
    mounts_.rewind();
  }

  // Of mounts on top of each other only the first is reported: they have one name.
  bool first_in_pass(Mount& mount) const noexcept {
    return std::exchange(mount.pass, pass_) != pass_;
  }

  static bool continues(const Section& section, const Mount& mount) noexcept {
    return mount.device == section.device && section.age >= mount.age;
  }

  // Whether other file systems are mounted than at the previous reading.
  bool changed() {
    bool same = sections_.size() == known_;
    begin_pass();
    for (const Section& section : sections_) {
      Mount* mount = mounts_.find(section.point);
      if (mount == nullptr) {
        same = same && full_;
      } else if (first_in_pass(*mount)) {
        same = same && continues(section, *mount);
        mount->age = std::max(mount->age, section.age);
      }
    }
    return !same;
  }

  // Says which mounts are counted: the first place of each file system.
  void find_twins(SeriesTable& table) {
    known_ = sections_.size();
    std::unordered_map<std::string, std::string> systems;  // by mount point as it is written
    if (info_.read(info_buffer_) == 0) {
      std::string_view text = info_buffer_.text();
      std::string_view line;
      while (next_line(text, line)) {
        std::string_view id, parent, numbers, root, point;
        if (next_word(line, id) && next_word(line, parent) && next_word(line, numbers) &&
            next_word(line, root) && next_word(line, point)) {
          systems.insert_or_assign(std::string(point), std::string(numbers));
        }
      }
    }
    std::vector<std::string_view> counted;
    begin_pass();
    for (const Section& section : sections_) {
      Mount* mount = mounts_.find(section.point);
      if (mount == nullptr) mount = add(section);
      if (mount == nullptr || !first_in_pass(*mount)) continue;
      if (!continues(section, *mount)) begin(section, *mount, table);
      mount->device = section.device;
      mount->age = section.age;
      const auto system = systems.find(std::string(section.point));
      mount->counted = true;
      if (system == systems.end()) continue;
      mount->counted = std::find(counted.begin(), counted.end(), system->second) == counted.end();
      if (mount->counted) counted.push_back(system->second);
    }
  }

  Mount* add(const Section& section) {
    Mount* mount = mounts_.add(section.point, {});
    full_ = mount == nullptr;
    return mount;
  }

  // Counters of another file system at the same place are no continuation.
  static void begin(const Section& section, Mount& mount, SeriesTable& table) {
    const std::string point = unescaped(section.point);
    for (std::size_t i = 0; i < kMetrics; ++i) {
      table.remove(mount.series[i]);
      const bool rtt = i == kReadRtt || i == kWriteRtt;
      mount.series[i] = table.add(kNames[i], point, 0, rtt ? static_cast<double>(kLongestMs) : 1.0,
                                  Emit::once_moved);
    }
  }

  static void put(const Section& section, const Mount& mount, SeriesTable& table) {
    if (section.has_bytes) {
      const auto& bytes = section.bytes;
      table.rate(mount.series[kRead], bytes[4]);
      table.rate(mount.series[kWrite], bytes[5]);
      table.rate(mount.series[kAppRead], bytes[0] + bytes[2]);
      table.rate(mount.series[kAppWrite], bytes[1] + bytes[3]);
    }
    put_rtt(section.read, mount.series[kReadRtt], table);
    put_rtt(section.write, mount.series[kWriteRtt], table);
    if (section.has_operations) table.rate(mount.series[kRetransmits], section.retransmits);
  }

  static void put_rtt(const Operation& operation, SeriesId series, SeriesTable& table) {
    if (operation.known) table.share(series, operation.rtt_ms, operation.count * kLongestMs);
  }

  File stats_;
  File info_;
  Buffer buffer_;
  Buffer info_buffer_;
  std::vector<Section> sections_;
  std::size_t known_ = 0;  // sections at the last look at twins
  std::uint64_t pass_ = 0;
  bool full_ = false;
  NameTable<Mount> mounts_;
};

}  // namespace

std::unique_ptr<sampler::Source> make_nfs(const Roots& roots) {
  return std::make_unique<Nfs>(roots);
}

}  // namespace haiprof::host

#include "uncore/source.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "uncore/absence.h"
#include "uncore/boxes.h"

namespace haiprof::uncore {

namespace {

using sampler::SeriesId;
using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

struct Metric {
  Quantity quantity;
  std::string_view name;
};

constexpr std::array kMetrics = {
    Metric{Quantity::dram_read, "dram.read.bytes_per_s"},
    Metric{Quantity::dram_write, "dram.write.bytes_per_s"},
    Metric{Quantity::dram_traffic, "dram.traffic.bytes_per_s"},
    Metric{Quantity::remote_sent, "numa.remote.bytes_per_s"},
    Metric{Quantity::pcie_in, "pcie.in.bytes_per_s"},
    Metric{Quantity::pcie_out, "pcie.out.bytes_per_s"},
    Metric{Quantity::c2c_in, "c2c.in.bytes_per_s"},
    Metric{Quantity::c2c_out, "c2c.out.bytes_per_s"},
};

struct Of {
  std::string_view name;
  Subject subject;
  std::span<const Metric> metrics;
};

constexpr std::array kParts = {
    Of{"memory_bandwidth", Subject::memory, std::span(kMetrics).first(3)},
    Of{"links", Subject::links, std::span(kMetrics).subspan(3, 1)},
    Of{"pcie", Subject::pcie, std::span(kMetrics).subspan(4, 2)},
    Of{"c2c", Subject::c2c, std::span(kMetrics).subspan(6, 2)},
};

std::vector<Quantity> quantities(std::span<const Metric> metrics) {
  std::vector<Quantity> result;
  for (const Metric& metric : metrics) result.push_back(metric.quantity);
  return result;
}

class MemoryBandwidth final : public sampler::Source {
 public:
  // Readings between two looks at a changing machine.
  static constexpr unsigned kPlanReadings = 3;
  static constexpr std::size_t kMostReported = 64;

  MemoryBandwidth(const host::Roots& roots, Planner planner, std::shared_ptr<perf::Opener> opener)
      : roots_(roots), planner_(std::move(planner)), opener_(std::move(opener)) {}

  std::string_view name() const noexcept override { return "memory_bandwidth"; }

  Status open(SeriesTable& table) override {
    plan_ = planner_();
    boxes_.open(plan_, quantities(kMetrics), kMostBytesPerS, *opener_);
    gone_ = false;
    readings_ = 0;
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      absent_[i] = is_whole(kParts[i]) ? Status{} : absence(kParts[i].subject, plan_, roots_);
    }
    add_series(table);
    if (!plan_.boxes.empty()) {  // else they are the reason why there is nothing
      for (const std::string& problem : plan_.problems) report(problem);
    }
    return look();
  }

  Status read(SeriesTable& table) override {
    boxes_.retry(table.now_ns(), *opener_);
    gone_ = !boxes_.read() || gone_;
    const auto memory = {Quantity::dram_read, Quantity::dram_write, Quantity::dram_traffic};
    boxes_.limit(memory, kMostBytesPerS);
    if (const double most = peak(); most > 0) boxes_.flag(memory, most, sampler::kAbovePeak);
    for (const Quantity quantity : {Quantity::remote_sent, Quantity::pcie_in, Quantity::pcie_out,
                                    Quantity::c2c_in, Quantity::c2c_out}) {
      boxes_.limit({quantity}, kMostBytesPerS);
    }
    emit(table);
    ++readings_;
    if (gone_ && readings_ >= kPlanReadings) {
      report("CPU counters disappeared; rescanning");
      const Status status = open(table);
      if (status.ok()) gone_ = !boxes_.read();  // the baseline
      return status;
    }
    return boxes_.take_changed() ? look() : status_;
  }

  std::vector<sampler::Part> describe(const Status&) const override {
    std::vector<sampler::Part> parts;
    for (const Of& part : kParts) {
      const bool planned = is_planned(part);
      if (part.subject == Subject::c2c && !planned) continue;  // hardly any machine has it
      sampler::Part answer{std::string(part.name), status_of(part), {}};
      for (const Metric& metric : part.metrics) {
        if (!planned || boxes_.planned(metric.quantity)) answer.metrics.push_back(metric.name);
      }
      parts.push_back(std::move(answer));
    }
    return parts;
  }

  void take_changes(std::vector<sampler::Change>& changes) override {
    for (std::string& sentence : unreported_) {
      changes.push_back({sampler::kSourceChange, std::move(sentence), {}});
    }
    unreported_.clear();
  }

 private:
  // Of a socket's memory; 0 = not known.
  double peak() const noexcept {
    return boxes_.sockets() > 0 ? plan_.dram_peak_bytes_per_s / boxes_.sockets() : 0;
  }

  void add_series(SeriesTable& table) {
    for (std::size_t i = 0; i < kMetrics.size(); ++i) {
      std::vector<SeriesId>& series = series_[i];
      if (!boxes_.planned(kMetrics[i].quantity)) continue;
      if (series.empty()) series.push_back(table.add(kMetrics[i].name));
      while (series.size() < boxes_.sockets() + 1) {
        const std::string instance = "socket" + std::to_string(series.size() - 1);
        series.push_back(table.add(kMetrics[i].name, instance));
      }
    }
  }

  void emit(SeriesTable& table) {
    const auto put = [&](SeriesId id, const std::optional<Rate>& rate) {
      if (rate) table.gauge(id, rate->per_s, rate->flags | table.lateness());
    };
    for (std::size_t i = 0; i < kMetrics.size(); ++i) {
      if (!boxes_.planned(kMetrics[i].quantity)) continue;
      put(series_[i][0], boxes_.of_node(kMetrics[i].quantity));
      for (unsigned socket = 0; socket < boxes_.sockets(); ++socket) {
        put(series_[i][socket + 1], boxes_.of(kMetrics[i].quantity, socket));
      }
    }
  }

  bool is_planned(const Of& part) const noexcept {
    return std::any_of(part.metrics.begin(), part.metrics.end(),
                       [&](const Metric& metric) { return boxes_.planned(metric.quantity); });
  }

  // Planned, and nothing of it missing.
  bool is_whole(const Of& part) const noexcept {
    const auto& lacking = plan_.incomplete;
    return is_planned(part) &&
           std::none_of(part.metrics.begin(), part.metrics.end(), [&](const Metric& metric) {
             return std::find(lacking.begin(), lacking.end(), metric.quantity) != lacking.end();
           });
  }

  bool is_counted(const Of& part) const noexcept {
    return std::any_of(part.metrics.begin(), part.metrics.end(),
                       [&](const Metric& metric) { return boxes_.counted(metric.quantity); });
  }

  Status status_of(const Of& part) const {
    const Status& absent = absent_[static_cast<std::size_t>(&part - kParts.data())];
    if (!absent.ok()) return absent;
    Status status = boxes_.status(quantities(part.metrics));
    if (!status.ok() && is_counted(part)) {
      status.reason += "; sums that it belongs to are left out, the others are recorded";
    }
    return status;
  }

  // The source is there as long as anything of it is.
  Status look() {
    boxes_.take_changed();
    status_ = {};
    bool any = false;
    for (const Of& part : kParts) {
      if (!is_planned(part)) continue;
      const Status status = status_of(part);
      if (is_counted(part)) {
        any = true;
        if (!status.ok()) report(std::string(part.name) + " is not complete: " + status.reason);
      } else if (status_.ok()) {
        status_ = status;
      }
    }
    if (any) {
      status_ = {};
    } else if (status_.ok()) {
      status_ = absent_.front();
    }
    return status_;
  }

  void report(const std::string& sentence) {
    if (reported_.size() >= kMostReported || !reported_.insert(sentence).second) return;
    unreported_.push_back(sentence);
  }

  host::Roots roots_;
  Planner planner_;
  std::shared_ptr<perf::Opener> opener_;
  Plan plan_;
  Boxes boxes_;
  Status status_;
  std::array<Status, kParts.size()> absent_;  // found out once: it takes reading cpuinfo
  std::array<std::vector<SeriesId>, kMetrics.size()> series_;  // node, then each socket
  std::set<std::string> reported_;
  std::vector<std::string> unreported_;
  unsigned readings_ = 0;
  bool gone_ = false;
};

}  // namespace

std::unique_ptr<sampler::Source> make_memory_bandwidth(const host::Roots& roots, Planner planner,
                                                       std::shared_ptr<perf::Opener> opener) {
  return std::make_unique<MemoryBandwidth>(roots, std::move(planner), std::move(opener));
}

}  // namespace haiprof::uncore

// What each step of a GPU was spent on, summed up while its records are drained: how long its
// phases took, and, where kernels were recorded throughout, how long it was busy, and what the host
// did while it was idle.
//
// The definitions are those of haiprof/views/run/device_steps.py and gpu_use.py. A step is settled
// once its device is two steps further, the host's phases of that time have ended and, where
// kernels are recorded, kernels of two seconds later have come: CUPTI hands them over late.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drain/host_phases.h"
#include "drain/step_part_rows.h"
#include "ring/layout.h"
#include "ring/reader.h"

namespace haiprof::drain {

class DeviceParts {
 public:
  explicit DeviceParts(StepPartRows& rows) noexcept : rows_(rows) {}

  // A phase of a device.
  void add_phase(const ring::RecordView& record, const ring::DeviceSpanPayload& phase,
                 std::int64_t start);
  // A kernel, copy or set.
  void add_activity(const ring::RecordView& record, ring::ActivityKind kind, std::uint32_t name,
                    std::uint16_t device, std::int64_t start, std::int64_t duration);
  // An earlier reader has seen this one: what lies before its end is not all known here.
  void miss_activity(std::uint16_t device, std::int64_t end);
  // An earlier reader has seen a part of the phases.
  void resume() noexcept {
    resumed_ = true;
    host_phases_.resume();
  }
  // A span of the host.
  void add_span(const ring::RecordView& record, const ring::SpanPayload& span, std::int64_t start,
                std::int64_t end) {
    host_phases_.add(record, span, start, end);
  }
  // From `time` on kernels are recorded, or are not any more.
  void add_recording(std::int64_t time, bool recording);
  // The host's part of a step.
  void add_step(std::uint32_t number, std::int64_t start, std::int64_t end);

  // Writes the rows of the steps that are settled.
  void settle(const std::vector<std::string>& strings) { settle(strings, false); }
  // … of all steps: nothing more will come.
  void settle_all(const std::vector<std::string>& strings) { settle(strings, true); }

 private:
  using Strings = std::vector<std::string>;
  // Sorted and disjoint.
  using Times = std::vector<std::pair<std::int64_t, std::int64_t>>;
  struct Phase {
    std::int64_t start;
    std::int64_t end;
    std::uint32_t step;
    std::uint32_t uncertainty;  // ns
    std::uint32_t name;         // kInline: `text`
    std::string text;
  };
  enum class Role : std::uint8_t { unknown, computing, communicating, copying };
  struct Activity {
    std::int64_t start;
    std::int64_t end;
    std::uint32_t name;
    Role role;
  };
  struct Device {
    std::vector<Phase> phases;           // of steps that are not settled
    std::vector<Activity> activities;    // that may be in one
    std::int64_t newest = 0;             // start of the newest activity
    std::int64_t last_end = 0;           // end of the last activity
    std::int64_t known_since = 0;        // before that, activities were forgotten
    std::uint32_t before = ring::kNone;  // the number of the step that was settled last …
    std::int64_t before_end = 0;         // … and when it ended
    std::size_t forget_at = 0;           // with so many activities old ones are forgotten
    bool whole = true;                   // whether all phases of the first step were seen
  };
  struct Recording {
    std::int64_t begin;
    std::optional<std::int64_t> end;
  };
  struct HostStep {
    std::int64_t start;
    std::int64_t end;
  };

  void settle(const Strings& strings, bool ended);
  void settle_device(std::uint16_t number, Device& device, const Strings& strings, bool ended);
  void write_phases(std::uint16_t number, std::uint32_t step, const std::vector<Phase>& its,
                    const Strings& strings);
  void write_busy(std::uint16_t number, Device& device, const std::vector<Phase>& its,
                  std::int64_t low, std::int64_t high, const Strings& strings, bool ended);
  void write_phase_busy(std::uint16_t number, const std::vector<Phase>& its, const Times& ran,
                        const Strings& strings);
  void write_idle(std::uint16_t number, std::uint32_t step, std::int64_t low, std::int64_t high,
                  const Times& ran, const Strings& strings);
  std::optional<std::int64_t> recorded(const Device& device, std::uint32_t step, std::int64_t low,
                                       std::int64_t high, bool ended) const;
  Role role_of(Activity& activity, const Strings& strings);
  static void forget_old(Device& device);
  void forget_host_phases();
  static bool is_sure(const std::vector<Phase>& its);

  StepPartRows& rows_;
  std::map<std::uint16_t, Device> devices_;
  std::vector<Recording> recordings_;
  std::map<std::uint32_t, HostStep> host_;  // the newest steps, by number
  HostPhases host_phases_;
  std::vector<Role> roles_;  // by id of the name
  bool resumed_ = false;
};

}  // namespace haiprof::drain

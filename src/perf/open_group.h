// The call perf_event_open(2) for a group of counters, and their reading by descriptors: of this
// process's own, or of those that haiprof-perfd has passed on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "perf/opener.h"

namespace haiprof::perf {

// More than any PMU has counters for.
inline constexpr std::size_t kMaxGroup = 32;

// Counters of all that runs on `cpu`, the first one leading: one descriptor each, in that order, to
// be kept open together. 0, or an errno, and then none is left open: EINVAL for none and for more
// than kMaxGroup.
int open_group(std::span<const Event> events, int cpu, std::vector<base::UniqueFd>& fds) noexcept;

// Reads what open_group() has opened.
class FdGroup final : public Group {
 public:
  explicit FdGroup(std::vector<base::UniqueFd> fds) noexcept : fds_(std::move(fds)) {}

  int read(std::span<Reading> readings) noexcept override;

 private:
  std::vector<base::UniqueFd> fds_;
};

}  // namespace haiprof::perf

// The statistics that the driver of a network interface keeps, by the names that it gives them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace haiprof::host {

// The kernel shows them by ioctl only. That needs no privilege, but the interface must be in the
// caller's network namespace.
class Ethtool {
 public:
  // More than any driver has: a dozen of each queue. There is room for twice as many, because the
  // kernel writes as many values as there are by then, however many were asked for.
  static constexpr std::uint32_t kMost = 32768;

  Ethtool() = default;
  virtual ~Ethtool() = default;

  // The names of an interface's statistics. 0, or the errno that stood in the way.
  virtual int names(const std::string& interface, std::vector<std::string>& names);

  // The same number of values in their order. ESTALE: there are not as many any more.
  virtual int values(const std::string& interface, std::vector<std::uint64_t>& values);

 private:
  int ask(const std::string& interface, void* question);
  int count(const std::string& interface, std::uint32_t& count);

  base::UniqueFd socket_;
  std::unique_ptr<std::uint64_t[]> room_;
};

// A statistic of priority flow control.
struct PauseStatistic {
  enum class Kind : std::uint8_t { received, sent, received_us };
  Kind kind = Kind::received;
  unsigned priority = 0;
};

// Whether a statistic of that name is one, of any driver that is known.
bool parse_pause_statistic(std::string_view name, PauseStatistic& statistic) noexcept;

}  // namespace haiprof::host

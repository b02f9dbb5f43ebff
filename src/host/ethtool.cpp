#include "host/ethtool.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace haiprof::host {

namespace {

constexpr std::size_t kHeadWords = 1;  // of ethtool_stats, in values

struct Pattern {
  std::string_view before;
  std::string_view after;
  PauseStatistic::Kind kind;
};

// From the kernel's documents and drivers: mlx5, bnxt_en, ice.
constexpr Pattern kPatterns[] = {
    {"rx_prio", "_pause", PauseStatistic::Kind::received},
    {"tx_prio", "_pause", PauseStatistic::Kind::sent},
    {"rx_prio", "_pause_duration", PauseStatistic::Kind::received_us},
    {"rx_pfc_ena_frames_pri", "", PauseStatistic::Kind::received},
    {"tx_pfc_ena_frames_pri", "", PauseStatistic::Kind::sent},
    {"rx_priority_", "_xoff.nic", PauseStatistic::Kind::received},
    {"tx_priority_", "_xoff.nic", PauseStatistic::Kind::sent},
};

}  // namespace

bool parse_pause_statistic(std::string_view name, PauseStatistic& statistic) noexcept {
  for (const Pattern& pattern : kPatterns) {
    if (name.size() != pattern.before.size() + 1 + pattern.after.size()) continue;
    if (!name.starts_with(pattern.before) || !name.ends_with(pattern.after)) continue;
    const char digit = name[pattern.before.size()];
    if (digit < '0' || digit > '7') continue;
    statistic = {pattern.kind, static_cast<unsigned>(digit - '0')};
    return true;
  }
  return false;
}

int Ethtool::ask(const std::string& interface, void* question) {
  if (interface.empty() || interface.size() >= IFNAMSIZ) return ENODEV;
  if (!socket_) socket_.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket_) return errno;
  ifreq request{};
  std::memcpy(request.ifr_name, interface.data(), interface.size());
  request.ifr_data = static_cast<char*>(question);
  return ioctl(socket_.get(), SIOCETHTOOL, &request) == 0 ? 0 : errno;
}

int Ethtool::count(const std::string& interface, std::uint32_t& count) {
  ethtool_sset_info head{};
  head.cmd = ETHTOOL_GSSET_INFO;
  head.sset_mask = std::uint64_t{1} << ETH_SS_STATS;
  alignas(ethtool_sset_info) char bytes[sizeof head + sizeof count] = {};
  std::memcpy(bytes, &head, sizeof head);
  if (const int error = ask(interface, bytes); error != 0) return error;
  std::memcpy(&head, bytes, sizeof head);
  std::memcpy(&count, bytes + sizeof head, sizeof count);
  if (head.sset_mask == 0) count = 0;
  return count > kMost ? E2BIG : 0;
}

int Ethtool::names(const std::string& interface, std::vector<std::string>& names) {
  names.clear();
  std::uint32_t number = 0;
  if (const int error = count(interface, number); error != 0 || number == 0) return error;
  // The kernel writes as many names as there are by then; twice as many have room.
  const auto bytes = std::make_unique_for_overwrite<char[]>(
      sizeof(ethtool_gstrings) + std::size_t{2} * kMost * ETH_GSTRING_LEN);
  ethtool_gstrings head{};
  head.cmd = ETHTOOL_GSTRINGS;
  head.string_set = ETH_SS_STATS;
  head.len = number;
  std::memcpy(bytes.get(), &head, sizeof head);
  if (const int error = ask(interface, bytes.get()); error != 0) return error;
  std::memcpy(&head, bytes.get(), sizeof head);
  const char* text = bytes.get() + sizeof head;
  for (std::uint32_t i = 0; i < std::min(head.len, number); ++i, text += ETH_GSTRING_LEN) {
    names.emplace_back(text, strnlen(text, ETH_GSTRING_LEN));
  }
  return 0;
}

int Ethtool::values(const std::string& interface, std::vector<std::uint64_t>& values) {
  std::uint32_t number = 0;
  if (const int error = count(interface, number); error != 0) return error;
  if (number != values.size()) return ESTALE;
  static_assert(sizeof(ethtool_stats) == kHeadWords * sizeof(std::uint64_t));
  if (room_ == nullptr) room_.reset(new std::uint64_t[kHeadWords + std::size_t{2} * kMost]);
  ethtool_stats head{};
  head.cmd = ETHTOOL_GSTATS;
  head.n_stats = number;
  std::memcpy(room_.get(), &head, sizeof head);
  if (const int error = ask(interface, room_.get()); error != 0) return error;
  std::memcpy(&head, room_.get(), sizeof head);
  if (head.n_stats != number) return ESTALE;
  std::copy_n(room_.get() + kHeadWords, number, values.begin());
  return 0;
}

}  // namespace haiprof::host

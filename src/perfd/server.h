// Answers requests for counters: opens those in the plan of this machine, passes them on, and keeps
// none.
//
// One thread, which waits for no peer. A peer may be hostile: all that it can make the server keep
// is bounded by the constants below.
#pragma once

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "perf/opener.h"
#include "perf/perfd_wire.h"
#include "perfd/access.h"
#include "perfd/log.h"

namespace haiprof::perfd {

// A counter that may be passed on.
struct Counter {
  perf::Event event;
  int cpu = 0;

  bool operator==(const Counter&) const = default;
};

class Server {
 public:
  static constexpr std::size_t kConnections = 256;
  static constexpr std::size_t kConnectionsOfUser = 32;
  static constexpr std::uint32_t kCountersOfConnection = 4096;
  static constexpr std::uint32_t kCountersOfUser = 16384;  // in a minute
  static constexpr std::int64_t kIdleNs = 5'000'000'000;

  // find: the counters of this machine, asked again when something is wanted that was not there.
  Server(int listener, Access access, std::function<std::vector<Counter>()> find,
         std::string procfs);

  // The number of counters to pass on.
  std::size_t counters() const noexcept { return plan_.size(); }

  // Serves until `stop` is set by a handler of a signal that only `mask` lets through.
  void run(const volatile std::sig_atomic_t& stop, const sigset_t& mask);

 private:
  struct Connection {
    base::UniqueFd fd;
    Peer peer;
    std::int64_t heard_ns = 0;
    std::uint32_t passed = 0;  // counters
    bool silenced = false;     // it has not taken what it was given
  };
  // Of a user, who could connect again and again.
  struct Account {
    uid_t uid = 0;
    std::int64_t since_ns = 0;
    std::uint32_t passed = 0;
  };

  void accept_some();
  void welcome(base::UniqueFd fd);
  void serve(Connection& connection);
  perf::wire::Answer hand_out(Connection& connection, const perf::wire::Request& request,
                              std::vector<base::UniqueFd>& fds);
  bool plans(const Counter& counter) const noexcept;
  bool planned(const perf::wire::Request& request);
  bool charge(Connection& connection, std::uint32_t counters) noexcept;
  perf::wire::Answer denied(int error);
  void end_idle() noexcept;
  static bool holds_counters(const Connection& connection) noexcept;
  void refuse(int fd, const Peer& peer, int error, const std::string& reason,
              const std::string& fix);

  int listener_;
  Access access_;
  std::function<std::vector<Counter>()> find_;
  std::string procfs_;
  std::vector<Counter> plan_;
  std::int64_t planned_ns_ = 0;
  std::int64_t now_ns_ = 0;
  std::int64_t deaf_until_ns_ = 0;  // no descriptor is left for another connection
  std::array<Connection, kConnections> connections_;
  std::array<Account, kConnections> accounts_{};
  Log log_;
};

}  // namespace haiprof::perfd

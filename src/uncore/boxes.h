// The opened boxes of a plan, and their counts per second, by socket and over all sockets.
//
// A sum is only given when all its parts were read: without one of its memory channels, a socket's
// sum would look like a smaller value, not like a missing one.
#pragma once

#include <sched.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "perf/opener.h"
#include "sampler/source.h"
#include "uncore/meter.h"
#include "uncore/plan.h"

namespace haiprof::uncore {

inline constexpr std::size_t kQuantities = static_cast<std::size_t>(Quantity::dram_energy) + 1;

class Boxes {
 public:
  // Readings in which a counter did not run at all before that is its status.
  static constexpr unsigned kIdleReadings = 3;
  static constexpr std::uint64_t kRetryNs = 60'000'000'000;

  // Closes what is open and opens the plan's boxes of these quantities. most: what a socket can
  // do in a second.
  void open(const Plan& plan, std::span<const Quantity> quantities, double most,
            perf::Opener& opener);

  // Now and then tries again what could not be opened.
  void retry(std::uint64_t now_ns, perf::Opener& opener);

  // False when counters disappeared for good: the machine has changed, and needs a new plan.
  bool read();

  // If the sum of these is more than a socket can do, makes each smaller by the same factor, and
  // flags it.
  void limit(std::initializer_list<Quantity> together, double most) noexcept;

  // If it is more than this, flags each as it is: what is known of the machine may be wrong.
  void flag(std::initializer_list<Quantity> together, double most, std::uint32_t flags) noexcept;

  // Of the last reading.
  std::optional<Rate> of(Quantity quantity, unsigned socket) const noexcept;
  std::optional<Rate> of_node(Quantity quantity) const noexcept;

  // Whether the plan has it, and whether it is open on at least one socket.
  bool planned(Quantity quantity) const noexcept;
  bool counted(Quantity quantity) const noexcept;
  unsigned sockets() const noexcept { return sockets_; }

  // Of boxes with any of these quantities: ok when all are open and count, else the first that is
  // not, with its name.
  sampler::Status status(std::span<const Quantity> quantities) const;

  // Whether a status has changed since the last call.
  bool take_changed() noexcept { return std::exchange(changed_, false); }

 private:
  struct Open {
    Box box;
    std::vector<perf::Event> events;
    std::vector<Meter> meters;
    std::vector<perf::Reading> readings;
    std::unique_ptr<perf::Group> group;
    sampler::Status status;                   // not ok: why it is not open
    std::optional<std::uint64_t> enabled_ns;  // at the last reading
    unsigned idle = 0;
  };

  // The boxes that are read on one socket's CPUs. Theirs may be the traffic of another.
  struct Place {
    cpu_set_t cpus;
    std::vector<std::size_t> boxes;
  };

  struct Cell {
    unsigned planned = 0;
    unsigned opened = 0;
    unsigned read = 0;
    Rate sum;

    bool open() const noexcept { return planned != 0 && opened == planned; }
    bool complete() const noexcept { return planned != 0 && read == planned; }
  };

  double sum(std::initializer_list<Quantity> together, unsigned socket) const noexcept;
  Cell& cell(Quantity quantity, unsigned socket) noexcept;
  const Cell& cell(Quantity quantity, unsigned socket) const noexcept;
  void open_missing(perf::Opener& opener);
  int open_one(Open& one, perf::Opener& opener);
  void find_places(const Plan& plan);
  void close_useless() noexcept;
  bool read_one(Open& one);

  std::vector<Open> boxes_;
  std::vector<Place> places_;
  std::vector<Cell> cells_;  // of each quantity, of each socket
  unsigned sockets_ = 0;
  std::uint64_t retry_ns_ = 0;  // when that is due; 0 = nothing is missing
  bool changed_ = false;
};

}  // namespace haiprof::uncore

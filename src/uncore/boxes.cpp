#include "uncore/boxes.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "host/file.h"
#include "perf/own_opener.h"
#include "perf/visit.h"

namespace haiprof::uncore {

using sampler::State;
using sampler::Status;

namespace {

template <typename Quantities>
bool has(const Quantities& quantities, Quantity quantity) noexcept {
  return std::find(quantities.begin(), quantities.end(), quantity) != quantities.end();
}

std::string place(const Box& box) {
  return box.pmu + " on CPU " + std::to_string(box.cpu) + " (socket" + std::to_string(box.socket) +
         ")";
}

}  // namespace

Boxes::Cell& Boxes::cell(Quantity quantity, unsigned socket) noexcept {
  return cells_[static_cast<std::size_t>(quantity) * sockets_ + socket];
}

const Boxes::Cell& Boxes::cell(Quantity quantity, unsigned socket) const noexcept {
  return cells_[static_cast<std::size_t>(quantity) * sockets_ + socket];
}

void Boxes::open(const Plan& plan, std::span<const Quantity> quantities, double most,
                 perf::Opener& opener) {
  boxes_.clear();
  retry_ns_ = 0;
  sockets_ = plan.sockets;
  for (const Box& box : plan.boxes) sockets_ = std::max(sockets_, box.socket + 1);
  cells_.assign(kQuantities * sockets_, {});
  for (const Box& planned : plan.boxes) {
    Open opening;
    opening.box = planned;
    std::erase_if(opening.box.counters, [&](const Counter& counter) {
      return !has(quantities, counter.quantity) || has(plan.incomplete, counter.quantity);
    });
    if (opening.box.counters.empty()) continue;
    for (const Counter& counter : opening.box.counters) {
      opening.events.push_back(counter.event);
      opening.meters.emplace_back(counter.scale, most);
      ++cell(counter.quantity, opening.box.socket).planned;
    }
    opening.readings.resize(opening.events.size());
    opening.status.state = State::absent;
    boxes_.push_back(std::move(opening));
  }
  find_places(plan);
  open_missing(opener);
}

void Boxes::find_places(const Plan& plan) {
  unsigned places = 1;
  for (const auto& [cpu, socket] : plan.socket_of_cpu) places = std::max(places, socket + 1);
  places_.assign(places, {});
  for (Place& place : places_) CPU_ZERO(&place.cpus);
  for (const auto& [cpu, socket] : plan.socket_of_cpu) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &places_[socket].cpus);
  }
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    const auto entry = plan.socket_of_cpu.find(boxes_[i].box.cpu);
    places_[entry == plan.socket_of_cpu.end() ? 0 : entry->second].boxes.push_back(i);
  }
}

void Boxes::retry(std::uint64_t now_ns, perf::Opener& opener) {
  const bool missing = std::any_of(boxes_.begin(), boxes_.end(),
                                   [](const Open& one) { return one.group == nullptr; });
  if (!missing) {
    retry_ns_ = 0;
  } else if (retry_ns_ == 0) {
    retry_ns_ = now_ns + kRetryNs;
  } else if (now_ns >= retry_ns_) {
    open_missing(opener);
    retry_ns_ = now_ns + kRetryNs;
  }
}

int Boxes::open_one(Open& one, perf::Opener& opener) {
  perf::Opened opened = opener.open(one.events, one.box.cpu);
  one.group = std::move(opened.group);
  one.idle = 0;
  one.enabled_ns.reset();
  for (Meter& meter : one.meters) meter.forget();
  one.status = {};
  if (one.group != nullptr) return 0;
  one.status.state = perf::is_denied(opened.error) ? State::denied : State::absent;
  one.status.reason = place(one.box) + ": " + opened.reason;
  one.status.fix = std::move(opened.fix);
  return opened.error;
}

void Boxes::open_missing(perf::Opener& opener) {
  changed_ = true;
  for (Open& one : boxes_) {
    if (one.group != nullptr) continue;
    const int error = open_one(one, opener);
    const bool none_left = error == EMFILE || error == ENFILE;
    if (!none_left && !perf::is_denied(error)) continue;
    // What applies to all is asked once, and the last descriptors are left to those who need them
    // more.
    const Status status = one.status;
    for (Open& each : boxes_) {
      if (none_left) each.group.reset();
      if (each.group == nullptr) each.status = status;
    }
    break;
  }
  close_useless();
}

void Boxes::close_useless() noexcept {
  for (Cell& each : cells_) each.opened = 0;
  for (const Open& one : boxes_) {
    if (one.group == nullptr) continue;
    for (const Counter& counter : one.box.counters) {
      ++cell(counter.quantity, one.box.socket).opened;
    }
  }
  for (Open& one : boxes_) {
    const bool useful = std::any_of(
        one.box.counters.begin(), one.box.counters.end(),
        [&](const Counter& counter) { return cell(counter.quantity, one.box.socket).open(); });
    if (!useful) one.group.reset();
  }
}

bool Boxes::read() {
  for (Cell& each : cells_) {
    each.read = 0;
    each.sum = {};
  }
  bool all_there = true;
  perf::Visit visit;
  // Those of the socket that the thread is on come first.
  const int cpu = sched_getcpu();
  const auto here = std::find_if(places_.begin(), places_.end(), [&](const Place& place) {
    return cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &place.cpus);
  });
  const auto first = static_cast<std::size_t>(here == places_.end() ? 0 : here - places_.begin());
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[(first + i) % places_.size()];
    const auto open = [&](std::size_t box) { return boxes_[box].group != nullptr; };
    const auto groups = std::count_if(place.boxes.begin(), place.boxes.end(), open);
    if (static_cast<std::size_t>(groups) >= perf::Visit::kWorth) visit.go(place.cpus);
    for (const std::size_t box : place.boxes) {
      if (open(box)) all_there = read_one(boxes_[box]) && all_there;
    }
  }
  return all_there;
}

bool Boxes::read_one(Open& one) {
  const int error = one.group->read(one.readings);
  const std::uint64_t enabled = one.readings.front().enabled_ns;
  const std::optional<std::uint64_t> before = std::exchange(one.enabled_ns, enabled);
  // The time of counters whose CPU went stands still, and the kernel goes on to read them.
  if (error != 0 || (before && enabled <= *before)) {
    changed_ = true;
    for (Meter& meter : one.meters) meter.forget();
    one.group.reset();
    one.status = {State::absent,
                  place(one.box) + ": the counters disappeared" +
                      (error == 0 || error == ENODATA ? "" : ": " + host::error_text(error)),
                  "haiprof retries automatically"};
    return false;
  }
  bool ran = !before;
  for (std::size_t i = 0; i < one.meters.size(); ++i) {
    const std::optional<Rate> rate = one.meters[i].take(one.readings[i]);
    if (!rate) continue;
    ran = true;
    Cell& sum = cell(one.box.counters[i].quantity, one.box.socket);
    ++sum.read;
    sum.sum.per_s += rate->per_s;
    sum.sum.flags |= rate->flags;
  }
  if (ran) {
    if (one.idle >= kIdleReadings) {
      one.status = {};
      changed_ = true;
    }
    one.idle = 0;
  } else if (++one.idle == kIdleReadings) {
    changed_ = true;
    one.status = {State::absent, place(one.box) + ": it gets no time to count, others do",
                  "stop what else counts there (perf stat, pcm, likwid, a monitoring agent)"};
  }
  return true;
}

double Boxes::sum(std::initializer_list<Quantity> together, unsigned socket) const noexcept {
  double total = 0;
  for (const Quantity quantity : together) total += cell(quantity, socket).sum.per_s;
  return total;
}

void Boxes::flag(std::initializer_list<Quantity> together, double most,
                 std::uint32_t flags) noexcept {
  for (unsigned socket = 0; socket < sockets_; ++socket) {
    if (!(sum(together, socket) > most)) continue;
    for (const Quantity quantity : together) cell(quantity, socket).sum.flags |= flags;
  }
}

void Boxes::limit(std::initializer_list<Quantity> together, double most) noexcept {
  for (unsigned socket = 0; socket < sockets_; ++socket) {
    const double total = sum(together, socket);
    if (!(total > most)) continue;
    for (const Quantity quantity : together) {
      Rate& sum = cell(quantity, socket).sum;
      sum.per_s *= most / total;
      sum.flags |= sampler::kImplausible;
    }
  }
}

std::optional<Rate> Boxes::of(Quantity quantity, unsigned socket) const noexcept {
  const Cell& sums = cell(quantity, socket);
  if (!sums.complete()) return {};
  return sums.sum;
}

std::optional<Rate> Boxes::of_node(Quantity quantity) const noexcept {
  Rate sum;
  for (unsigned socket = 0; socket < sockets_; ++socket) {
    const Cell& sums = cell(quantity, socket);
    if (!sums.complete()) return {};
    sum.per_s += sums.sum.per_s;
    sum.flags |= sums.sum.flags;
  }
  if (sockets_ == 0) return {};
  return sum;
}

bool Boxes::planned(Quantity quantity) const noexcept {
  for (unsigned socket = 0; socket < sockets_; ++socket) {
    if (cell(quantity, socket).planned != 0) return true;
  }
  return false;
}

bool Boxes::counted(Quantity quantity) const noexcept {
  for (unsigned socket = 0; socket < sockets_; ++socket) {
    if (cell(quantity, socket).open()) return true;
  }
  return false;
}

Status Boxes::status(std::span<const Quantity> quantities) const {
  for (const Open& one : boxes_) {
    const bool concerned =
        std::any_of(one.box.counters.begin(), one.box.counters.end(),
                    [&](const Counter& counter) { return has(quantities, counter.quantity); });
    if (concerned && !one.status.ok()) return one.status;
  }
  for (const Quantity quantity : quantities) {
    if (!planned(quantity)) continue;
    for (unsigned socket = 0; socket < sockets_; ++socket) {
      if (cell(quantity, socket).planned != 0) continue;
      return {State::absent, "the kernel shows no such counters of socket" + std::to_string(socket),
              ""};
    }
  }
  return {};
}

}  // namespace haiprof::uncore

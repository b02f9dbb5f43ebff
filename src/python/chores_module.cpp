// do_chores: waits in place of the recorder's Python, and does meanwhile what needs none.
#include <poll.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "python/chore.h"
#include "python/register.h"
#include "python/unlocked.h"
#include "ring/clock.h"

namespace py = pybind11;

namespace haiprof::python {
namespace {

// What is due this soon is done at once: to wake up again costs more.
constexpr std::uint64_t kEarlyNs = 125'000'000;
// A moment later than what it waits for, so that it is due.
constexpr std::uint64_t kMillisecond = 1'000'000;

struct Watched {
  int folder;
  std::int64_t changed_ns;

  bool changed() const noexcept {
    struct stat about{};
    if (fstat(folder, &about) != 0) return true;
    return about.st_mtim.tv_sec * std::int64_t{1'000'000'000} + about.st_mtim.tv_nsec != changed_ns;
  }
};

bool all_done(const std::vector<Chore*>& chores, std::uint64_t now_ns) noexcept {
  bool done = true;
  for (Chore* chore : chores) done = chore->go(now_ns) && done;
  return done;
}

// Returns which descriptors are ready.
std::vector<int> wait_and_work(std::vector<pollfd>& fds, std::uint64_t until_ns,
                               std::uint64_t every_ns, Watched watched,
                               const std::vector<Chore*>& often,
                               const std::vector<Chore*>& when_due) noexcept(false) {
  const std::uint64_t early_ns = std::min(every_ns / 2, kEarlyNs);
  std::uint64_t tick_ns = ring::clock_ns(CLOCK_MONOTONIC) + every_ns;
  for (;;) {
    std::uint64_t next_ns = std::min(until_ns, often.empty() ? until_ns : tick_ns);
    for (Chore* chore : when_due) next_ns = std::min(next_ns, chore->due_ns());
    const std::uint64_t before_ns = ring::clock_ns(CLOCK_MONOTONIC);
    const std::uint64_t wait_ns = next_ns > before_ns ? next_ns - before_ns : 0;
    const auto wait_ms = static_cast<int>(
        std::min<std::uint64_t>((wait_ns + kMillisecond - 1) / kMillisecond, 3'600'000));
    const int ready = poll(fds.data(), fds.size(), wait_ms);
    if (ready != 0) break;  // a signal is for Python, too
    const std::uint64_t now_ns = ring::clock_ns(CLOCK_MONOTONIC);
    const bool done = all_done(when_due, now_ns);
    if (now_ns + early_ns >= until_ns || !done) break;
    if (now_ns + early_ns < tick_ns) continue;
    tick_ns = now_ns + every_ns;
    if (watched.changed() || !all_done(often, now_ns)) break;
  }
  std::vector<int> found;
  for (const pollfd& fd : fds) {
    if (fd.revents != 0) found.push_back(fd.fd);
  }
  return found;
}

std::vector<int> do_chores(const std::vector<int>& fds, std::uint64_t until_ns,
                           std::uint64_t every_ns, int folder, std::int64_t changed_ns,
                           const std::vector<Chore*>& often, const std::vector<Chore*>& when_due) {
  std::vector<pollfd> polled;
  for (const int fd : fds) polled.push_back({fd, POLLIN, 0});
  const Unlocked unlocked;
  return wait_and_work(polled, until_ns, every_ns, {folder, changed_ns}, often, when_due);
}

}  // namespace

void register_chores(py::module_& module) {
  py::class_<Chore>(module, "Chore");
  module.def("do_chores", &do_chores, py::arg("fds"), py::kw_only(), py::arg("until_ns"),
             py::arg("every_ns"), py::arg("folder"), py::arg("changed_ns"), py::arg("often"),
             py::arg("when_due"));
}

}  // namespace haiprof::python

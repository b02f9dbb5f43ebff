// Groups of counters by descriptors: what they read, and what is said when they cannot.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <iostream>
#include <vector>

#include "check.h"
#include "perf/open_group.h"

using namespace haiprof;
using base::UniqueFd;
using perf::Event;
using perf::FdGroup;
using perf::Reading;

namespace {

// PERF_TYPE_SOFTWARE, which every machine has: cpu-clock counts nanoseconds, page-faults events.
constexpr Event kCpuClock{1, 0, 0, 0};
constexpr Event kPageFaults{1, 2, 0, 0};

void refuses_what_no_pmu_has() {
  std::vector<UniqueFd> fds;
  CHECK_EQUAL(perf::open_group({}, 0, fds), EINVAL);
  const std::vector<Event> many(perf::kMaxGroup + 1, kCpuClock);
  CHECK_EQUAL(perf::open_group(many, 0, fds), EINVAL);
  const Event one[] = {kCpuClock};
  CHECK_EQUAL(perf::open_group(one, -1, fds), EINVAL);
  CHECK(perf::open_group(one, 1 << 20, fds) != 0);
  const Event unknown[] = {{0x7fffffff, 0, 0, 0}};
  CHECK(perf::open_group(unknown, 0, fds) != 0);
  CHECK(fds.empty());
}

void closes_all_when_a_later_one_fails() {
  std::vector<UniqueFd> fds;
  const Event events[] = {kCpuClock, {0x7fffffff, 0, 0, 0}};
  const int before = dup(0);
  close(before);
  CHECK(perf::open_group(events, 0, fds) != 0);
  CHECK(fds.empty());
  const int after = dup(0);
  close(after);
  CHECK_EQUAL(after, before);
}

// Needs CAP_PERFMON or perf_event_paranoid <= 0; says so where it has neither.
void reads_a_live_group() {
  std::vector<UniqueFd> fds;
  const Event events[] = {kCpuClock, kPageFaults};
  const int error = perf::open_group(events, 0, fds);
  if (error == EACCES || error == EPERM) {
    std::cout << "not allowed to open counters here: live groups are left out\n";
    return;
  }
  CHECK_EQUAL(error, 0);
  CHECK_EQUAL(fds.size(), 2u);
  for (const UniqueFd& fd : fds) CHECK_EQUAL(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
  FdGroup group(std::move(fds));
  Reading first[2], second[2], too_few[1];
  CHECK_EQUAL(group.read(too_few), EINVAL);
  CHECK_EQUAL(group.read(first), 0);
  usleep(20'000);
  CHECK_EQUAL(group.read(second), 0);
  const std::uint64_t enabled = second[0].enabled_ns - first[0].enabled_ns;
  CHECK(enabled >= 20'000'000);
  CHECK_EQUAL(second[0].running_ns - first[0].running_ns, enabled);
  const std::uint64_t clock = second[0].count - first[0].count;
  CHECK(clock > enabled * 9 / 10 && clock < enabled * 11 / 10);
  CHECK_EQUAL(second[1].enabled_ns, second[0].enabled_ns);
}

// Stand-ins for counters that the kernel has given up.
void counters_that_disappeared_have_no_data() {
  const auto read_of = [](const std::vector<std::uint64_t>& words, std::size_t members) {
    int ends[2];
    CHECK_EQUAL(pipe(ends), 0);
    UniqueFd writer(ends[1]);
    const auto bytes = static_cast<ssize_t>(words.size() * sizeof(std::uint64_t));
    if (bytes > 0) CHECK_EQUAL(write(writer.get(), words.data(), std::size_t(bytes)), bytes);
    writer.reset();
    std::vector<UniqueFd> fds;
    fds.emplace_back(ends[0]);
    while (fds.size() < members) fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    FdGroup group(std::move(fds));
    std::vector<Reading> readings(members);
    return group.read(readings);
  };
  CHECK_EQUAL(read_of({1, 7, 7, 42}, 1), 0);
  CHECK_EQUAL(read_of({}, 1), ENODATA);
  CHECK_EQUAL(read_of({1, 7, 7, 42}, 2), ENODATA);
  CHECK_EQUAL(read_of({1, 7, 7, 42, 42}, 2), ENODATA);
  CHECK_EQUAL(read_of({7, 7}, 1), ENODATA);
  std::vector<UniqueFd> closed(1);
  FdGroup group(std::move(closed));
  Reading reading[1];
  CHECK_EQUAL(group.read(reading), EBADF);
}

}  // namespace

int main() {
  refuses_what_no_pmu_has();
  closes_all_when_a_later_one_fails();
  reads_a_live_group();
  counters_that_disappeared_have_no_data();
  return test::result();
}

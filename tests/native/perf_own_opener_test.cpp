// Counters that a process opens itself, and what it says when it may not or cannot.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "check.h"
#include "perf/opener.h"
#include "perf/own_opener.h"

using namespace haiprof;
using perf::Event;
using perf::Opened;
using perf::Reading;

namespace {

// PERF_TYPE_SOFTWARE, cpu-clock: nanoseconds.
constexpr Event kCpuClock{1, 0, 0, 0};

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void every_refusal_has_a_reason_and_a_fix() {
  for (const int error : {EACCES, EPERM, EBUSY, ENOENT, EOPNOTSUPP, ENODEV, ENXIO, EINVAL, EMFILE,
                          ENFILE, ENOSYS, ENOMEM, E2BIG}) {
    const Opened refused = perf::refused(error, "/proc");
    CHECK_EQUAL(refused.error, error);
    CHECK(refused.group == nullptr);
    CHECK(!refused.reason.empty());
    CHECK(!refused.fix.empty());
    CHECK(!says(refused.reason + refused.fix, "\n"));
  }
  CHECK(says(perf::refused(EBUSY, "/proc").reason, "another tool"));
  CHECK(says(perf::refused(EMFILE, "/proc").fix, "ulimit -n"));
  CHECK(says(perf::refused(ENOMEM, "/proc").reason, "annot allocate memory"));
}

// In a child without rights, since they are the process's.
bool without_rights(bool (*check)()) {
  const pid_t child = fork();
  if (child == 0) {
    const bool dropped = geteuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0);
    _exit(dropped && check() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string procfs_with(const std::string& paranoid) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("haiprof-own-opener-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder / "sys/kernel");
  std::ofstream(folder / "sys/kernel/perf_event_paranoid") << paranoid << "\n";
  return folder;
}

void a_denial_names_what_the_kernel_allows_and_the_fixes() {
  CHECK(without_rights([] {
    const std::string procfs = procfs_with("3");
    const Opened refused = perf::refused(EACCES, procfs);
    std::filesystem::remove_all(procfs);
    return says(refused.reason, "kernel.perf_event_paranoid is 3") &&
           says(refused.reason, "no CAP_PERFMON") && says(refused.fix, "setcap cap_perfmon+ep") &&
           says(refused.fix, "sysctl kernel.perf_event_paranoid=0") &&
           says(refused.fix, "haiprof-perfd") && says(refused.fix, "PERFMON");
  }));
  CHECK(without_rights([] {
    return says(perf::refused(EPERM, "/nowhere").reason, "kernel.perf_event_paranoid is unknown");
  }));
}

void a_denial_in_spite_of_the_right_names_seccomp() {
  const std::string procfs = procfs_with("-1");
  const Opened refused = perf::refused(EPERM, procfs);
  std::filesystem::remove_all(procfs);
  CHECK(says(refused.reason, "kernel.perf_event_paranoid is -1"));
  CHECK(says(refused.reason, "seccomp"));
  CHECK(says(refused.fix, "--cap-add PERFMON"));
}

// Needs CAP_PERFMON or perf_event_paranoid <= 0; says so where it has neither.
void counters_of_a_cpu_count_its_time() {
  const auto opener = perf::make_opener("/proc", "");
  const Event events[] = {kCpuClock, kCpuClock};
  const Opened opened = opener->open(events, 0);
  if (perf::is_denied(opened.error)) {
    std::cout << "not allowed to open counters here: " << opened.reason << "\n";
    return;
  }
  CHECK_EQUAL(opened.error, 0);
  CHECK(opened.group != nullptr);
  Reading first[2], second[2];
  CHECK_EQUAL(opened.group->read(first), 0);
  usleep(50'000);
  CHECK_EQUAL(opened.group->read(second), 0);
  for (int i = 0; i < 2; ++i) {
    const auto counted = static_cast<double>(second[i].count - first[i].count);
    const auto ran = static_cast<double>(second[i].running_ns - first[i].running_ns);
    CHECK(ran >= 50e6);
    CHECK(counted > ran * 0.995 && counted < ran * 1.005);
  }
}

void what_is_not_there_is_refused() {
  const auto opener = perf::make_own_opener("/proc");
  const Event unknown[] = {{0x7fffffff, 0, 0, 0}};
  const Opened opened = opener->open(unknown, 0);
  CHECK(opened.group == nullptr);
  CHECK(opened.error != 0);
  CHECK(!opened.reason.empty());
  const Event clock[] = {kCpuClock};
  CHECK(opener->open(clock, 1 << 20).group == nullptr);
}

void no_descriptor_outlives_its_group() {
  const auto count = [] {
    int open = 0;
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
      open += each.is_symlink() ? 1 : 0;
    }
    return open;
  };
  const auto opener = perf::make_own_opener("/proc");
  const int before = count();
  const Event half[] = {kCpuClock, {0x7fffffff, 0, 0, 0}};
  for (int i = 0; i < 10; ++i) opener->open(half, 0);
  const Event whole[] = {kCpuClock, kCpuClock};
  for (int i = 0; i < 10; ++i) opener->open(whole, 0);
  CHECK_EQUAL(count(), before);
}

}  // namespace

int main() {
  every_refusal_has_a_reason_and_a_fix();
  a_denial_names_what_the_kernel_allows_and_the_fixes();
  a_denial_in_spite_of_the_right_names_seccomp();
  counters_of_a_cpu_count_its_time();
  what_is_not_there_is_refused();
  no_descriptor_outlives_its_group();
  return test::result();
}

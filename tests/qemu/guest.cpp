// The only program of an emulated machine: loads the kernel's uncore driver, makes the plan of its
// counters, opens and reads every one, lets the sampler do the same, and turns the machine off.
//
// What it finds it prints, one thing a line; tests/qemu/test_uncore.py reads that.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "perf/opener.h"
#include "sampler/sampler.h"
#include "uncore/plan.h"
#include "uncore/sources.h"

namespace {

using namespace haiprof;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr const char* kModules[] = {"/intel-uncore.ko", "/rapl.ko"};

bool asked_for(const char* word) {
  char line[1024] = {};
  const int fd = open("/proc/cmdline", O_RDONLY);
  const ssize_t bytes = read(fd, line, sizeof line - 1);
  close(fd);
  return bytes > 0 && std::strstr(line, word) != nullptr;
}

void load_modules() {
  for (const char* module : kModules) {
    const int fd = open(module, O_RDONLY);
    if (fd < 0) continue;
    const long failed = syscall(SYS_finit_module, fd, "", 0);
    std::printf("module\t%s\t%s\n", module, failed == 0 ? "loaded" : std::strerror(errno));
    close(fd);
  }
}

void read_every_counter(const uncore::Plan& plan) {
  const auto opener = perf::make_own_opener("/proc");
  for (const uncore::Box& box : plan.boxes) {
    std::vector<perf::Event> events;
    for (const uncore::Counter& counter : box.counters) events.push_back(counter.event);
    perf::Opened opened = opener->open(events, box.cpu);
    if (opened.group == nullptr) {
      std::printf("refused\t%s\t%d\t%s\n", box.pmu.c_str(), box.cpu, opened.reason.c_str());
      continue;
    }
    std::vector<perf::Reading> readings(events.size());
    const int error = opened.group->read(readings);
    for (const perf::Reading& reading : readings) {
      std::printf("reading\t%s\t%d\t%d\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\n", box.pmu.c_str(),
                  box.cpu, error, reading.count, reading.enabled_ns, reading.running_ns);
    }
  }
}

void sample() {
  sampler::Sampler sampler;
  uncore::add_sources(sampler, {}, {.mem_ns = kSecond, .power_ns = kSecond});
  for (int i = 0; i < 3; ++i) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    for (const sampler::Value& value :
         sampler.read(static_cast<std::uint64_t>(now.tv_sec) * kSecond +
                      static_cast<std::uint64_t>(now.tv_nsec))) {
      std::printf("sample\t%d\t%s\t%s\t%.17g\t%u\n", i, value.metric->c_str(),
                  value.instance == nullptr ? "" : value.instance->c_str(), value.value,
                  value.flags);
    }
    sleep(1);
  }
  for (const sampler::Report& report : sampler.sources()) {
    std::printf("source\t%s\t%s\t%s\t%.1f\n", report.part.name.c_str(),
                sampler::text(report.part.status.state), report.part.status.reason.c_str(),
                static_cast<double>(report.cost_ns) * 1e-3);
  }
}

}  // namespace

int main() {
  mkdir("/proc", 0755);
  mkdir("/sys", 0755);
  if (mount("proc", "/proc", "proc", 0, nullptr) != 0 ||
      mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0) {
    std::perror("mount");
  }
  load_modules();
  const uncore::Plan plan = uncore::make_plan({});
  for (const std::string& problem : plan.problems) std::printf("problem\t%s\n", problem.c_str());
  for (const uncore::Box& box : plan.boxes) {
    for (const uncore::Counter& counter : box.counters) {
      std::printf("counter\t%s\t%u\t%d\t%s\t0x%" PRIx64 "\t%.17g\t%u\n", box.pmu.c_str(),
                  counter.event.type, box.cpu, uncore::text(counter.quantity).data(),
                  counter.event.config, counter.scale, box.socket);
    }
  }
  if (!asked_for("haiprof.plan_only")) {
    read_every_counter(plan);
    sample();
  }
  std::printf("done\n");
  std::fflush(stdout);
  sync();
  reboot(RB_POWER_OFF);
}

// The share of far fills, with counters of the kernel's software PMU in the place of the cores':
// page faults are as exact as they are everywhere.
#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "sampler/sampler.h"
#include "uncore/core_counters.h"

namespace {

using namespace haiprof;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr perf::Event kFaults{.type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_PAGE_FAULTS};
constexpr perf::Event kSmall{.type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_PAGE_FAULTS_MIN};
constexpr perf::Event kBig{.type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_PAGE_FAULTS_MAJ};
constexpr perf::Event kNone{.type = PERF_TYPE_SOFTWARE, .config = 0xffff};

// A process that makes a given number of page faults.
class Faulter {
 public:
  // idle: threads of it that do nothing.
  explicit Faulter(unsigned idle = 0) {
    CHECK_EQUAL(pipe(to_), 0);
    CHECK_EQUAL(pipe(from_), 0);
    pid_ = fork();
    if (pid_ == 0) serve(idle);
    fault(0);  // it has begun
  }
  Faulter(const Faulter&) = delete;
  Faulter& operator=(const Faulter&) = delete;
  ~Faulter() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    for (const int fd : {to_[0], to_[1], from_[0], from_[1]}) close(fd);
  }

  pid_t pid() const { return pid_; }

  void fault(unsigned pages) {
    char done = 0;
    CHECK_EQUAL(write(to_[1], &pages, sizeof pages), static_cast<ssize_t>(sizeof pages));
    CHECK_EQUAL(read(from_[0], &done, 1), 1);
  }

 private:
  [[noreturn]] void serve(unsigned idle) {
    close(to_[1]);
    for (unsigned i = 0; i < idle; ++i) std::thread([] { pause(); }).detach();
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    unsigned pages = 0;
    while (read(to_[0], &pages, sizeof pages) == sizeof pages) {
      const std::size_t bytes = (pages + 1) * page;
      void* memory =
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) _exit(1);
      madvise(memory, bytes, MADV_NOHUGEPAGE);
      for (std::size_t at = 0; at < bytes; at += page) static_cast<volatile char*>(memory)[at] = 1;
      munmap(memory, bytes);
      if (write(from_[1], "", 1) != 1) break;
    }
    _exit(0);
  }

  int to_[2];
  int from_[2];
  pid_t pid_;
};

class Reader {
 public:
  explicit Reader(const uncore::Fills& fills)
      : source_(uncore::make_core_counters(host::Roots{}, fills)) {}

  sampler::Status open() { return source_->open(table_); }
  void watch(pid_t pid) { source_->watch(pid, table_); }
  void unwatch(pid_t pid) { source_->unwatch(pid, table_); }
  sampler::Status status() { return source_->describe({})[0].status; }

  // The ratio, or -1 when there is none.
  double read(std::uint64_t seconds = 1) {
    const std::uint64_t last = now_;
    now_ += seconds * kSecond;
    table_.clear_values();
    table_.begin(now_, last, kSecond);
    CHECK(source_->read(table_).ok());
    if (table_.values().empty()) return -1;
    CHECK_EQUAL(table_.values().size(), 1u);
    const sampler::Value& value = table_.values()[0];
    CHECK_EQUAL(*value.metric, "proc.far_fills.ratio");
    CHECK(value.instance == nullptr);
    target_ = value.target;
    return value.value;
  }

  pid_t target() const { return target_; }

 private:
  sampler::SeriesTable table_;
  std::unique_ptr<sampler::Source> source_;
  std::uint64_t now_ = 100 * kSecond;
  pid_t target_ = 0;
};

double ratio_of(const perf::Event& near, const perf::Event& far, unsigned pages) {
  Faulter process;
  Reader reader({near, far});
  CHECK(reader.open().ok());
  reader.watch(process.pid());
  CHECK_EQUAL(reader.read(), -1);  // opens the counters
  process.fault(pages);
  const double ratio = reader.read();
  if (ratio >= 0) CHECK_EQUAL(reader.target(), process.pid());
  return ratio;
}

void far_share_of_what_both_counters_counted() {
  CHECK_EQUAL(ratio_of(kSmall, kBig, 5000), 0.0);
  CHECK_EQUAL(ratio_of(kBig, kSmall, 5000), 1.0);
  CHECK_EQUAL(ratio_of(kFaults, kSmall, 5000), 0.5);
}

void few_fills_are_no_ratio() { CHECK_EQUAL(ratio_of(kSmall, kBig, 200), -1); }

void it_counts_a_tenth_of_the_time() {
  Faulter process;
  Reader reader({kSmall, kBig});
  CHECK(reader.open().ok());
  reader.watch(process.pid());
  int counted = 0;
  for (int second = 0; second < 40; ++second) {
    if (reader.read() >= 0) ++counted;
    process.fault(2000);
  }
  CHECK_EQUAL(counted, 4);
}

void a_process_that_ends_while_it_is_counted_keeps_its_count() {
  Reader reader({kSmall, kBig});
  CHECK(reader.open().ok());
  {
    Faulter process;
    reader.watch(process.pid());
    CHECK_EQUAL(reader.read(), -1);
    process.fault(5000);
  }
  CHECK_EQUAL(reader.read(), 0.0);
  CHECK_EQUAL(reader.read(9), -1);
  CHECK_EQUAL(reader.read(), -1);
}

void a_process_that_is_let_go_has_no_value() {
  Faulter process;
  Reader reader({kSmall, kBig});
  CHECK(reader.open().ok());
  reader.watch(process.pid());
  CHECK_EQUAL(reader.read(), -1);
  process.fault(5000);
  reader.unwatch(process.pid());
  CHECK_EQUAL(reader.read(), -1);
  CHECK(reader.status().reason.find("no process is watched") != std::string::npos);
}

void counters_that_are_not_there() {
  Reader reader({kNone, kSmall});
  const sampler::Status status = reader.open();
  CHECK(status.state == sampler::State::absent);
  CHECK(status.reason.find("virtual machine") != std::string::npos);
  CHECK(!status.fix.empty());
}

// Uses the processor until the kernel's accounts of it cannot miss that.
void work() {
  const std::clock_t end = std::clock() + CLOCKS_PER_SEC / 10;
  while (std::clock() < end) {
  }
}

void the_last_of_many_processes_has_its_share_of_the_counters() {
  std::vector<std::unique_ptr<Faulter>> others;
  for (int i = 0; i < 8; ++i) others.push_back(std::make_unique<Faulter>(20));
  Faulter last;
  Reader reader({kSmall, kBig});
  CHECK(reader.open().ok());
  for (const auto& other : others) reader.watch(other->pid());
  reader.watch(last.pid());
  CHECK_EQUAL(reader.read(), -1);
  last.fault(5000);
  CHECK_EQUAL(reader.read(), 0.0);
  CHECK_EQUAL(reader.target(), last.pid());
}

// A thousand files by thread and process: what their reading costs is rested for.
void a_look_at_many_threads_is_followed_by_a_longer_rest() {
  std::string root = "/dev/shm/haiprof-threads-XXXXXX";
  CHECK(mkdtemp(root.data()) != nullptr);
  const auto write = [&](const std::string& name, pid_t pid) {
    std::filesystem::create_directories(std::filesystem::path(root + name).parent_path());
    std::ofstream(root + name) << pid << " (x) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 5 0 0 0 0 0 "
                               << "0 0 0 0 0 0 0 0 0 0 0 17 0\n";
  };
  constexpr pid_t kFirst = 4'180'000;  // as good as never given to anybody
  host::Roots roots;
  roots.own_procfs = root;
  const auto source = uncore::make_core_counters(roots, {kSmall, kBig});
  sampler::SeriesTable table;
  CHECK(source->open(table).ok());
  for (pid_t pid = kFirst; pid < kFirst + 10; ++pid) {
    write("/" + std::to_string(pid) + "/stat", pid);
    for (pid_t tid = pid; tid < pid + 1000; ++tid) {
      write("/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/stat", tid);
    }
    source->watch(pid, table);
  }
  std::uint64_t now = 0;
  const auto cost = [&](std::uint64_t seconds) {
    table.begin(now + seconds * kSecond, now, kSecond);
    now += seconds * kSecond;
    const std::clock_t before = std::clock();
    CHECK(source->read(table).ok());
    return static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  };
  const double look = cost(100);
  cost(1);
  const double rest = look / sampler::kShare;
  CHECK(rest > 9.5);  // else this shows nothing
  CHECK(cost(static_cast<std::uint64_t>(rest * 0.8)) < look / 4);
  CHECK(cost(static_cast<std::uint64_t>(rest * 2)) > look / 4);
  std::filesystem::remove_all(root);
}

// A helper of another user below the process, a daemon say, hides nothing of the others.
void one_thread_that_may_not_be_counted() {
  if (geteuid() != 0) {
    std::cout << "one_thread_that_may_not_be_counted: needs root, skipped\n";
    return;
  }
  int paranoid = 0;
  std::ifstream("/proc/sys/kernel/perf_event_paranoid") >> paranoid;
  if (paranoid > 2) {
    std::cout << "one_thread_that_may_not_be_counted: perf_event_paranoid > 2, skipped\n";
    return;
  }
  const pid_t child = fork();
  if (child == 0) {
    int alive[2];
    if (pipe(alive) != 0) _exit(2);
    if (fork() == 0) {
      close(alive[1]);
      work();
      char none = 0;
      _exit(read(alive[0], &none, 1) == 0 ? 0 : 1);  // it ends with its parent
    }
    usleep(300'000);
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) _exit(3);
    prctl(PR_SET_DUMPABLE, 1);  // else not even this process may be counted
    Reader reader({kSmall, kBig});
    if (!reader.open().ok()) _exit(4);
    reader.watch(getpid());
    if (reader.read() != -1) _exit(5);
    std::vector<char> pages(std::size_t{64} << 20);
    for (std::size_t at = 0; at < pages.size(); at += 4096) pages[at] = 1;
    const bool counted = reader.read() >= 0;
    _exit(counted && reader.status().ok() ? 0 : 6);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQUAL(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
}

// Nobody may count in the processes of root.
void processes_of_others() {
  if (geteuid() != 0) {
    std::cout << "processes_of_others: needs root, skipped\n";
    return;
  }
  std::ifstream file("/proc/sys/kernel/perf_event_paranoid");
  int paranoid = 0;
  file >> paranoid;
  const Faulter other;
  const pid_t child = fork();
  if (child == 0) {
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) _exit(3);
    Reader reader({kSmall, kBig});
    const sampler::Status status = reader.open();
    if (paranoid > 2) _exit(status.state == sampler::State::denied ? 0 : 4);
    if (!status.ok()) _exit(5);
    reader.watch(other.pid());
    reader.read();
    const sampler::Status after = reader.status();
    const bool explained = after.reason.find("perf_event_paranoid is") != std::string::npos;
    _exit(after.state == sampler::State::denied && explained ? 0 : 6);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQUAL(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
}

void events_of_each_cpu() {
  const auto far = [](const char* vendor, unsigned family, unsigned model) -> std::uint64_t {
    const auto fills = uncore::fills_of({vendor, family, model});
    if (!fills) return 0;
    CHECK_EQUAL(fills->near.type, std::uint32_t{PERF_TYPE_RAW});
    CHECK_EQUAL(fills->near.config & 0xff, fills->far.config & 0xff);
    return fills->far.config;
  };
  CHECK_EQUAL(far("AuthenticAMD", 0x17, 0x31), 0x4043u);  // Rome
  CHECK_EQUAL(far("AuthenticAMD", 0x19, 0x01), 0x4044u);  // Milan
  CHECK_EQUAL(far("AuthenticAMD", 0x19, 0x11), 0x4044u);  // Genoa
  CHECK_EQUAL(far("AuthenticAMD", 0x1a, 0x02), 0x4044u);  // Turin
  CHECK_EQUAL(far("AuthenticAMD", 0x17, 0x01), 0u);       // Naples
  CHECK_EQUAL(far("AuthenticAMD", 0x1a, 0x50), 0u);       // Zen 6
  CHECK_EQUAL(far("GenuineIntel", 6, 0x6a), 0x02d3u);     // Ice Lake
  CHECK_EQUAL(far("GenuineIntel", 6, 0xaf), 0u);          // Sierra Forest
  CHECK_EQUAL(far("GenuineIntel", 15, 0x6a), 0u);
  CHECK_EQUAL(far("HygonGenuine", 0x18, 0), 0u);
  CHECK_EQUAL(uncore::fills_of({"AuthenticAMD", 0x19, 1})->near.config, 0x0844u);
  CHECK_EQUAL(uncore::fills_of({"GenuineIntel", 6, 0x8f})->near.config, 0x01d3u);
}

void cpus_without_such_counters_say_so() {
  sampler::SeriesTable table;
  const auto reason = [&](const std::optional<uncore::Cpu>& cpu) {
    return uncore::make_core_counters(host::Roots{}, cpu)->open(table).reason;
  };
  CHECK_EQUAL(reason({}), "/proc/cpuinfo does not say which CPU this is");
  CHECK_EQUAL(reason(uncore::Cpu{"ARM", 0x41, 0xd4f}),
              "no counters of near and far memory are known for ARM family 65 model 3407");
}

}  // namespace

int main() {
  far_share_of_what_both_counters_counted();
  few_fills_are_no_ratio();
  it_counts_a_tenth_of_the_time();
  a_process_that_ends_while_it_is_counted_keeps_its_count();
  a_process_that_is_let_go_has_no_value();
  counters_that_are_not_there();
  the_last_of_many_processes_has_its_share_of_the_counters();
  a_look_at_many_threads_is_followed_by_a_longer_rest();
  one_thread_that_may_not_be_counted();
  processes_of_others();
  events_of_each_cpu();
  cpus_without_such_counters_say_so();
  return haiprof::test::result();
}

// A job that launches kernels all the time, recorded by the collector, while a Kineto runs
// sessions.
//
//   handover_job RING LIBKINETO SCENARIO SESSIONS
//
// Scenarios:
//   after      haiprof begins, then the sessions, some of them right after the other
//   before     the first session has begun when haiprof begins
//   notified   the second has, and haiprof is notified
//   running    a kernel runs from before each session into it
//   alone      the same, and nobody else launches anything
//   queued     the same, and the GPU is still busy with earlier work when the session ends
//   long       a kernel runs from before each session until after it
//   slow       Kineto takes its time before it flushes
//   toggled    each session is switched off, and stopped when haiprof records again
//   stopped    haiprof stops and begins again while the session lasts
//   forked     the process forks while the session lasts; the child stops both
//   skewed     some of haiprof's records have times of no clock
//
// Prints one JSON object: what Kineto got, and what it should have.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gpu/collector.h"
#include "in_use.h"
#include "ring/writer.h"

using namespace haiprof;
using std::chrono::milliseconds;

namespace {

// -- the job, its driver and its Kineto ----------------------------------------------------------

template <typename Function>
Function find(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_GLOBAL);
  void* const symbol = handle == nullptr ? nullptr : dlsym(handle, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(1);
  }
  return reinterpret_cast<Function>(symbol);
}

constexpr const char* kCupti = "libcupti.so.13";
const auto launch = find<void (*)(const char*, std::uint64_t)>(kCupti, "fake_launch");
const auto begin_kernel = find<std::uint32_t (*)(const char*)>(kCupti, "fake_begin");
const auto queue = find<void (*)(const char*, std::uint64_t)>(kCupti, "fake_queue");
const auto end_kernel = find<void (*)(std::uint32_t)>(kCupti, "fake_end");
const auto newest = find<std::uint32_t (*)()>(kCupti, "fake_correlation");
const auto launched = find<std::uint64_t (*)(std::uint32_t)>(kCupti, "fake_launched");
const auto skew = find<void (*)(std::uint32_t)>(kCupti, "fake_skew");
const auto dirty = find<std::uint64_t (*)()>(kCupti, "fake_dirty");
const auto flips = find<std::uint64_t (*)()>(kCupti, "fake_flips");
const auto clocks = find<std::uint64_t (*)()>(kCupti, "fake_clocks");

struct Kineto {
  explicit Kineto(const char* path)
      : prepare(find<void (*)()>(path, "kineto_prepare")),
        warm_up(find<void (*)()>(path, "kineto_warm_up")),
        start(find<void (*)()>(path, "kineto_start")),
        stop(find<void (*)()>(path, "kineto_stop")),
        toggle_off(find<void (*)()>(path, "kineto_toggle_off")),
        process(find<std::size_t (*)(std::uint32_t*, std::size_t)>(path, "kineto_process")),
        unknown_buffers(find<std::uint64_t (*)()>(path, "kineto_unknown_buffers")) {}
  void (*prepare)();
  void (*warm_up)();
  void (*start)();
  void (*stop)();
  void (*toggle_off)();
  std::size_t (*process)(std::uint32_t*, std::size_t);
  std::uint64_t (*unknown_buffers)();
};

constexpr std::uint64_t kQueued = 50;

struct Session {
  std::uint32_t before = 0;        // the newest kernel when it was prepared,
  std::uint32_t first = 0;         // some time after it had started,
  std::uint32_t last = 0;          // some time before it was stopped,
  std::uint32_t after = 0;         // and when it was over
  std::vector<std::uint32_t> ids;  // what Kineto got
};

void sleep(int ms) { std::this_thread::sleep_for(milliseconds(ms)); }

// Until haiprof records, and for a while.
void wait() {
  for (int i = 0; i < 1000 && gpu::yielded(); ++i) sleep(10);
  sleep(50);
}

void print(const char* name, const std::vector<std::uint64_t>& values, const char* end) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::printf("%s%llu", i == 0 ? "" : ",", static_cast<unsigned long long>(values[i]));
  }
  std::printf("]%s", end);
}

class Job {
 public:
  Job(const char* kineto, std::string scenario) : kineto_(kineto), scenario_(std::move(scenario)) {
    for (int i = 0; i < (scenario_ == "alone" ? 0 : 4); ++i) {
      threads_.emplace_back([this, i] {
        while (!over_) {
          launch(i % 2 == 0 ? "even" : "odd", 2);
          sleep(1);
        }
      });
    }
  }
  ~Job() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  bool record(bool in_use) {
    gpu::Settings settings{gpu::Mode::all, 0, 60, {}};
    settings.in_use = in_use;
    test::use_gpu();
    const gpu::Refusal refusal = gpu::start_collecting("", settings);
    if (!refusal.ok()) std::fprintf(stderr, "%s\n", refusal.reason.c_str());
    return refusal.ok();
  }

  void session(int number) {
    Session all;
    const bool runs = scenario_ == "running" || scenario_ == "alone" || scenario_ == "queued" ||
                      scenario_ == "long";
    const std::uint32_t id = runs ? begin_kernel("across") : 0;
    if (scenario_ == "queued") queue("queued", kQueued);
    // The session's thread has launched, so that CUPTI may have a buffer for it already.
    launch("main", 1);
    all.before = newest();
    kineto_.prepare();
    sleep(5);
    if (number % 3 == 0) kineto_.warm_up();
    kineto_.start();
    sleep(5);
    all.first = newest() + 1;
    launch("main", 3);
    if (number == 0 && scenario_ == "before") record(false);
    if (number == 1 && scenario_ == "notified") record(true);
    if (runs && scenario_ != "long") end_kernel(id);
    middle(number);
    sleep(30);
    launch("main", 3);
    all.last = newest();
    sleep(5);
    if (scenario_ == "toggled") {
      kineto_.toggle_off();
      wait();
    }
    kineto_.stop();
    if (scenario_ == "slow") sleep(4000);
    std::vector<std::uint32_t> ids(100'000);
    ids.resize(std::min(kineto_.process(ids.data(), ids.size()), ids.size()));
    all.after = newest();
    all.ids = ids;
    if (scenario_ == "long") end_kernel(id);
    sessions_.push_back(all);
  }

  // until: the newest kernel when haiprof was stopped
  void report(std::uint32_t until) {
    const gpu::Counts counts = gpu::counts();
    std::vector<std::uint64_t> times;
    for (std::uint32_t id = 1; id <= until; ++id) times.push_back(launched(id));
    std::printf(
        "{\"unknown_buffers\": %llu, \"clockless\": %llu, \"timeless\": %llu, "
        "\"lost_buffers\": %llu, \"dirty\": %llu, \"flips\": %llu, \"clocks\": %llu, "
        "\"sessions\": [",
        static_cast<unsigned long long>(kineto_.unknown_buffers()),
        static_cast<unsigned long long>(counts.clockless),
        static_cast<unsigned long long>(counts.timeless),
        static_cast<unsigned long long>(counts.foreign + counts.damaged),
        static_cast<unsigned long long>(dirty()), static_cast<unsigned long long>(flips()),
        static_cast<unsigned long long>(clocks()));
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      const Session& one = sessions_[i];
      std::printf("%s{\"before\": %u, \"first\": %u, \"last\": %u, \"after\": %u, ",
                  i == 0 ? "" : ", ", one.before, one.first, one.last, one.after);
      print("ids", {one.ids.begin(), one.ids.end()}, "}");
    }
    std::printf("], ");
    print("launched", times, "}\n");
  }

 private:
  void middle(int number);

  Kineto kineto_;
  std::string scenario_;
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
  std::vector<Session> sessions_;
};

void Job::middle(int number) {
  if (scenario_ == "stopped") {
    sleep(150);
    gpu::stop_collecting(10);
    // Every second time it begins again while the session lasts.
    if (number % 2 == 0) record(false);
  }
  if (scenario_ == "forked") {
    const pid_t child = fork();
    if (child == 0) {
      // Nobody else is there who could give a lock back.
      kineto_.stop();
      gpu::stop_collecting(10);
      _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ring::Identity identity;
  identity.rank = 0;
  identity.node = "node";
  if (argc != 5 || !ring::open(argv[1], 64u << 20, identity).ok()) return 2;
  const std::string scenario = argv[3];
  find<void (*)()>(argv[2], "kineto_prepare");
  {
    Job job(argv[2], scenario);
    if (scenario != "before" && scenario != "notified" && !job.record(false)) return 1;
    sleep(100);
    for (int i = 0; i < std::atoi(argv[4]); ++i) {
      if (scenario == "skewed") {
        skew(3);
        sleep(50);
      }
      job.session(i);
      if (scenario == "stopped" && i % 2 == 1) job.record(false);
      // Some begin before haiprof has taken over again.
      if (i % 4 != 3) wait();
    }
    wait();
    const std::uint32_t until = newest();
    gpu::stop_collecting(10);
    job.report(until);
  }
  ring::close();
}

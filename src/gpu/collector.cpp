#include "gpu/collector.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "gpu/devices.h"
#include "gpu/handover.h"
#include "gpu/report.h"
#include "gpu/stream_timer.h"
#include "phase/process.h"
#include "ring/writer.h"

namespace haiprof::gpu {
namespace {

using std::chrono::milliseconds;

// CUPTI itself delivers only full buffers, so a quiet GPU would be seen seconds late.
constexpr milliseconds kPeriod{100};
// The same until the job has its first context, from which on all kernels are to be recorded.
constexpr milliseconds kSoon{5};
// How often it is looked whether the stream timer's anchor has happened, while that matters.
constexpr milliseconds kWatch{1};
// How often new devices are looked for.
constexpr std::uint64_t kLook = 1'000'000'000;  // ns
// How long the end waits for what the GPU has yet to do, of the phases that are timed.
constexpr double kLastPhases = 0.2;  // s
// What was launched before tracing ended may end later: this many more turns are looked at.
constexpr unsigned kTurnsAfter = 20;

// From CUPTI's threads: no lock, so a wake-up may be lost, and the period bounds that.
void wake() noexcept;

class Collector {
 public:
  Refusal start(const std::string& folders, const Settings& settings);
  bool flush(double seconds);
  void stop(double seconds);
  // False in a forked child, which has neither the thread nor CUDA, and must not wait for a lock
  // that somebody held when it was forked.
  bool running() const noexcept {
    return running_.load(std::memory_order_relaxed) && !forked_.load(std::memory_order_relaxed);
  }
  bool tracing() const noexcept { return running() && tracing_.load(std::memory_order_relaxed); }
  std::uint64_t thread_ns() const noexcept { return thread_ns_.load(std::memory_order_relaxed); }
  void press() noexcept { wake_.notify_one(); }
  void forked() noexcept {
    forked_.store(true, std::memory_order_relaxed);
    stream_timer().abandon();
  }
  void hear(const phase::Span& step) noexcept {
    if (running()) schedule_.steps.put({step.start, step.end});
  }
  void stepped() noexcept {
    if (!running() || !schedule_.awaits_step()) return;
    stepped_.store(true, std::memory_order_release);
    press();
  }
  void hasten() noexcept {
    if (running()) schedule_.hasten();
  }
  const Tracer& tracer() const noexcept { return tracer_; }

 private:
  Refusal trace(const std::string& folders, const Settings& settings);
  void work();
  void wait(std::unique_lock<std::mutex>& lock);
  void turn(bool last);
  void report_losses();
  void meter() noexcept;

  std::mutex mutex_;  // of start, stop and requests to the thread
  std::condition_variable wake_, done_;
  std::uint64_t requested_ = 0, answered_ = 0;  // flushes
  bool leave_ = false;
  std::thread thread_;
  std::atomic<bool> running_{false}, tracing_{false}, forked_{false};
  std::atomic<bool> stepped_{false};  // while the schedule waits for it
  std::uint64_t earlier_ns_ = 0;      // CPU time of the threads before this one
  std::atomic<std::uint64_t> thread_ns_{0};
  Driver driver_;
  Tracer tracer_{wake};
  Schedule schedule_{tracer_, driver_};
  unsigned turns_left_ = 0;
  Devices devices_;
  std::uint64_t looked_ = 0;
  std::uint64_t lost_ = 0;  // when that was reported
};

// Never destroyed: its thread may outlive main().
Collector& collector = *new Collector;

void wake() noexcept { collector.press(); }

void step_recorded(const phase::Span& span) noexcept {
  const bool step = span.name == phase::Name::step || span.name == phase::Name::inference_step;
  if (step) collector.hear(span);
}

void step_ended() noexcept { collector.stepped(); }

Refusal Collector::start(const std::string& folders, const Settings& settings) {
  if (forked_.load(std::memory_order_relaxed)) {
    return {"CUDA cannot be used in a forked child", "start workers with spawn"};
  }
  const std::lock_guard guard(mutex_);
  if (running()) {
    if (!leave_) return {};
    return {"the previous recording has not ended yet", "start again later"};
  }
  // Before the driver is touched: a child forked meanwhile must not touch it.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { collector.forked(); });
  (void)registered;
  Refusal refusal = gpu::start(driver_);
  if (!refusal.ok()) return refusal;
  static constexpr phase::Listener listener{.span = step_recorded, .stepped = step_ended};
  phase::listen(listener);
  refusal = trace(folders, settings);
  tracing_.store(settings.kernels != Mode::off && refusal.ok(), std::memory_order_relaxed);
  const Refusal untimed = stream_timer().arm(driver_);
  if (refusal.ok()) refusal = untimed;
  leave_ = false;
  // The job's signals are the job's threads' business.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  running_.store(true, std::memory_order_relaxed);
  try {
    thread_ = std::thread([this] { work(); });
    pthread_setname_np(thread_.native_handle(), "haiprof-gpu");
  } catch (...) {
    running_.store(false, std::memory_order_relaxed);
    schedule_.stop();
    stream_timer().disarm();
    refusal = {"no thread can be created for it", ""};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return refusal;
}

Refusal Collector::trace(const std::string& folders, const Settings& settings) {
  if (settings.kernels == Mode::off) return {};
  Refusal refusal = refusal_of_injection();
  if (refusal.ok()) refusal = tracer_.open(folders, settings.kinds);
  if (!refusal.ok()) return refusal;
  if (settings.kernels == Mode::windows) {
    refusal = refusal_to_switch(tracer_.cupti());
    if (!refusal.ok()) return refusal;
  }
  // Both at once would lose GPU activity in both, and the other's is what the user looks at now.
  if (!tracer_.watch() && settings.shared) {
    return {
        "torch.profiler and haiprof cannot take turns with this torch, which has CUPTI built in",
        "use a torch that is linked with libcupti.so, as the wheels of PyTorch are"};
  }
  const std::string tool = handover().other_tool();
  if (!tool.empty()) {
    handover().unwatch();
    return refusal_beside(tool);
  }
  handover().look_back(settings.in_use);
  return schedule_.start(settings.kernels, settings.budget, settings.period,
                         settings.graph_kernels);
}

void Collector::work() {
  // Half of the ring: a busy GPU makes more records than all the job's threads together.
  constexpr auto kHalf =
      static_cast<std::uint32_t>(ring::kDefaultRingBytes / ring::kChunkBytes / 2);
  ring::claim_lane(tracing_.load(std::memory_order_relaxed) ? kHalf : 0);
  stream_timer().begin_thread();
  earlier_ns_ = thread_ns();
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    wait(lock);
    const std::uint64_t requested = requested_;
    last = leave_;
    lock.unlock();
    try {
      turn(last);
    } catch (...) {  // no memory for the text
    }
    meter();
    lock.lock();
    answered_ = requested;
    done_.notify_all();
  }
  running_.store(false, std::memory_order_relaxed);
  done_.notify_all();
}

// Until there is something to do, for a period at most.
void Collector::wait(std::unique_lock<std::mutex>& lock) {
  const auto end =
      std::chrono::steady_clock::now() + (schedule_.awaits_context() ? kSoon : kPeriod);
  const auto is_asked = [this] {
    return leave_ || requested_ != answered_ || Tracer::pressing() ||
           stepped_.exchange(false, std::memory_order_acquire);
  };
  while (stream_timer().watching() && std::chrono::steady_clock::now() < end) {
    if (wake_.wait_for(lock, kWatch, is_asked)) return;
    lock.unlock();
    stream_timer().watch();
    lock.lock();
  }
  wake_.wait_until(lock, end, is_asked);
}

void Collector::turn(bool last) {
  if (last) {
    schedule_.stop();
  } else {
    schedule_.turn(thread_ns() - earlier_ns_);
  }
  tracing_.store(schedule_.on(), std::memory_order_relaxed);
  if (tracer_.attached()) stream_timer().number_streams(tracer_.cupti());
  if (tracer_.enabled() || Tracer::pressing()) turns_left_ = kTurnsAfter;
  if (turns_left_ > 0 || last) tracer_.take(last);
  if (turns_left_ > 0) --turns_left_;
  const std::uint64_t now = ring::clock_ns(CLOCK_MONOTONIC);
  if (last || now - looked_ >= kLook) {
    looked_ = now;
    devices_.report(driver_);
    report_losses();
  }
  stream_timer().take(last ? kLastPhases : 0.0);
}

// Early, since a job may crash. Only when twice as much is lost: the ring keeps texts.
void Collector::report_losses() {
  const Counts now = tracer_.counts();
  const std::uint64_t records = now.dropped + now.timeless + now.clockless;
  const std::uint64_t whole = now.damaged;
  if (records + whole == 0 || records + whole < 2 * lost_) return;
  lost_ = records + whole;
  report("lost",
         "GPU activity was lost so far: " + std::to_string(records) + " records and " +
             std::to_string(whole) + " buffers",
         "{}");
}

void Collector::meter() noexcept {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  const auto ns = static_cast<std::uint64_t>(spent.tv_sec) * 1'000'000'000 +
                  static_cast<std::uint64_t>(spent.tv_nsec);
  thread_ns_.store(earlier_ns_ + ns, std::memory_order_relaxed);
}

bool Collector::flush(double seconds) {
  if (!running()) return true;
  std::unique_lock lock(mutex_);
  if (!running()) return true;
  const std::uint64_t ticket = ++requested_;
  wake_.notify_all();
  return done_.wait_for(lock, std::chrono::duration<double>(seconds),
                        [&] { return answered_ >= ticket || !running(); });
}

void Collector::stop(double seconds) {
  if (!running()) return;
  std::unique_lock lock(mutex_);
  if (!running()) return;
  stream_timer().disarm();
  leave_ = true;
  wake_.notify_all();
  const bool left =
      done_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return !running(); });
  std::thread thread = std::move(thread_);
  lock.unlock();
  // One that hangs in CUPTI is left behind, with the buffers that it may still fill.
  if (left) {
    thread.join();
  } else {
    thread.detach();
  }
}

}  // namespace

Refusal start_collecting(const std::string& folders, const Settings& settings) noexcept try {
  return collector.start(folders, settings);
} catch (...) {
  return {"no thread or memory for it", ""};
}

bool flush_collected(double seconds) noexcept try { return collector.flush(seconds); } catch (...) {
  return false;
}

void hasten_window() noexcept { collector.hasten(); }

void stop_collecting(double seconds) noexcept try { collector.stop(seconds); } catch (...) {
}

bool collecting() noexcept { return collector.running(); }
bool tracing() noexcept { return collector.tracing(); }
bool yielded() noexcept { return collector.tracer().yielded(); }
Counts counts() noexcept { return collector.tracer().counts(); }
std::uint64_t thread_ns() noexcept { return collector.thread_ns(); }
std::string library_path() { return collector.tracer().cupti().path; }
std::uint32_t library_version() noexcept { return collector.tracer().cupti().version; }

}  // namespace haiprof::gpu

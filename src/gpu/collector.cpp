#include "gpu/collector.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "gpu/buffers.h"
#include "gpu/decode.h"
#include "ring/writer.h"

namespace haiprof::gpu {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// CUPTI itself delivers only full buffers, so a quiet GPU would be seen seconds late.
constexpr milliseconds kPeriod{100};
// Device memory for records: 3.2 MB each by default, and no more than 32 of them.
constexpr std::size_t kDevicePool = 32;

// Never destroyed: CUPTI's threads may call back while the process ends.
Buffers& buffers = *new Buffers;

class Collector {
 public:
  Refusal start(const std::string& folders, Kinds kinds);
  bool flush(double seconds);
  void stop(double seconds);
  // False in a forked child, which has neither the thread nor CUDA, and must not wait for a lock
  // that somebody held when it was forked.
  bool running() const noexcept {
    return running_.load(std::memory_order_relaxed) && !forked_.load(std::memory_order_relaxed);
  }
  Counts told();
  // From CUPTI's threads: no lock, so a wake-up may be lost, and the period bounds that.
  void press() noexcept { wake_.notify_one(); }
  void forked() noexcept { forked_.store(true, std::memory_order_relaxed); }
  const Cupti& cupti() const noexcept { return cupti_; }

 private:
  Refusal enable(Kinds kinds);
  void disable() noexcept;
  void work();
  void collect(std::uint32_t flags);

  std::mutex mutex_;  // of start, stop and what the thread is told
  std::condition_variable wake_, done_;
  std::uint64_t asked_ = 0, answered_ = 0;  // flushes
  bool leave_ = false;
  std::thread thread_;
  std::atomic<bool> running_{false}, forked_{false};
  Cupti cupti_;
  Kinds kinds_;
  std::unique_ptr<Decoder> decoder_;
  std::uint64_t earlier_ns_ = 0;  // CPU time of the threads before this one
  std::mutex counts_mutex_;
  Counts counts_;
};

Collector& collector = *new Collector;

void buffer_requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  *buffer = buffers.take();
  *bytes = Buffers::kBytes;
  *most = 0;  // as many as fit
}

void buffer_completed(cupti::Context, std::uint32_t, std::uint8_t* buffer, std::size_t,
                      std::size_t valid) {
  if (buffers.complete(buffer, valid) && buffers.pressing()) collector.press();
}

template <typename Value>
void set_attribute(const Cupti& cupti, cupti::Attribute attribute, Value value) noexcept {
  std::size_t bytes = sizeof value;
  cupti.set_attribute(attribute, &bytes, &value);  // an older CUPTI knows fewer, and does without
}

Refusal Collector::enable(Kinds kinds) {
  const cupti::Result registered = cupti_.register_callbacks(buffer_requested, buffer_completed);
  cupti::Result result = registered;
  if (registered == cupti::kSuccess) {
    set_attribute(cupti_, cupti::kDeviceBufferPoolLimit, kDevicePool);
    set_attribute(cupti_, cupti::kZeroedOutActivityBuffer, std::uint8_t{1});
    // The default differs between releases; backward runs on threads of its own.
    set_attribute(cupti_, cupti::kPerThreadActivityBuffer, std::uint8_t{1});
    result = cupti_.enable(cupti::kConcurrentKernel);
  }
  if (result == cupti::kSuccess) {
    cupti_.enable(cupti::kMemcpy);
    cupti_.enable(cupti::kMemcpyPtoP);
    cupti_.enable(cupti::kMemset);
    if (kinds.synchronization) cupti_.enable(cupti::kSynchronization);
    if (kinds.overhead) cupti_.enable(cupti::kOverhead);
    kinds_ = kinds;
    return {};
  }
  const std::string told = cupti_.path + ": " + cupti_.text_of(result);
  switch (result) {
    case cupti::kMultipleSubscribers:
    case cupti::kNotCompatible:
      return {"another tool is using CUPTI (" + told + ")",
              "end it (Nsight, compute-sanitizer, another profiler) to have kernels recorded"};
    case cupti::kInsufficientPrivileges:
      return {"tracing the GPU is not allowed here (" + told + ")",
              "ask for NVreg_RestrictProfilingToAdminUsers=0"};
    default:
      return {"CUPTI cannot record kernels (" + told + ")",
              "install a driver and a libcupti of the same CUDA release"};
  }
}

void Collector::disable() noexcept {
  cupti_.disable(cupti::kConcurrentKernel);
  cupti_.disable(cupti::kMemcpy);
  cupti_.disable(cupti::kMemcpyPtoP);
  cupti_.disable(cupti::kMemset);
  if (kinds_.synchronization) cupti_.disable(cupti::kSynchronization);
  if (kinds_.overhead) cupti_.disable(cupti::kOverhead);
}

Refusal Collector::start(const std::string& folders, Kinds kinds) {
  if (forked_.load(std::memory_order_relaxed)) {
    return {"CUDA cannot be used in a forked child", "start workers with spawn"};
  }
  const std::lock_guard guard(mutex_);
  if (running()) return {};
  if (cupti_.next_record == nullptr) {
    Refusal refusal = load(folders, cupti_);
    if (!refusal.ok()) return refusal;
    decoder_ = std::make_unique<Decoder>(cupti_.next_record);
    static const int registered = pthread_atfork(nullptr, nullptr, [] { collector.forked(); });
    (void)registered;
  }
  if (!buffers.map()) return {"no memory for the buffers that CUPTI fills", ""};
  // The job's signals are the job's threads' business.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Refusal refusal = enable(kinds);
  if (refusal.ok()) {
    leave_ = false;
    running_.store(true, std::memory_order_relaxed);
    thread_ = std::thread([this] { work(); });
    pthread_setname_np(thread_.native_handle(), "haiprof-gpu");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return refusal;
}

void Collector::work() {
  // Half of the ring: a busy GPU makes more records than all the job's threads together.
  ring::claim_lane(static_cast<std::uint32_t>(ring::kDefaultRingBytes / ring::kChunkBytes / 2));
  earlier_ns_ = told().thread_ns;
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    wake_.wait_for(lock, kPeriod,
                   [this] { return leave_ || asked_ != answered_ || buffers.pressing(); });
    const std::uint64_t asked = asked_;
    last = leave_;
    lock.unlock();
    collect(last ? cupti::kFlushForced : 0);
    lock.lock();
    answered_ = asked;
    done_.notify_all();
  }
  running_.store(false, std::memory_order_relaxed);
  done_.notify_all();
}

void Collector::collect(std::uint32_t flags) {
  cupti_.flush_all(flags);
  Counts more;
  buffers.each_full([&](const Buffers::Full& full) {
    const Decoded decoded = decoder_->decode(full.data, full.valid);
    more.kernels += decoded.kernels;
    more.others += decoded.others;
    more.timeless += decoded.timeless;
    more.unknown += decoded.unknown;
    more.overhead_ns += decoded.overhead_ns;
    more.damaged += decoded.damaged;
  });
  std::size_t dropped = 0;
  cupti_.dropped_records(nullptr, 0, &dropped);
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  const std::lock_guard guard(counts_mutex_);
  counts_.kernels += more.kernels;
  counts_.others += more.others;
  counts_.timeless += more.timeless;
  counts_.unknown += more.unknown;
  counts_.overhead_ns += more.overhead_ns;
  counts_.damaged += more.damaged;
  counts_.dropped += dropped;
  counts_.thread_ns = earlier_ns_ + static_cast<std::uint64_t>(spent.tv_sec) * 1'000'000'000 +
                      static_cast<std::uint64_t>(spent.tv_nsec);
}

bool Collector::flush(double seconds) {
  if (!running()) return true;
  std::unique_lock lock(mutex_);
  if (!running()) return true;
  const std::uint64_t ticket = ++asked_;
  wake_.notify_all();
  return done_.wait_for(lock, std::chrono::duration<double>(seconds),
                        [&] { return answered_ >= ticket || !running(); });
}

void Collector::stop(double seconds) {
  if (!running()) return;
  std::unique_lock lock(mutex_);
  if (!running()) return;
  disable();
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

Counts Collector::told() {
  const std::lock_guard guard(counts_mutex_);
  Counts now = counts_;
  now.spilled = buffers.spilled();
  now.foreign = buffers.foreign();
  return now;
}

}  // namespace

Refusal start_collecting(const std::string& folders, Kinds kinds) noexcept try {
  return collector.start(folders, kinds);
} catch (...) {
  return {"no thread or memory for it", ""};
}

bool flush_collected(double seconds) noexcept try { return collector.flush(seconds); } catch (...) {
  return false;
}

void stop_collecting(double seconds) noexcept try { collector.stop(seconds); } catch (...) {
}

bool collecting() noexcept { return collector.running(); }
Counts counts() noexcept { return collector.told(); }
std::string library_path() { return collector.cupti().path; }
std::uint32_t library_version() noexcept { return collector.cupti().version; }

}  // namespace haiprof::gpu

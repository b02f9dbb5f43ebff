#include "gpu/handover.h"

#include <pthread.h>

#include <utility>
#include <vector>

#include "ring/clock.h"

namespace haiprof::gpu {
namespace {

// Kineto flushes last. Where CUPTI has no buffer of its it does not flush at all, and before it
// does, it may work for seconds on what it has of the host; late buffers still go to it.
constexpr std::uint64_t kQuietAfterFlush = 300'000'000;
constexpr std::uint64_t kQuiet = 3'000'000'000;

// Kinds have small numbers. One beyond would not be followed.
std::uint64_t bit(int kind) noexcept {
  return kind >= 0 && kind < 64 ? std::uint64_t{1} << kind : 0;
}

}  // namespace

Handover& handover() noexcept {
  static Handover& only = *new Handover;
  return only;
}

// A call of the other's: counted from before it until it has returned.
class Handover::Call {
 public:
  enum Meaning { begins, goes_on, finalizes };

  explicit Call(Meaning meaning) noexcept : all_(handover()) {
    seen_ = !all_.forked_.load(std::memory_order_relaxed);
    if (!seen_) return;
    {
      const std::lock_guard guard(all_.mutex_);
      ++all_.inside_;
      if (meaning != goes_on) {
        all_.lasts_.store(true, std::memory_order_release);
        all_.flushed_ = false;
      }
    }
    // Each time: a second thread has to wait for the first one's, too.
    if (meaning != goes_on) all_.tracer_.yield(meaning == finalizes);
  }
  ~Call() {
    if (!seen_) return;
    const std::lock_guard guard(all_.mutex_);
    --all_.inside_;
    all_.last_ns_ = ring::clock_ns(CLOCK_MONOTONIC);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Puts down what came of it.
  template <typename Note>
  void note(Note&& note) const noexcept {
    if (!seen_) return;
    const std::lock_guard guard(all_.mutex_);
    note(all_);
  }

  Handover& all() const noexcept { return all_; }
  const Cupti& real() const noexcept { return all_.cupti_; }

 private:
  Handover& all_;
  bool seen_;
};

// The functions in the slots.
struct Trampolines {
  using Call = Handover::Call;

  static cupti::Result register_callbacks(cupti::BufferRequested ask,
                                          cupti::BufferCompleted give) noexcept {
    const Call call(Call::begins);
    if (ask == nullptr || give == nullptr) return call.real().register_callbacks(ask, give);
    Handover& all = call.all();
    all.ask_.store(ask, std::memory_order_release);
    all.give_.store(give, std::memory_order_release);
    return call.real().register_callbacks(ask, all.tracer_.completed);
  }

  static cupti::Result register_clock(cupti::Clock now) noexcept {
    const Call call(Call::begins);
    std::atomic<cupti::Clock>& clock = call.all().clock_;
    // Setting one takes the times of kernels that are under way, also where it is the same one
    // (seen with 13.0.85), and each session of torch.profiler sets its.
    if (now != nullptr && now == clock.load()) return cupti::kSuccess;
    const cupti::Result result = call.real().register_clock(now);
    if (result == cupti::kSuccess) clock.store(now);
    return result;
  }

  static cupti::Result enable(int kind) noexcept {
    const Call call(Call::begins);
    const cupti::Result result = call.real().enable(kind);
    call.note([&](Handover& all) {
      if (result != cupti::kSuccess) return;
      all.kinds_ |= bit(kind);
      if (kind == cupti::kRuntime || kind == cupti::kDriver) all.calls_.store(true);
    });
    return result;
  }

  static cupti::Result disable(int kind) noexcept {
    const Call call(Call::goes_on);
    // Once more after the end, as after torch.profiler's toggle_collection_dynamic.
    if (!call.all().lasts() && call.all().ours_.load(std::memory_order_acquire)) {
      return cupti::kSuccess;
    }
    const cupti::Result result = call.real().disable(kind);
    bool last = false;
    call.note([&](Handover& all) {
      last = all.kinds_ == bit(kind);
      all.kinds_ &= ~bit(kind);
    });
    if (last) call.all().borrow();
    return result;
  }

  static cupti::Result flush_all(std::uint32_t flags) noexcept {
    const Call call(Call::goes_on);
    const cupti::Result result = call.real().flush_all(flags);
    call.note([](Handover& all) { all.flushed_ = all.kinds_ == 0; });
    if (flags & cupti::kFlushForced) call.all().give_back();
    return result;
  }

  // CUPTI returns what it holds of one mode no longer once it is in the other. So the mode changes
  // only while it holds nothing of ours; to the other both are as good.
  static cupti::Result set_attribute(int attribute, std::size_t* bytes, void* value) noexcept {
    const bool mode = attribute == cupti::kPerThreadActivityBuffer && value != nullptr;
    // Set to none by a session at its end; else one begins with it.
    const bool begins = mode && *static_cast<const std::uint8_t*>(value) != 0;
    const Call call(begins ? Call::begins : Call::goes_on);
    if (mode && (!call.all().lasts() || call.all().tracer_.holds())) return cupti::kSuccess;
    return call.real().set_attribute(attribute, bytes, value);
  }

  static cupti::Result finalize() noexcept {
    const Call call(Call::finalizes);
    const cupti::Result result = call.real().finalize();
    call.all().give_back();
    call.all().clock_.store(nullptr);
    call.note([](Handover& all) {
      all.kinds_ = 0;
      all.flushed_ = true;
    });
    return result;
  }
};

std::size_t Handover::watch(const Cupti& cupti, const Tracer& tracer) noexcept try {
  if (cupti_.enable == nullptr) {
    tracer_ = tracer;
    cupti_ = cupti;
    std::vector<interpose::Replacement> all;
    const auto add = [&](const char* name, auto theirs, auto ours) {
      if (theirs == nullptr) return;
      all.push_back({name, reinterpret_cast<void*>(theirs), reinterpret_cast<void*>(ours)});
    };
    using T = Trampolines;
    add("cuptiActivityRegisterCallbacks", cupti_.register_callbacks, &T::register_callbacks);
    add("cuptiActivityRegisterTimestampCallback", cupti_.register_clock, &T::register_clock);
    add("cuptiActivityEnable", cupti_.enable, &T::enable);
    add("cuptiActivityDisable", cupti_.disable, &T::disable);
    add("cuptiActivityFlushAll", cupti_.flush_all, &T::flush_all);
    add("cuptiActivitySetAttribute", cupti_.set_attribute, &T::set_attribute);
    add("cuptiFinalize", cupti_.finalize, &T::finalize);
    interposer_.replace(std::move(all));
    pthread_atfork([] { handover().interposer_.hold(); }, [] { handover().interposer_.release(); },
                   [] {
                     handover().interposer_.release();
                     handover().forked_.store(true, std::memory_order_relaxed);
                   });
  }
  return interposer_.apply();
} catch (...) {
  return 0;
}

void Handover::watch_more() noexcept { interposer_.apply(); }

void Handover::unwatch() noexcept {
  if (lasts()) return;
  interposer_.restore();
  looked_back_ = false;
  if (lasts()) interposer_.apply();  // one that began just then
}

// Before we are the one: CUPTI answers with an error while nobody has registered for records. Asked
// only where somebody did call it: to call it is to attach it to the job.
bool Handover::unused() const noexcept {
  return !ever_ours_.load(std::memory_order_relaxed) && cupti_.flush_all(0) != cupti::kSuccess;
}

std::string Handover::other_tool() {
  if (ever_ours_.load(std::memory_order_relaxed)) return "";
  for (const std::string& file :
       interposer_.users(reinterpret_cast<void*>(cupti_.register_callbacks))) {
    const std::string name = file.substr(file.rfind('/') + 1);
    // Kineto is a part of libtorch_cpu, or a library of its own.
    if (name.rfind("libtorch", 0) != 0 && name.rfind("libkineto", 0) != 0) {
      return unused() ? "" : file;
    }
  }
  return "";
}

void Handover::look_back(bool hint) noexcept {
  // From then on every call was seen, and a slot says nothing about those before.
  if (std::exchange(looked_back_, true)) return;
  const bool began = interposer_.used(reinterpret_cast<void*>(cupti_.register_callbacks));
  const bool ended = interposer_.used(reinterpret_cast<void*>(cupti_.disable));
  if (!began || (ended && !hint) || unused()) return;
  const std::lock_guard guard(mutex_);
  if (lasts()) return;
  lasts_.store(true, std::memory_order_release);
  flushed_ = false;
  kinds_ = bit(cupti::kConcurrentKernel);  // no session that needs the GPU is without
}

bool Handover::over_now() const noexcept {
  const std::uint64_t quiet = ring::clock_ns(CLOCK_MONOTONIC) - last_ns_;
  return lasts() && kinds_ == 0 && inside_ == 0 && quiet >= (flushed_ ? kQuietAfterFlush : kQuiet);
}

bool Handover::over() noexcept {
  const std::lock_guard guard(mutex_);
  return over_now();
}

bool Handover::take_back() noexcept {
  const std::lock_guard guard(mutex_);
  if (!over_now()) return false;
  lasts_.store(false, std::memory_order_release);
  calls_.store(false);
  return true;
}

// Kineto does not look for records while CUPTI has no buffer of its. But CUPTI may have written a
// session's into buffers of ours, and follow() has CUPTI return all before a slow Kineto asks. So
// one is borrowed until Kineto flushes by force, which is right before it looks.
void Handover::borrow() noexcept {
  const cupti::BufferRequested ask = this->ask();
  if (ask == nullptr) return;
  give_back();
  std::uint8_t* buffer = nullptr;
  std::size_t bytes = 0, most = 0;
  ask(&buffer, &bytes, &most);
  borrowed_bytes_.store(bytes, std::memory_order_relaxed);
  borrowed_.store(buffer, std::memory_order_release);
}

void Handover::give_back() noexcept {
  std::uint8_t* const buffer = borrowed_.exchange(nullptr, std::memory_order_acq_rel);
  if (buffer == nullptr) return;
  give()(nullptr, 0, buffer, borrowed_bytes_.load(std::memory_order_relaxed), 0);
}

}  // namespace haiprof::gpu

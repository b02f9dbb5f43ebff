#include "gpu/tracer.h"

#include <signal.h>

#include <atomic>

#include "gpu/buffers.h"

namespace haiprof::gpu {
namespace {

// Device memory for records: 3.2 MB each by default, and no more than 32 of them.
constexpr std::size_t kDevicePool = 32;

// Never destroyed: CUPTI's threads may call back while the process ends.
Buffers& buffers = *new Buffers;
std::atomic<void (*)() noexcept> tell_pressure{nullptr};

void buffer_requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  *buffer = buffers.take();
  *bytes = Buffers::kBytes;
  *most = 0;  // as many as fit
}

void buffer_completed(cupti::Context, std::uint32_t, std::uint8_t* buffer, std::size_t,
                      std::size_t valid) {
  if (buffers.complete(buffer, valid) && buffers.pressing()) tell_pressure.load()();
}

template <typename Value>
void set_attribute(const Cupti& cupti, cupti::Attribute attribute, Value value) noexcept {
  std::size_t bytes = sizeof value;
  cupti.set_attribute(attribute, &bytes, &value);  // an older CUPTI knows fewer, and does without
}

// The job's signals are the job's threads' business, also where CUPTI makes a thread.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Tracer::Tracer(void (*pressed)() noexcept) noexcept { tell_pressure.store(pressed); }

bool Tracer::pressing() noexcept { return buffers.pressing(); }

Refusal Tracer::open(const std::string& folders, Kinds kinds) {
  const std::lock_guard guard(mutex_);
  kinds_ = kinds;
  if (is_open()) return {};
  Refusal refusal = load(folders, cupti_);
  if (!refusal.ok()) return refusal;
  if (!buffers.map()) return {"no memory for the buffers that CUPTI fills", ""};
  decoder_ = std::make_unique<Decoder>(cupti_.next_record);
  return {};
}

Refusal Tracer::enable() {
  const std::lock_guard guard(mutex_);
  if (enabled_) return {};
  const SignalsBlocked blocked;
  cupti::Result result = cupti_.register_callbacks(buffer_requested, buffer_completed);
  if (result == cupti::kSuccess) {
    set_attribute(cupti_, cupti::kDeviceBufferPoolLimit, kDevicePool);
    set_attribute(cupti_, cupti::kZeroedOutActivityBuffer, std::uint8_t{1});
    // The default differs between releases; backward runs on threads of its own.
    set_attribute(cupti_, cupti::kPerThreadActivityBuffer, std::uint8_t{1});
    result = cupti_.enable(cupti::kConcurrentKernel);
  }
  if (result != cupti::kSuccess) return refusal_of(result);
  cupti_.enable(cupti::kMemcpy);
  cupti_.enable(cupti::kMemcpyPtoP);
  cupti_.enable(cupti::kMemset);
  if (kinds_.synchronization) cupti_.enable(cupti::kSynchronization);
  if (kinds_.overhead) cupti_.enable(cupti::kOverhead);
  enabled_ = true;
  return {};
}

Refusal Tracer::refusal_of(cupti::Result result) const {
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

void Tracer::disable() noexcept {
  const std::lock_guard guard(mutex_);
  if (!enabled_) return;
  cupti_.disable(cupti::kConcurrentKernel);
  cupti_.disable(cupti::kMemcpy);
  cupti_.disable(cupti::kMemcpyPtoP);
  cupti_.disable(cupti::kMemset);
  if (kinds_.synchronization) cupti_.disable(cupti::kSynchronization);
  if (kinds_.overhead) cupti_.disable(cupti::kOverhead);
  enabled_ = false;
}

void Tracer::take(bool not_ended) noexcept {
  if (!is_open()) return;
  {
    const std::lock_guard guard(mutex_);
    cupti_.flush_all(not_ended ? cupti::kFlushForced : 0);
  }
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
  const std::lock_guard guard(counts_mutex_);
  counts_.kernels += more.kernels;
  counts_.others += more.others;
  counts_.timeless += more.timeless;
  counts_.unknown += more.unknown;
  counts_.overhead_ns += more.overhead_ns;
  counts_.damaged += more.damaged;
  counts_.dropped += dropped;
}

Counts Tracer::counts() const noexcept {
  const std::lock_guard guard(counts_mutex_);
  Counts now = counts_;
  now.spilled = buffers.spilled();
  now.foreign = buffers.foreign();
  return now;
}

}  // namespace haiprof::gpu

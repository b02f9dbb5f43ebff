#include "nvml/xid.h"

#include <string>
#include <utility>

namespace haiprof::nvml {
namespace {

// A storm of them is reported in parts. One fault of a job may be a few on each of its GPUs.
constexpr int kMostEvents = 64;

// An explanation for the job's owner; null for other numbers.
constexpr const char* meaning_of(std::uint64_t xid) noexcept {
  switch (xid) {
    case 13:
      return "an exception in a kernel: an illegal address or instruction, or broken hardware";
    case 31:
      return "a memory page fault: a kernel or a copy used an address that is not mapped";
    case 43:
      return "the GPU stopped working for a process, mostly after an error of the job";
    case 45:
      return "the work of a process was removed, mostly after another error or a kill";
    case 48:
      return "a memory error that cannot be corrected (double bit ECC)";
    case 61:
      return "the GPU's internal controller reported a warning";
    case 62:
      return "the GPU's internal controller halted";
    case 63:
      return "a broken memory row was marked for remapping, or a page for retirement";
    case 64:
      return "a broken memory row or page could not be marked for replacement";
    case 74:
      return "an NVLink error";
    case 79:
      return "the GPU has fallen off the bus";
    case 92:
      return "many corrected memory errors (single bit ECC)";
    case 94:
      return "a contained memory error: the process that used that memory fails";
    case 95:
      return "an uncontained memory error: everything on the GPU fails";
    case 119:
      return "the GPU's system processor (GSP) did not answer in time";
    case 120:
      return "an error of the GPU's system processor (GSP)";
    default:
      return nullptr;
  }
}

void report(const Gpu& gpu, const EventData& data, std::vector<sampler::Change>& changes) {
  if (gpu.parent != data.device) return;
  const bool elsewhere =
      gpu.mig && data.gpu_instance != kNoInstance && data.gpu_instance != gpu.gpu_instance;
  if (elsewhere) return;
  const char* const meaning = meaning_of(data.data);
  std::string text = gpu.instance + ": Xid " + std::to_string(data.data);
  if (meaning != nullptr) text += std::string(", ") + meaning;
  changes.push_back({"xid",
                     std::move(text),
                     {{"instance", gpu.instance},
                      {"uuid", gpu.uuid},
                      {"xid", static_cast<std::int64_t>(data.data)}}});
}

}  // namespace

void XidEvents::listen(const std::shared_ptr<const Nvml>& nvml, const Gpu& gpu) {
  if (nvml->event_set_create == nullptr || nvml->event_set_free == nullptr ||
      nvml->register_events == nullptr || nvml->event_set_wait == nullptr || deaf_) {
    return;
  }
  nvml_ = nvml;
  if (events_ == nullptr && nvml->event_set_create(&events_) != kSuccess) {
    events_ = nullptr;
    deaf_ = true;
    return;
  }
  const Result result = nvml->register_events(gpu.parent, kEventXid, events_);
  if (result == kSuccess || is_final(result)) return;
  // The set is in no defined state then.
  stop();
  deaf_ = true;
}

void XidEvents::stop() noexcept {
  if (events_ != nullptr) nvml_->event_set_free(std::exchange(events_, nullptr));
}

void XidEvents::take(const std::vector<std::shared_ptr<Gpu>>& gpus,
                     std::vector<sampler::Change>& changes) {
  for (int i = 0; events_ != nullptr && i < kMostEvents; ++i) {
    EventData data{};
    if (nvml_->event_set_wait(events_, &data, 0) != kSuccess) return;
    if (data.type != kEventXid) continue;
    for (const std::shared_ptr<Gpu>& gpu : gpus) report(*gpu, data, changes);
  }
}

}  // namespace haiprof::nvml

// Xids: errors that the driver reports of a GPU by number, from one set of NVML's events.
#pragma once

#include <memory>
#include <vector>

#include "nvml/sampled.h"

namespace haiprof::nvml {

class XidEvents {
 public:
  XidEvents() = default;
  XidEvents(const XidEvents&) = delete;
  XidEvents& operator=(const XidEvents&) = delete;
  ~XidEvents() { stop(); }

  // From now on those of this GPU come, too.
  void listen(const std::shared_ptr<const Nvml>& nvml, const Gpu& gpu);

  // Appends one change for each new Xid of these GPUs. Does not wait.
  void take(const std::vector<std::shared_ptr<Gpu>>& gpus, std::vector<sampler::Change>& changes);

  // From now on none comes. NVML would keep them and report them to the next listener.
  void stop() noexcept;

 private:
  std::shared_ptr<const Nvml> nvml_;
  EventSet events_ = nullptr;
  bool deaf_ = false;  // this NVML gives no events
};

}  // namespace haiprof::nvml

#include "io/submitted.h"

#include <link.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <utility>

#include "io/calls.h"
#include "io/sizes.h"

namespace haiprof::io {
namespace {

// Never destroyed: other threads may call what stands in the slots until the process is gone.
struct Hook {
  interpose::Interposer interposers[kLibraries];
  void* marks[kLibraries] = {};  // where each library has its mark; null: it is not there
  bool on = false;
  unsigned long long loaded = 0, unloaded = 0;
};

Hook& hook() noexcept {
  static Hook& only = *new Hook;
  return only;
}

// Locked while the slots are looked for. A lookup never waits for it: an allocator may look
// something up while we ask it for memory.
std::atomic_flag busy = ATOMIC_FLAG_INIT;

class Busy {
 public:
  Busy() noexcept { take(); }
  ~Busy() { give(); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

  static void take() noexcept {
    while (busy.test_and_set(std::memory_order_acquire)) sched_yield();
  }
  static void give() noexcept { busy.clear(std::memory_order_release); }
};

// Whether anything was loaded or unloaded since the last time.
bool changed(Hook& all) noexcept {
  return dl_iterate_phdr(
             [](dl_phdr_info* info, std::size_t, void* pointer) {
               Hook& now = *static_cast<Hook*>(pointer);
               if (info->dlpi_adds == now.loaded && info->dlpi_subs == now.unloaded) return 1;
               now.loaded = info->dlpi_adds;
               now.unloaded = info->dlpi_subs;
               return 2;
             },
             &all) == 2;
}

void apply(Hook& all) noexcept {
  for (std::size_t i = 0; i < kLibraries; ++i) {
    try {
      void* const mark = interpose::Interposer::find(libraries[i].mark);
      if (mark != all.marks[i]) {
        if (std::exchange(all.marks[i], nullptr) != nullptr) all.interposers[i].forget();
        if (mark != nullptr) all.interposers[i].replace(libraries[i].take());
        all.marks[i] = mark;
      }
    } catch (...) {
      all.loaded = 0;  // out of memory: once more, the next time
    }
    if (all.marks[i] == nullptr) continue;
    all.interposers[i].apply();
    if (!all.interposers[i].complete()) all.loaded = 0;
  }
}

}  // namespace

void look_again() noexcept {
  if (busy.test_and_set(std::memory_order_acquire)) return;
  Hook& all = hook();
  if (all.on && changed(all)) apply(all);
  Busy::give();
}

std::string count_submitted() noexcept {
#if defined(__x86_64__) || defined(__aarch64__)
  if (!can_read_memory()) return "process_vm_readv is not permitted here";
  const Busy guard;
  Hook& all = hook();
  if (all.on) return {};
  static const int registered =
      pthread_atfork([] { Busy::take(); }, [] { Busy::give(); }, [] { Busy::give(); });
  if (registered != 0) return "no memory for a fork handler";
  all.on = true;
  on_lookup = look_again;
  changed(all);
  apply(all);
  return {};
#else
  return "not on this processor";
#endif
}

void leave_submitted() noexcept {
  const Busy guard;
  Hook& all = hook();
  if (!all.on) return;
  all.on = false;
  for (interpose::Interposer& interposer : all.interposers) interposer.restore();
}

}  // namespace haiprof::io

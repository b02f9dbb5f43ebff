// The only step machine of this process: which thread feeds it, and what other threads may add.
//
// The machine belongs to the thread that trains. A thread that only fetches batches or evaluates
// has it until another one calls a module with gradients or runs a backward pass; that one keeps it
// until it ends. Of other threads only two things count: a module call while the owner is in its
// backward pass is recomputation (the engine's device threads), and so does an optimizer that steps
// there.
//
// open() and close() take a few tens of ns and are called a few times a step. Module calls inside
// module calls are not tokens: they cost one increment of a thread-local count.
#pragma once

#include <atomic>
#include <cstdint>

#include "phase/current.h"
#include "phase/machine.h"
#include "phase/span.h"

namespace haiprof::phase {

struct Thread {
  std::uint32_t attachment;      // what attachments was when the rest was true
  std::uint32_t calls;           // module calls open on this thread, since the last outer token
  std::uint64_t recompute_from;  // ticks; 0 = not recomputing
  std::uint64_t backward_from;   // ticks; 0 = not between torch.autograd.backward and the engine
};

extern __thread Thread this_thread __attribute__((tls_model("initial-exec")));

// How often the hooks were removed. Calls that were open then never end for us, on any thread.
extern std::atomic<std::uint32_t> attachments;

inline void forget_unended() noexcept {
  const std::uint32_t present = attachments.load(std::memory_order_relaxed);
  if (this_thread.attachment != present) this_thread = {present, 0, 0, 0};
}

// True when the call is an outermost one.
inline bool enter_call() noexcept {
  forget_unended();
  return this_thread.calls++ == 0;
}

// True when an outermost call may have ended. Hooks that were attached in the middle of a call see
// its end and not its beginning.
inline bool leave_call() noexcept {
  if (this_thread.calls > 1) {
    --this_thread.calls;
    return false;
  }
  this_thread.calls = 0;
  return true;
}

// Module calls inside a token are counted on their own.
class CallScope {
 public:
  CallScope() noexcept : outside_(this_thread.calls) { this_thread.calls = 0; }
  ~CallScope() { this_thread.calls = outside_; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  std::uint32_t outside_;
};

// torch.autograd.backward was called: the engine's backward pass that follows began here already.
void enter_backward() noexcept;
inline void leave_backward() noexcept { this_thread.backward_from = 0; }

Token open(Kind kind, std::uint64_t key, bool gradients) noexcept;
void close(Kind kind, Token token, End end, std::uint64_t key = 0) noexcept;

// Whether it matters which module is called; else open_forward() may be given any key.
bool wants_modules() noexcept;
// kind: forward or compiled; close_forward() closes both. Whether a forward pass begins.
bool open_forward(Kind kind, std::uint64_t key, bool gradients) noexcept;
void close_forward() noexcept;
void open_optimizer(std::uint64_t key) noexcept;
void close_optimizer(End end) noexcept;

// The user's own step boundary, from any thread.
void mark() noexcept;

// The iterator of a loader was dropped: nothing more comes of it.
void drop_loader(std::uint64_t key) noexcept;

// Whether another thread than this one trains.
bool trained_elsewhere() noexcept;

// At stop and at exit: emits what is whole. In a forked child: forgets everything.
void finish() noexcept;
void reset() noexcept;

// The hooks were removed.
void detached() noexcept;

// Called with the machine's input and output.
struct Listener {
  // The owner opens or closes a call that may give work to a GPU. Before the machine hears of it,
  // so that the span that ends here finds the boundary known.
  void (*boundary)(Kind kind, std::uint64_t ticks) noexcept = nullptr;
  // A span was emitted, which may be long after its end. Under the lock, so it may not wait.
  void (*span)(const Span& span) noexcept = nullptr;
  // A step has ended. On the owner, outside the lock.
  void (*stepped)() noexcept = nullptr;
};

// For good: a listener that has heard enough does nothing. It must live as long as the process.
void listen(const Listener& listener) noexcept;

// Called on each thread that becomes the owner, outside the lock, so that it can
// arrange for ended() to be called as soon as the thread's Python ends: whoever waits for that
// may start the next training thread before the thread itself is gone.
using Owned = void (*)(Thread& thread) noexcept;
void notify_owners(Owned owned) noexcept;
void ended(const Thread& thread) noexcept;

}  // namespace haiprof::phase

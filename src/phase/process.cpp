#include "phase/process.h"

#include <pthread.h>

#include <atomic>
#include <iterator>
#include <mutex>

#include "phase/spin_lock.h"
#include "ring/writer.h"

namespace haiprof::phase {

__thread Thread this_thread __attribute__((tls_model("initial-exec"))) = {0, 0, 0, 0};
std::atomic<std::uint32_t> attachments{0};

namespace {

// A claim takes the machine from a lower one.
enum class Claim : std::uint8_t { none, fetching, training };

using Guard = std::lock_guard<SpinLock>;

// The names' ids in the ring that is open now. Each thread could intern for itself; one table under
// the machine's lock is enough, because spans are pushed under it.
class Names {
 public:
  std::uint32_t id(Name name, const ring::Ids& ids) noexcept {
    if (ids.generation != generation_) {
      for (std::size_t i = 0; i < std::size(ids_); ++i) ids_[i] = ring::intern(kNames[i]);
      generation_ = ids.generation;
    }
    return ids_[static_cast<std::size_t>(name)];
  }

 private:
  std::uint32_t generation_ = 0;
  std::uint32_t ids_[static_cast<std::size_t>(Name::count)] = {};
};

SpinLock lock;
Names names;

// The stream timer, the windows and the allocator's series.
constexpr std::size_t kMostListeners = 4;
std::atomic<const Listener*> listeners[kMostListeners];

std::atomic<bool> owner_in_forward{false};

// Fetching a batch gives a GPU no work. Clearing gradients hardly does, and is reported only where
// it divides the forward pass.
void tell_boundary(Kind kind, std::uint64_t ticks) noexcept {
  if (kind == Kind::iterate || kind == Kind::fetch) return;
  if (kind == Kind::zero && !owner_in_forward.load(std::memory_order_relaxed)) return;
  for (const auto& listener : listeners) {
    const Listener* const heard = listener.load(std::memory_order_acquire);
    if (heard == nullptr) return;
    if (heard->boundary != nullptr) heard->boundary(kind, ticks);
  }
}

void report_step() noexcept {
  for (const auto& listener : listeners) {
    const Listener* const heard = listener.load(std::memory_order_acquire);
    if (heard == nullptr) return;
    if (heard->stepped != nullptr) heard->stepped();
  }
}

void push(void*, const Span& span) noexcept {
  for (const auto& listener : listeners) {
    const Listener* const heard = listener.load(std::memory_order_acquire);
    if (heard == nullptr) break;
    if (heard->span != nullptr) heard->span(span);
  }
  if (!ring::is_open()) return;
  const auto category = span.name == Name::step             ? ring::Category::step
                        : span.name == Name::inference_step ? ring::Category::inference_step
                                                            : ring::Category::phase;
  const ring::Ids ids;
  ring::push_span(span.start, span.end, names.id(span.name, ids), category, span.step, ring::kNone,
                  0, ids);
}

Machine machine{Sink{push, nullptr}};
std::atomic<const Thread*> owner{nullptr};
Claim claim = Claim::none;
std::atomic<bool> owner_in_backward{false};
std::atomic<bool> modules_wanted{true};

std::atomic<Owned> owned{nullptr};

void owner_ended(void* thread) noexcept { ended(*static_cast<Thread*>(thread)); }

pthread_key_t end_of_thread() noexcept {
  static const pthread_key_t key = [] {
    pthread_key_t thread_key{};
    pthread_key_create(&thread_key, owner_ended);
    return thread_key;
  }();
  return key;
}

bool is_owner() noexcept { return owner.load(std::memory_order_acquire) == &this_thread; }

// Under the lock.
bool own(Claim new_claim) noexcept {
  const Thread* const present = owner.load(std::memory_order_acquire);
  if (present == &this_thread) {
    if (new_claim > claim) claim = new_claim;
    return true;
  }
  if (present != nullptr && new_claim <= claim) return false;
  // The owner before, if any, has ended or only fetched.
  if (claim != Claim::none) machine.hand_over();
  claim = new_claim;
  pthread_setspecific(end_of_thread(), &this_thread);
  owner.store(&this_thread, std::memory_order_release);
  return true;
}

// Under the lock, after every change.
void publish() noexcept {
  current_step_number.store(machine.current_step(), std::memory_order_relaxed);
  owner_in_forward.store(machine.in_forward(), std::memory_order_relaxed);
  owner_in_backward.store(machine.in_backward(), std::memory_order_relaxed);
  modules_wanted.store(machine.wants_modules(), std::memory_order_relaxed);
}

// Changes the machine under the lock, and reports the step that this ended. Returns what `update`
// does.
template <typename Update>
bool change(Update&& update) noexcept {
  bool changed = false;
  std::uint64_t steps = 0;
  {
    const Guard guard(lock);
    steps = machine.completed();
    changed = update();
    steps = machine.completed() - steps;
    if (changed) publish();
  }
  if (steps != 0) report_step();
  return changed;
}

Claim claim_of(Kind kind, bool gradients) noexcept {
  switch (kind) {
    case Kind::iterate:
    case Kind::fetch:
      return Claim::fetching;
    case Kind::forward:
    case Kind::compiled:
      return gradients ? Claim::training : Claim::fetching;
    case Kind::backward:
      return Claim::training;
    case Kind::optimizer:
    case Kind::scaler:
      return Claim::training;
    case Kind::zero:
    case Kind::own:
      return Claim::none;
  }
  return Claim::none;
}

Token open(Kind kind, std::uint64_t key, bool gradients, std::uint32_t calls) noexcept {
  std::uint64_t now = ring::now_ticks();
  forget_unended();
  const bool prepared = kind == Kind::backward && this_thread.backward_from != 0;
  if (prepared) {
    now = this_thread.backward_from;
    this_thread.backward_from = 0;
  }
  // The engine's device threads must not become owners while the owner waits for them.
  if (owner_in_backward.load(std::memory_order_relaxed) && !is_owner()) {
    const bool recomputes = kind == Kind::forward || (kind == Kind::compiled && gradients);
    if (recomputes) this_thread.recompute_from = now;
    return 0;
  }
  const bool was_owner = is_owner();
  if (!was_owner && claim_of(kind, gradients) == Claim::none) return 0;
  if (was_owner && !prepared) tell_boundary(kind, now);
  Token token = 0;
  const bool owns = change([&] {
    if (!own(claim_of(kind, gradients))) return false;
    token = machine.open(kind, now, key, gradients, calls);
    return true;
  });
  if (!owns) return 0;
  if (!was_owner) {
    if (const Owned on_owned = owned.load(std::memory_order_relaxed)) on_owned(this_thread);
  }
  return token;
}

}  // namespace

Token open(Kind kind, std::uint64_t key, bool gradients) noexcept {
  return open(kind, key, gradients, 0);
}

void close(Kind kind, Token token, End end, std::uint64_t key) noexcept {
  if (token == 0 || !is_owner()) return;
  const std::uint64_t now = ring::now_ticks();
  tell_boundary(kind, now);
  change([&] {
    machine.close(token, now, end, key);
    return true;
  });
}

bool wants_modules() noexcept { return modules_wanted.load(std::memory_order_relaxed); }

bool open_forward(Kind kind, std::uint64_t key, bool gradients) noexcept {
  const bool before = owner_in_forward.load(std::memory_order_relaxed);
  return open(kind, key, gradients, 0) != 0 && !before &&
         owner_in_forward.load(std::memory_order_relaxed);
}

void close_forward() noexcept {
  const std::uint64_t now = ring::now_ticks();
  const std::uint64_t from = this_thread.recompute_from;
  if (from != 0) {
    this_thread.recompute_from = 0;
    const Guard guard(lock);
    // The engine waits for its threads: what outlives the backward pass was no part of it.
    if (machine.in_backward_since(from)) {
      push(nullptr, Span{from, now, Name::recompute, machine.current_step()});
    }
    return;
  }
  if (!is_owner()) return;
  tell_boundary(Kind::forward, now);
  change([&] {
    if (!is_owner()) return false;  // another thread began to train meanwhile
    machine.close_forward(now);
    return true;
  });
}

void open_optimizer(std::uint64_t key) noexcept {
  const Token token = open(Kind::optimizer, key, true, this_thread.calls);
  if (token != 0) this_thread.calls = 0;
}

void close_optimizer(End end) noexcept {
  if (is_owner()) {
    const std::uint64_t now = ring::now_ticks();
    tell_boundary(Kind::optimizer, now);
    change([&] {
      if (!is_owner()) return false;  // another thread began to train meanwhile
      std::uint32_t calls = 0;
      if (machine.close_optimizer(now, end, calls)) this_thread.calls = calls;
      return true;
    });
  } else if (end != End::raised && owner_in_backward.load(std::memory_order_relaxed)) {
    const Guard guard(lock);
    if (machine.in_backward()) machine.stepped_in_backward();
  }
}

void enter_backward() noexcept {
  forget_unended();
  this_thread.backward_from = ring::now_ticks();
  if (is_owner()) tell_boundary(Kind::backward, this_thread.backward_from);
}

void mark() noexcept {
  const std::uint64_t now = ring::now_ticks();
  change([&] {
    if (owner.load(std::memory_order_acquire) == nullptr) own(Claim::fetching);
    machine.mark(now);
    return true;
  });
}

void drop_loader(std::uint64_t key) noexcept {
  const Guard guard(lock);
  if (is_owner()) machine.drop_loader(key);
}

bool trained_elsewhere() noexcept {
  const Guard guard(lock);
  return claim == Claim::training && !is_owner() &&
         owner.load(std::memory_order_acquire) != nullptr;
}

void finish() noexcept {
  const Guard guard(lock);
  machine.finish();
  publish();
}

void reset() noexcept {
  lock.unlock();
  const Guard guard(lock);
  machine.reset();
  claim = Claim::none;
  owner.store(nullptr, std::memory_order_release);
  detached();
  publish();
}

void listen(const Listener& listener) noexcept {
  for (auto& place : listeners) {
    const Listener* expected = nullptr;
    if (place.compare_exchange_strong(expected, &listener) || expected == &listener) return;
  }
}

void notify_owners(Owned on_owned) noexcept { owned.store(on_owned, std::memory_order_relaxed); }

// Gives the machine away. What the thread left open is written by the next owner, or at the end:
// the thread's own lane may be gone already.
void ended(const Thread& thread) noexcept {
  const Thread* expected = &thread;
  owner.compare_exchange_strong(expected, nullptr, std::memory_order_acq_rel);
}

void detached() noexcept { attachments.fetch_add(1, std::memory_order_relaxed); }

}  // namespace haiprof::phase

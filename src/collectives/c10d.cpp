#include "collectives/c10d.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "collectives/c10d_abi.h"
#include "collectives/groups.h"
#include "collectives/in_flight.h"
#include "interpose/interposer.h"
#include "phase/current.h"
#include "ring/writer.h"

namespace haiprof::collectives {
namespace {

using interpose::Definition;
using interpose::Interposer;
using ring::kNone;
using ring::kNoType;
using ring::Operation;

// A wait shorter than this is none: the operation was done.
constexpr std::uint64_t kShortestWaitNs = 2'000;
// Classes of works whose waiting is watched, each with a table of its own.
constexpr std::size_t kMostTables = 64;
// Of a lane of a thread of gloo, of which a job may have dozens.
constexpr std::uint32_t kChunks = 4;

enum Backend : std::size_t { gloo, nccl, kBackends };
constexpr const char* kClasses[] = {abi::kGloo, abi::kNccl};
constexpr const char* kNames[] = {"gloo", "nccl"};

struct Patch {
  void** slot;
  void* theirs;
  void* ours;
};

// Of what is put where.
std::mutex mutex;

// Never destroyed: threads of c10d may call ours until the process is gone.
struct State {
  std::vector<Patch> patches;  // under the mutex, like the rest down to sees_ends
  bool watched[kBackends] = {};
  Interposer within{Interposer::Calls::within};
  bool sees_ends = false;

  Groups groups;
  InFlight in_flight;
  std::array<std::atomic<void**>, kMostTables> waiting_tables{};  // ours stand in them
  std::size_t table_slots = 0;                                    // of a work's class
};

State& state() noexcept {
  static State& only = *new State;
  return only;
}

std::atomic<bool> on{false};

struct Torch {
  std::atomic<abi::GetNumel> numel{nullptr};
  std::atomic<abi::GetType> type{nullptr};
  std::atomic<void*> sequence[kBackends] = {};
  std::atomic<void*> enqueue{nullptr}, execute{nullptr}, fail{nullptr}, work_wait{nullptr};
};
Torch torch;

struct OwnThread {
  std::uint32_t number, generation;  // of the ring: a forked process has another one
};
__thread OwnThread own_thread __attribute__((tls_model("initial-exec"))) = {0, 0};

std::uint32_t this_thread() noexcept {
  const std::uint32_t generation = ring::generation();
  if (own_thread.number == 0 || own_thread.generation != generation) {
    own_thread = {static_cast<std::uint32_t>(syscall(SYS_gettid)), generation};
  }
  return own_thread.number;
}

// -- what is recorded ----------------------------------------------------------------------------

void record(const Asked& asked, std::uint64_t end, std::uint64_t begun, std::uint16_t flags) {
  const ring::Ids ids;
  const std::uint32_t group = asked.group != nullptr ? asked.group->text() : kNone;
  ring::push_at<ring::CollectivePayload>(
      ring::RecordType::collective, end,
      [&](ring::CollectivePayload& p) {
        p.duration_ticks = end - asked.ticks;
        p.queued_ticks = begun != 0 ? begun - asked.ticks : ring::kNoTicks;
        p.sequence = asked.sequence;
        p.elements_in = asked.elements_in;
        p.elements_out = asked.elements_out;
        p.group = group;
        p.size = asked.group != nullptr ? asked.group->size() : kNone;
        p.thread = asked.thread;
        p.step = asked.step;
        p.peer = asked.peer;
        p.operation = asked.operation;
        p.type = asked.type;
        p.flags = flags;
      },
      ids);
}

void record_wait(const Which& which, std::uint64_t begin, std::uint64_t end) {
  const ring::Ids ids;
  const std::uint32_t group = which.group != nullptr ? which.group->text() : kNone;
  ring::push_at<ring::CollectiveWaitPayload>(
      ring::RecordType::collective_wait, end,
      [&](ring::CollectiveWaitPayload& p) {
        p.duration_ticks = end - begin;
        p.sequence = which.sequence;
        p.group = group;
        p.size = which.group != nullptr ? which.group->size() : kNone;
        p.step = phase::current_step();
        p.peer = which.peer;
        p.operation = which.operation;
      },
      ids);
}

std::uint64_t shortest_wait() noexcept {
  static const std::uint64_t ticks = ring::ticks_per_second() * kShortestWaitNs / 1'000'000'000;
  return ticks;
}

// -- how far groups are --------------------------------------------------------------------------

void note_asked(const Asked& asked, bool sees_ends) noexcept {
  ring::GroupProgress* const to = asked.group != nullptr ? asked.group->progress() : nullptr;
  if (to == nullptr) return;
  to->ticks.store(asked.ticks, std::memory_order_relaxed);
  to->elements_in.store(asked.elements_in, std::memory_order_relaxed);
  to->elements_out.store(asked.elements_out, std::memory_order_relaxed);
  to->peer.store(asked.peer, std::memory_order_relaxed);
  to->operation.store(static_cast<std::uint8_t>(asked.operation), std::memory_order_relaxed);
  to->type.store(asked.type, std::memory_order_relaxed);
  if (!sees_ends) to->done.store(ring::kUnseen, std::memory_order_relaxed);
  to->asked.store(asked.sequence, std::memory_order_release);
}

void note_done(const Asked& asked) noexcept {
  ring::GroupProgress* const to = asked.group != nullptr ? asked.group->progress() : nullptr;
  if (to == nullptr) return;
  std::uint64_t done = to->done.load(std::memory_order_relaxed);
  while (done < asked.sequence &&
         !to->done.compare_exchange_weak(done, asked.sequence, std::memory_order_relaxed)) {
  }
}

std::uint32_t place_of(Group* group) noexcept {
  return group != nullptr ? ring::index_of(group->progress()) : kNone;
}

// -- one call ------------------------------------------------------------------------------------

// What an operation is, by its arguments.
struct Described {
  Operation operation;
  std::uint64_t elements_in = 0, elements_out = 0;
  std::uint32_t peer = kNone;
  std::uint8_t type = kNoType;
};

// A call that the job makes. Those that its implementation makes are parts of it.
class Call {
 public:
  Call(void* backend, Backend kind, const Described& what) noexcept;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    current = nullptr;
    if (returned_) return;
    if (!is_message_) note_done(asked_);
    record(asked_, ring::now_ticks(), 0, ring::kCallOnly | ring::kFailed);
  }

  // A work of gloo goes to its threads.
  void queue(void* work) noexcept;
  void returned(void* work) noexcept;

  static __thread Call* current __attribute__((tls_model("initial-exec")));

 private:
  const Backend kind_;
  Asked asked_;
  const void* queued_ = nullptr;
  const bool is_message_;
  bool returned_ = false;
};

__thread Call* Call::current = nullptr;

Call::Call(void* backend, Backend kind, const Described& what) noexcept
    : kind_(kind),
      is_message_(what.operation == Operation::send || what.operation == Operation::recv) {
  asked_.group = state().groups.of(backend);
  asked_.elements_in = what.elements_in;
  asked_.elements_out = what.elements_out;
  asked_.peer = what.peer;
  asked_.operation = what.operation;
  asked_.type = what.type;
  asked_.step = phase::current_step();
  asked_.thread = this_thread();
  if (asked_.group != nullptr) {
    asked_.sequence = !is_message_                        ? asked_.group->next_collective()
                      : what.operation == Operation::send ? asked_.group->next_sent(what.peer)
                                                          : asked_.group->next_received(what.peer);
  }
  current = this;
  asked_.ticks = ring::now_ticks();
  if (!is_message_) note_asked(asked_, kind_ == gloo && state().sees_ends);
}

std::uint64_t sequence_of(void* backend, Backend kind) noexcept {
  const auto sequence = reinterpret_cast<std::uint64_t (*)(void*)>(
      torch.sequence[kind].load(std::memory_order_relaxed));
  return sequence != nullptr ? sequence(backend) : 0;
}

void watch_waiting(void* work) noexcept;

void Call::queue(void* work) noexcept {
  if (queued_ != nullptr) {  // of several works, which the last one ends, all are one operation
    Asked before;
    state().in_flight.take(queued_, before);
  }
  queued_ = state().in_flight.add(work, asked_) ? work : nullptr;
  watch_waiting(work);
}

void Call::returned(void* work) noexcept {
  returned_ = true;
  if (queued_ != nullptr) return;  // it is recorded by who works on it
  // A message of gloo ends where it is waited for.
  const bool ends_later = kind_ == gloo && is_message_ && work != nullptr;
  if (ends_later && state().in_flight.add(work, asked_)) return;
  // Of this one nobody will see the end.
  if (!is_message_) note_done(asked_);
  record(asked_, ring::now_ticks(), 0, ring::kCallOnly);
}

// -- arguments -----------------------------------------------------------------------------------

std::uint64_t elements(const abi::Tensor& tensor) noexcept {
  const abi::GetNumel numel = torch.numel.load(std::memory_order_relaxed);
  std::int64_t count = 0;
  if (numel == nullptr || tensor == nullptr || numel(&tensor, &count) != 0) return 0;
  return count > 0 ? static_cast<std::uint64_t>(count) : 0;
}

std::uint64_t elements(const abi::Tensors& tensors) noexcept {
  std::uint64_t count = 0;
  for (const abi::Tensor& tensor : tensors) count += elements(tensor);
  return count;
}

std::uint64_t elements(const abi::TensorLists& lists) noexcept {
  std::uint64_t count = 0;
  for (const abi::Tensors& tensors : lists) count += elements(tensors);
  return count;
}

std::uint8_t type_of(const abi::Tensor& tensor) noexcept {
  const abi::GetType type = torch.type.load(std::memory_order_relaxed);
  std::int32_t number = 0;
  if (type == nullptr || tensor == nullptr || type(&tensor, &number) != 0) return kNoType;
  return number >= 0 && number < kNoType ? static_cast<std::uint8_t>(number) : kNoType;
}

std::uint8_t type_of(const abi::Tensors& tensors) noexcept {
  return tensors.begin() != tensors.end() ? type_of(*tensors.begin()) : kNoType;
}

std::uint32_t root_of(const abi::RootedOptions& options) noexcept {
  return options.root >= 0 && options.root < kNone ? static_cast<std::uint32_t>(options.root)
                                                   : kNone;
}

std::uint32_t rank_of(int rank) noexcept {
  return rank >= 0 ? static_cast<std::uint32_t>(rank) : kNone;
}

template <Operation kOperation>
struct InPlace {  // what comes in goes out
  Described operator()(const abi::Tensors& tensors, const abi::Options&) const noexcept {
    const std::uint64_t count = elements(tensors);
    return {kOperation, count, count, kNone, type_of(tensors)};
  }
};

struct Broadcast {
  Described operator()(const abi::Tensors& tensors,
                       const abi::RootedOptions& options) const noexcept {
    const std::uint64_t count = elements(tensors);
    return {Operation::broadcast, count, count, root_of(options), type_of(tensors)};
  }
};

// Outputs come first.
template <Operation kOperation, typename Out, typename In>
struct OutIn {
  Described operator()(const Out& out, const In& in, const abi::Options&) const noexcept {
    return {kOperation, elements(in), elements(out), kNone, type(out, in)};
  }
  static std::uint8_t type(const abi::TensorLists&, const abi::Tensors& in) noexcept {
    return type_of(in);
  }
  template <typename Any>
  static std::uint8_t type(const abi::Tensors& out, const Any&) noexcept {
    return type_of(out);
  }
  static std::uint8_t type(const abi::Tensor& out, const abi::Tensor&) noexcept {
    return type_of(out);
  }
};

template <Operation kOperation, typename Out, typename In>
struct Rooted {
  Described operator()(const Out& out, const In& in,
                       const abi::RootedOptions& options) const noexcept {
    return {kOperation, elements(in), elements(out), root_of(options),
            OutIn<kOperation, Out, In>::type(out, in)};
  }
};

using Splits = abi::Vector<std::int64_t>;
struct AllToAllBase {
  Described operator()(const abi::Tensor& out, const abi::Tensor& in, const Splits&, const Splits&,
                       const abi::Options&) const noexcept {
    return {Operation::all_to_all, elements(in), elements(out), kNone, type_of(in)};
  }
};

struct Barrier {
  Described operator()(const abi::Options&) const noexcept { return {Operation::barrier}; }
};

struct Send {
  Described operator()(const abi::Tensors& tensors, int peer, int) const noexcept {
    return {Operation::send, elements(tensors), 0, rank_of(peer), type_of(tensors)};
  }
};

struct Recv {
  Described operator()(const abi::Tensors& tensors, int peer, int) const noexcept {
    return {Operation::recv, 0, elements(tensors), rank_of(peer), type_of(tensors)};
  }
};

struct RecvAny {
  Described operator()(const abi::Tensors& tensors, int) const noexcept {
    return {Operation::recv, 0, elements(tensors), kNone, type_of(tensors)};
  }
};

// -- methods -------------------------------------------------------------------------------------

// One method of one backend: the original, and ours.
template <Backend kBackend, typename Describe, std::size_t kVariant, typename... Arguments>
struct Method {
  using Function = abi::WorkPointer (*)(void*, Arguments...);

  static inline std::atomic<Function> original{nullptr};

  static abi::WorkPointer ours(void* backend, Arguments... arguments) {
    const Function theirs = original.load(std::memory_order_relaxed);
    if (Call::current != nullptr || !on.load(std::memory_order_relaxed)) {
      return theirs(backend, arguments...);
    }
    Call call(backend, kBackend, Describe{}(arguments...));
    abi::WorkPointer work = theirs(backend, arguments...);
    call.returned(work.work);
    return work;
  }
};

struct Found {
  const char* name;
  void (*remember)(void* theirs);
  void* ours;
};

template <Backend kBackend, typename Describe, std::size_t kVariant, typename... Arguments>
Found found(const char* name) {
  using This = Method<kBackend, Describe, kVariant, Arguments...>;
  return {name,
          [](void* theirs) {
            This::original.store(reinterpret_cast<typename This::Function>(theirs),
                                 std::memory_order_relaxed);
          },
          reinterpret_cast<void*>(This::ours)};
}

template <Backend kBackend>
std::vector<Found> methods() {
  using abi::Options;
  using abi::RootedOptions;
  using abi::Tensor;
  using abi::TensorLists;
  using abi::Tensors;
  using O = Operation;
  constexpr Backend b = kBackend;
  return {
      found<b, InPlace<O::all_reduce>, 0, Tensors&, const Options&>(abi::kAllReduce),
      found<b, InPlace<O::all_reduce>, 1, Tensors&, const Options&>(abi::kAllReduceSparse),
      found<b, InPlace<O::all_reduce>, 2, Tensors&, const Options&>(abi::kAllReduceCoalesced),
      found<b, Broadcast, 0, Tensors&, const RootedOptions&>(abi::kBroadcast),
      found<b, InPlace<O::reduce>, 0, Tensors&, const Options&>(abi::kReduce),
      found<b, OutIn<O::all_gather, TensorLists, Tensors>, 0, TensorLists&, Tensors&,
            const Options&>(abi::kAllGather),
      found<b, OutIn<O::all_gather, Tensor, Tensor>, 0, Tensor&, Tensor&, const Options&>(
          abi::kAllGatherBase),
      found<b, OutIn<O::all_gather, TensorLists, Tensors>, 1, TensorLists&, Tensors&,
            const Options&>(abi::kAllGatherCoalesced),
      found<b, OutIn<O::all_gather, Tensors, Tensors>, 0, Tensors&, Tensors&, const Options&>(
          abi::kAllGatherInto),
      found<b, OutIn<O::reduce_scatter, Tensors, TensorLists>, 0, Tensors&, TensorLists&,
            const Options&>(abi::kReduceScatter),
      found<b, OutIn<O::reduce_scatter, Tensor, Tensor>, 0, Tensor&, Tensor&, const Options&>(
          abi::kReduceScatterBase),
      found<b, OutIn<O::reduce_scatter, Tensors, Tensors>, 0, Tensors&, Tensors&, const Options&>(
          abi::kReduceScatterInto),
      found<b, OutIn<O::all_to_all, Tensors, Tensors>, 0, Tensors&, Tensors&, const Options&>(
          abi::kAllToAll),
      found<b, AllToAllBase, 0, Tensor&, Tensor&, Splits&, Splits&, const Options&>(
          abi::kAllToAllBase),
      found<b, Rooted<O::gather, TensorLists, Tensors>, 0, TensorLists&, Tensors&,
            const RootedOptions&>(abi::kGather),
      found<b, Rooted<O::scatter, Tensors, TensorLists>, 0, Tensors&, TensorLists&,
            const RootedOptions&>(abi::kScatter),
      found<b, Barrier, 0, const Options&>(abi::kBarrier),
      found<b, Send, 0, Tensors&, int, int>(abi::kSend),
      found<b, Recv, 0, Tensors&, int, int>(abi::kRecv),
      found<b, RecvAny, 0, Tensors&, int>(abi::kRecvAny),
  };
}

// -- which object is which group ----------------------------------------------------------------

__thread Naming* naming __attribute__((tls_model("initial-exec"))) = nullptr;

template <Backend kBackend>
std::uint64_t sequence_number(void* backend) {
  const std::uint64_t sequence = sequence_of(backend, kBackend);
  if (naming != nullptr) naming->is(backend, sequence);
  return sequence;
}

template <Backend kBackend, std::size_t kVariant>
struct End {
  static inline std::atomic<void (*)(void*)> original{nullptr};

  static void ours(void* backend) {
    if (Group* const gone = state().groups.of(backend)) gone->leave_progress();
    state().groups.remove(backend);
    original.load(std::memory_order_relaxed)(backend);
  }
  static void remember(void* theirs) {
    original.store(reinterpret_cast<void (*)(void*)>(theirs), std::memory_order_relaxed);
  }
};

// -- the works of gloo ---------------------------------------------------------------------------

// Both take a work by a pointer to its pointer.
void enqueue(void* backend, void** work) {
  if (Call::current != nullptr) Call::current->queue(*work);
  reinterpret_cast<void (*)(void*, void**)>(torch.enqueue.load(std::memory_order_relaxed))(backend,
                                                                                           work);
}

__thread bool failed __attribute__((tls_model("initial-exec"))) = false;

void fail(void* work, const void* error) {
  failed = true;
  reinterpret_cast<void (*)(void*, const void*)>(torch.fail.load(std::memory_order_relaxed))(work,
                                                                                             error);
}

void execute(void** work) {
  const auto theirs =
      reinterpret_cast<void (*)(void**)>(torch.execute.load(std::memory_order_relaxed));
  const void* const which = *work;
  failed = false;
  const std::uint64_t begun = ring::now_ticks();
  theirs(work);
  Asked asked;
  if (!state().in_flight.take(which, asked)) return;
  if (ring::tls_lane == nullptr) ring::claim_lane(kChunks);
  if (asked.operation != Operation::send && asked.operation != Operation::recv) note_done(asked);
  record(asked, ring::now_ticks(), begun, failed ? ring::kFailed : 0);
}

// Waiting for a work. Each class of works has its own table; of several originals, one function.
template <std::size_t kVariant>
struct Wait {
  using Function = bool (*)(void*, std::int64_t);
  static inline std::atomic<Function> original{nullptr};

  static bool ours(void* work, std::int64_t timeout) {
    constexpr bool kIsMessage = kVariant != 0;
    const Function theirs = original.load(std::memory_order_relaxed);
    Which which;
    if (!state().in_flight.find(work, which)) return theirs(work, timeout);
    struct Waiting {
      void* work;
      const Which& which;
      std::uint64_t begin = ring::now_ticks();
      bool done = false;

      ~Waiting() {
        const std::uint64_t end = ring::now_ticks();
        Asked asked;
        if (kIsMessage && state().in_flight.take(work, asked)) {
          record(asked, end, 0, done ? 0 : ring::kFailed);
        }
        if (end - begin > shortest_wait()) record_wait(which, begin, end);
      }
    } waiting{work, which};
    const ring::BlockedHere blocked(this_thread(), place_of(which.group), which.sequence,
                                    which.peer, which.operation, waiting.begin);
    const bool result = theirs(work, timeout);
    waiting.done = true;
    return result;
  }
  static void remember(void* theirs) {
    original.store(reinterpret_cast<Function>(theirs), std::memory_order_relaxed);
  }
};

// -- tables --------------------------------------------------------------------------------------

// Puts ours in the place of a function wherever a table has it. With the mutex.
bool put(State& all, void** table, std::size_t slots, void* theirs, void* ours) {
  bool any = false;
  for (std::size_t i = 0; i < slots; ++i) {
    if (std::atomic_ref<void*>(table[i]).load(std::memory_order_relaxed) != theirs) continue;
    if (!interpose::store(&table[i], ours, true)) continue;
    all.patches.push_back({&table[i], theirs, ours});
    any = true;
  }
  return any;
}

// Looks once at each class of works that comes by.
void watch_waiting(void* work) noexcept {
  State& all = state();
  void* const theirs = torch.work_wait.load(std::memory_order_relaxed);
  if (theirs == nullptr || work == nullptr) return;
  void** const table = *static_cast<void***>(work);
  for (std::atomic<void**>& known : all.waiting_tables) {
    void** const there = known.load(std::memory_order_acquire);
    if (there == table) return;
    if (there != nullptr) continue;
    const std::lock_guard guard(mutex);
    void** nothing = nullptr;
    if (!on.load(std::memory_order_relaxed)) return;
    if (!known.compare_exchange_strong(nothing, table, std::memory_order_acq_rel)) {
      if (nothing == table) return;
      continue;
    }
    try {
      put(all, table, all.table_slots, theirs, reinterpret_cast<void*>(Wait<0>::ours));
    } catch (...) {
      // No memory to remember it by: nobody sees this class wait.
    }
    return;
  }
}

struct Table {
  void** slots = nullptr;
  std::size_t count = 0;
};

Table table_of(const std::string& name) {
  const Definition found = Interposer::find_definition(name.c_str());
  return {static_cast<void**>(found.address), found.bytes / sizeof(void*)};
}

template <std::size_t kVariant>
void watch_messages(State& all, const char* class_name) {
  void* const theirs = Interposer::find(abi::method(class_name, abi::kWait).c_str());
  const Table table = table_of(abi::table(class_name));
  if (theirs == nullptr || table.slots == nullptr) return;
  Wait<kVariant>::remember(theirs);
  put(all, table.slots, table.count, theirs, reinterpret_cast<void*>(Wait<kVariant>::ours));
}

template <Backend kBackend>
bool watch_backend(State& all) {
  const Table table = table_of(abi::table(kClasses[kBackend]));
  const auto find = [](const char* mangled) {
    return Interposer::find(abi::method(kClasses[kBackend], mangled).c_str());
  };
  void* const sequence = find(abi::kSequence);
  if (table.slots == nullptr || sequence == nullptr) return false;
  torch.sequence[kBackend].store(sequence, std::memory_order_relaxed);
  bool any = false;
  for (const Found& each : methods<kBackend>()) {
    void* const theirs = find(each.name);
    if (theirs == nullptr) continue;
    each.remember(theirs);
    any |= put(all, table.slots, table.count, theirs, each.ours);
  }
  if (!any) return false;
  using Ended = End<kBackend, 0>;
  using Freed = End<kBackend, 1>;
  if (void* const theirs = find(abi::kEnd)) {
    Ended::remember(theirs);
    put(all, table.slots, table.count, theirs, reinterpret_cast<void*>(Ended::ours));
  }
  if (void* const theirs = find(abi::kEndAndFree)) {
    Freed::remember(theirs);
    put(all, table.slots, table.count, theirs, reinterpret_cast<void*>(Freed::ours));
  }
  put(all, table.slots, table.count, sequence, reinterpret_cast<void*>(sequence_number<kBackend>));
  return true;
}

// The works of gloo: where they are put into its queue, and where its threads take them from it.
bool watch_works(State& all) {
  const auto find = [](const char* mangled) {
    return Interposer::find(abi::method(abi::kGloo, mangled).c_str());
  };
  void* const queue = find(abi::kEnqueue);
  const char* name = abi::kExecute;
  void* work = find(name);
  if (work == nullptr) work = find(name = abi::kExecuteCopy);
  if (queue == nullptr || work == nullptr) return false;
  torch.enqueue.store(queue, std::memory_order_relaxed);
  torch.execute.store(work, std::memory_order_relaxed);
  static const std::string queue_name = abi::method(abi::kGloo, abi::kEnqueue);
  static const std::string work_name = abi::method(abi::kGloo, name);
  static const std::string fail_name = abi::method(abi::kGloo, abi::kFail);
  std::vector<interpose::Replacement> replaced{
      {queue_name.c_str(), queue, reinterpret_cast<void*>(enqueue)},
      {work_name.c_str(), work, reinterpret_cast<void*>(execute)}};
  if (void* const error = find(abi::kFail)) {
    torch.fail.store(error, std::memory_order_relaxed);
    replaced.push_back({fail_name.c_str(), error, reinterpret_cast<void*>(fail)});
  }
  all.within.replace(std::move(replaced));
  if (all.within.apply() < 2) {
    all.within.forget();
    return false;
  }
  // A class of works has the same methods as their common one, and maybe more.
  all.table_slots = table_of(abi::table("16ProcessGroupGloo9AsyncWork")).count;
  if (void* const wait = Interposer::find(abi::kWorkWait)) {
    Wait<0>::remember(wait);
    torch.work_wait.store(wait, std::memory_order_relaxed);
  }
  watch_messages<1>(all, abi::kGlooSend);
  watch_messages<2>(all, abi::kGlooRecv);
  return true;
}

}  // namespace

void survive_forks() noexcept {
  state();  // a child forked while another thread makes it would wait for that thread for ever
  pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
}

std::vector<std::string> watch() {
  State& all = state();
  const std::lock_guard guard(mutex);
  torch.numel.store(reinterpret_cast<abi::GetNumel>(Interposer::find(abi::kGetNumel)),
                    std::memory_order_relaxed);
  torch.type.store(reinterpret_cast<abi::GetType>(Interposer::find(abi::kGetType)),
                   std::memory_order_relaxed);
  if (!all.watched[gloo]) {
    all.watched[gloo] = watch_backend<gloo>(all);
    if (all.watched[gloo]) all.sees_ends = watch_works(all);
  }
  if (!all.watched[nccl]) all.watched[nccl] = watch_backend<nccl>(all);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kBackends; ++i) {
    if (!all.watched[i]) continue;
    const bool ends = i == gloo && all.sees_ends;
    names.push_back(ends ? kNames[i] : std::string(kNames[i]) + " without ends");
  }
  on.store(true, std::memory_order_relaxed);
  return names;
}

void leave() noexcept {
  State& all = state();
  const std::lock_guard guard(mutex);
  on.store(false, std::memory_order_relaxed);
  for (const Patch& patch : all.patches) {
    std::atomic_ref<void*> slot(*patch.slot);
    if (slot.load(std::memory_order_relaxed) == patch.ours) {
      interpose::store(patch.slot, patch.theirs, true);
    }
  }
  all.patches.clear();
  all.within.restore();
  all.within.forget();
  for (std::atomic<void**>& table : all.waiting_tables) table.store(nullptr);
  std::fill(std::begin(all.watched), std::end(all.watched), false);
  all.sees_ends = false;
}

Naming::Naming(std::string name, std::uint32_t size) : name_(std::move(name)), size_(size) {
  naming = this;
}

Naming::~Naming() { naming = nullptr; }

void Naming::is(const void* backend, std::uint64_t sequence) noexcept {
  try {
    done_ = state().groups.add(backend, new Group(name_, size_, sequence));
  } catch (...) {
    done_ = false;  // out of memory
  }
}

}  // namespace haiprof::collectives

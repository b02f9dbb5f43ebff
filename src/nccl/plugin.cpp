#include "nccl/plugin.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "nccl/abi.h"
#include "nccl/communicators.h"
#include "nccl/operations.h"
#include "nccl/words.h"
#include "phase/current.h"
#include "ring/clock.h"
#include "ring/writer.h"

namespace haiprof::nccl {
namespace {

constinit Operations operations;
constinit Communicators communicators;
// Of what is one too many: its operations are counted as lost.
constinit Communicator one_too_many;
std::atomic<int> asked{0};
std::atomic<pid_t> own_pid{0};

// Handles are ids with their kind, not addresses: NCCL may bring back one of long ago, or, where a
// process does the transfers of another, one of somebody else.
enum class Kind : std::uintptr_t { operation = 1, transfer = 2, other = 3 };
constexpr std::uintptr_t kKind = 3;

void* handle_of(std::uint64_t id, Kind kind) noexcept {
  return reinterpret_cast<void*>(id << 2 | static_cast<std::uintptr_t>(kind));
}
Kind kind_of(const void* handle) noexcept {
  return static_cast<Kind>(reinterpret_cast<std::uintptr_t>(handle) & kKind);
}
std::uint64_t id_of(const void* handle) noexcept {
  return reinterpret_cast<std::uintptr_t>(handle) >> 2;
}

std::string_view view(const char* text) noexcept { return text == nullptr ? "" : text; }

std::uint32_t text_or_none(std::string_view text) noexcept {
  return text.empty() ? ring::kNone : ring::intern_up_to(ring::Share::certain, text);
}

std::uint32_t rank_or_none(int rank) noexcept {
  return rank < 0 ? ring::kNone : static_cast<std::uint32_t>(rank);
}

void describe(Begun& begun, const char* function, const char* type, std::size_t count) noexcept {
  begun.operation = operation_of(view(function));
  begun.type = type_of(view(type));
  begun.elements = count;
}

// Null: it is not recorded.
template <typename EventDescriptor>
void* begin(Communicator& communicator, const EventDescriptor& d) noexcept {
  const std::uint64_t now = ring::now_ticks();
  // With a lane, texts are found without a lock.
  if (!ring::is_open() || !ring::claim_lane()) return nullptr;
  if (&communicator == &one_too_many) {
    ring::count_drop(ring::Drop::no_place);
    return nullptr;
  }
  Begun begun;
  begun.ticks = now;
  begun.generation = ring::generation();
  begun.communicator = communicator.text(begun.generation);
  begun.name = communicator.name(begun.generation);
  begun.rank = communicator.rank();
  begun.size = communicator.ranks();
  begun.nodes = communicator.nodes();
  begun.step = phase::current_step();
  begun.sequence = ring::kNoSequence;
  begun.algorithm = begun.protocol = begun.peer = ring::kNone;
  begun.channels = 0;
  if (d.type == abi::kMessage) {
    const auto& message = d.message;
    describe(begun, message.function, message.type, message.count);
    begun.peer = rank_or_none(message.peer);
    begun.channels = message.channels;
  } else {
    const auto& collective = d.collective;
    describe(begun, collective.function, collective.type, collective.count);
    begun.sequence = collective.sequence;
    if (is_rooted(begun.operation)) begun.peer = rank_or_none(collective.root);
    if (d.type == abi::kCollective) {
      begun.channels = collective.channels;
      begun.algorithm = text_or_none(view(collective.algorithm));
      begun.protocol = text_or_none(view(collective.protocol));
    } else {
      begun.algorithm = text_or_none("CE");
    }
  }
  const std::uint64_t id = operations.begin(&communicator, begun);
  if (id == 0) {
    ring::count_drop(ring::Drop::no_place);
    return nullptr;
  }
  return handle_of(id, Kind::operation);
}

template <typename EventDescriptor>
abi::Result start(void* context, void** handle, EventDescriptor* d) noexcept {
  *handle = nullptr;
  if (context == nullptr) return abi::kSuccess;
  switch (const std::uint64_t type = d->type; type) {
    case abi::kCollective:
    case abi::kMessage:
    case abi::kCopyCollective:
      *handle = begin(*static_cast<Communicator*>(context), *d);
      break;
    case abi::kTransfer:
      if (kind_of(d->parent) == Kind::operation &&
          d->transfer.process == own_pid.load(std::memory_order_relaxed) &&
          operations.begin_transfer(id_of(d->parent))) {
        *handle = handle_of(id_of(d->parent), Kind::transfer);
      }
      break;
    default:
      // NCCL 2.27 begins no operation whose group has no handle.
      *handle = handle_of(0, Kind::other);
  }
  return abi::kSuccess;
}

abi::Result stop(void* handle) noexcept {
  switch (kind_of(handle)) {
    case Kind::operation:
      operations.enqueued(id_of(handle), ring::now_ticks());
      break;
    case Kind::transfer:
      operations.end_transfer(id_of(handle), ring::now_ticks());
      break;
    case Kind::other:
      break;
  }
  return abi::kSuccess;
}

abi::Result change(void* handle, int state, void*) noexcept {
  if (state == abi::kTransferBegun && kind_of(handle) == Kind::transfer) {
    operations.transfer_runs(id_of(handle), ring::now_ticks());
  }
  return abi::kSuccess;
}

void* context_of(int version, std::uint64_t number, const char* name, int nodes, int ranks,
                 int rank) noexcept {
  asked.store(version, std::memory_order_relaxed);
  own_pid.store(getpid(), std::memory_order_relaxed);
  Communicator* const communicator = communicators.take();
  if (communicator == nullptr) return &one_too_many;
  communicator->is(number, name, nodes, ranks, rank);
  return communicator;
}

// Kernels' own times are not among them: to have those, NCCL makes kernels write them and its proxy
// read them.
constexpr int kWanted = abi::kCollective | abi::kMessage | abi::kTransfer;

// It is the same mask for all communicators, which other threads may read.
void want(int* mask, int events) noexcept {
  std::atomic_ref(*mask).store(events, std::memory_order_relaxed);
}

abi::Result init4(void** context, int* mask, const char* name, std::uint64_t number, int nodes,
                  int ranks, int rank, abi::Log) noexcept {
  *context = context_of(4, number, name, nodes, ranks, rank);
  want(mask, kWanted);
  return abi::kSuccess;
}

template <int kVersion>
abi::Result init5(void** context, std::uint64_t number, int* mask, const char* name, int nodes,
                  int ranks, int rank, abi::Log) noexcept {
  *context = context_of(kVersion, number, name, nodes, ranks, rank);
  want(mask, kVersion >= 6 ? kWanted | abi::kCopyCollective : kWanted);
  return abi::kSuccess;
}

abi::Result finalize(void* context) noexcept {
  auto* const communicator = static_cast<Communicator*>(context);
  if (communicator == nullptr || communicator == &one_too_many) return abi::kSuccess;
  operations.cut_off(communicator, ring::now_ticks());
  communicator->give_back();
  return abi::kSuccess;
}

}  // namespace

int asked_version() noexcept { return asked.load(std::memory_order_relaxed); }

}  // namespace haiprof::nccl

extern "C" {

using namespace haiprof::nccl;

// Not const: NCCL's declarations of them are not.
[[gnu::visibility("default")]] abi::Profiler4 ncclProfiler_v4{
    "haiprof", init4, start<abi::Descriptor4>, stop, change, finalize};
[[gnu::visibility("default")]] abi::Profiler5 ncclProfiler_v5{
    "haiprof", init5<5>, start<abi::Descriptor5>, stop, change, finalize};
[[gnu::visibility("default")]] abi::Profiler5 ncclProfiler_v6{
    "haiprof", init5<6>, start<abi::Descriptor5>, stop, change, finalize};
}

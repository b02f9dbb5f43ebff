// NCCL's profiler interface, as far as we use it: what NCCL calls and with which bytes. Versions 4
// (NCCL 2.27), 5 (2.28) and 6 (2.29 and newer, which still adapt to older ones) differ in the type
// of an event's type, in the order of init's arguments, and in events that we do not ask for.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace haiprof::nccl::abi {

using Result = int;
inline constexpr Result kSuccess = 0;

// Bits of the mask that says which events are wanted. NCCL also sends the events above them.
enum Event : std::uint32_t {
  kGroup = 1 << 0,
  kCollective = 1 << 1,
  kMessage = 1 << 2,
  kTransfer = 1 << 3,         // what NCCL's proxy does for one channel and one peer
  kCopyCollective = 1 << 12,  // by copy engines; since version 6
};

// The only change of an event's state that we use: its turn has come.
inline constexpr int kTransferBegun = 19;

template <typename Type>
struct Descriptor {
  Type type;
  void* parent;
  int rank;
  union {
    struct {
      std::uint64_t sequence;
      const char* function;
      const void* from;
      void* to;
      std::size_t count;
      int root;
      const char* type;
      // Of a collective by copy engines, other things follow.
      std::uint8_t channels;
      std::uint8_t warps;
      const char* algorithm;
      const char* protocol;
    } collective;
    struct {
      const char* function;
      void* buffer;
      const char* type;
      std::size_t count;
      int peer;
      std::uint8_t channels;
    } message;
    struct {
      pid_t process;  // whose event the parent is
      std::uint8_t channel;
      int peer;
      int steps;
      int chunk_bytes;
      int sends;
    } transfer;
  };
};
using Descriptor4 = Descriptor<std::uint8_t>;
using Descriptor5 = Descriptor<std::uint64_t>;

using Log = void (*)(int level, unsigned long flags, const char* file, int line, const char* format,
                     ...);

using Init4 = Result (*)(void** context, int* mask, const char* name, std::uint64_t communicator,
                         int nodes, int ranks, int rank, Log log);
using Init5 = Result (*)(void** context, std::uint64_t communicator, int* mask, const char* name,
                         int nodes, int ranks, int rank, Log log);

template <typename Init, typename EventDescriptor>
struct Profiler {
  const char* name;
  Init init;  // for each communicator
  Result (*start)(void* context, void** handle, EventDescriptor* descriptor);
  Result (*stop)(void* handle);
  Result (*change)(void* handle, int state, void* arguments);
  Result (*finalize)(void* context);
};
using Profiler4 = Profiler<Init4, Descriptor4>;
using Profiler5 = Profiler<Init5, Descriptor5>;  // version 6, too

static_assert(sizeof(void*) == 8, "the offsets below are those of 64-bit machines");
static_assert(offsetof(Descriptor4, parent) == 8 && offsetof(Descriptor4, rank) == 16);
static_assert(offsetof(Descriptor5, parent) == 8 && offsetof(Descriptor5, rank) == 16);
static_assert(offsetof(Descriptor5, collective.sequence) == 24);
static_assert(offsetof(Descriptor5, collective.function) == 32);
static_assert(offsetof(Descriptor5, collective.count) == 56);
static_assert(offsetof(Descriptor5, collective.root) == 64);
static_assert(offsetof(Descriptor5, collective.type) == 72);
static_assert(offsetof(Descriptor5, collective.channels) == 80);
static_assert(offsetof(Descriptor5, collective.algorithm) == 88);
static_assert(offsetof(Descriptor5, collective.protocol) == 96);
static_assert(offsetof(Descriptor5, message.function) == 24);
static_assert(offsetof(Descriptor5, message.type) == 40);
static_assert(offsetof(Descriptor5, message.count) == 48);
static_assert(offsetof(Descriptor5, message.peer) == 56);
static_assert(offsetof(Descriptor5, message.channels) == 60);
static_assert(offsetof(Descriptor5, transfer.process) == 24);
static_assert(offsetof(Descriptor4, collective) == offsetof(Descriptor5, collective));

}  // namespace haiprof::nccl::abi

// One event of a trace: the values of the members that we know, wherever they stand.
//
// Nothing is converted here: which of them are needed is only known at the event's end, since its
// arguments may come before its category.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "trace/scan.h"

namespace haiprof::trace {

enum class Member : std::uint8_t {
  // Of the event itself.
  phase,
  category,
  name,
  process,
  thread,
  time,
  duration,
  id,
  arguments,
  // Of its arguments, on the host.
  external,
  sequence,
  forward_thread,
  shapes,
  types,
  inputs,
  stack,
  python_id,
  python_parent,
  module,
  correlation,
  // On a device.
  device,
  stream,
  context,
  queued,
  grid,
  block,
  registers,
  shared_memory,
  bytes,
  bandwidth,
  blocks_per_sm,
  warps_per_sm,
  occupancy,
  graph,
  graph_node,
  kind,
  sync_kind,
  wait_stream,
  wait_event,
  wait_correlation,
  // Of the memory allocator.
  device_type,
  device_id,
  address,
  allocated,
  reserved,
  // Of communication.
  collective,
  elements_in,
  elements_out,
  element_type,
  group_size,
  group,
  group_text,
  group_id,
  ranks,
  rank,
  splits_in,
  splits_out,
  first_rank,
  rank_stride,
  source_rank,
  target_rank,
  none,
};

inline constexpr std::size_t kMembers = static_cast<std::size_t>(Member::none);
static_assert(kMembers <= 64, "the members that are there are bits of a word");

constexpr std::uint64_t bit(Member member) noexcept {
  return std::uint64_t{1} << static_cast<unsigned>(member);
}

// As files write it.
std::string_view name_of(Member member) noexcept;

class Event {
 public:
  // Takes the object that begins at p. bad: p is where it stops to be JSON; more: the text ends
  // within it, and p is anywhere.
  Scan read(const char*& p, const char* end);

  bool has(Member member) const noexcept { return (there_ & bit(member)) != 0; }
  std::uint64_t members() const noexcept { return there_; }
  const Token& operator[](Member member) const noexcept {
    return tokens_[static_cast<std::size_t>(member)];
  }

 private:
  enum class Level : std::uint8_t { event, arguments };
  Scan object(const char*& p, const char* end, Level level);

  std::array<Token, kMembers> tokens_;
  std::uint64_t there_ = 0;
};

}  // namespace haiprof::trace

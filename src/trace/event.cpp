// The names of members as profilers write them, and one loop over an object.
#include "trace/event.h"

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "trace/text.h"

namespace haiprof::trace {
namespace {

using Name = std::pair<std::string_view, Member>;

constexpr Name kOfEvents[] = {
    {"ph", Member::phase},     {"cat", Member::category}, {"name", Member::name},
    {"pid", Member::process},  {"tid", Member::thread},   {"ts", Member::time},
    {"dur", Member::duration}, {"id", Member::id},        {"args", Member::arguments},
};

constexpr Name kOfArguments[] = {
    {"External id", Member::external},
    {"external id", Member::external},
    {"Sequence number", Member::sequence},
    {"Fwd thread id", Member::forward_thread},
    {"Fwd thread ID", Member::forward_thread},
    {"Input Dims", Member::shapes},
    {"Input dims", Member::shapes},
    {"Input type", Member::types},
    {"Input types", Member::types},
    {"Input Types", Member::types},
    {"Concrete Inputs", Member::inputs},
    {"Call stack", Member::stack},
    {"Python id", Member::python_id},
    {"Python parent id", Member::python_parent},
    {"Python module id", Member::module},
    {"correlation", Member::correlation},
    {"device", Member::device},
    {"stream", Member::stream},
    {"context", Member::context},
    {"queued", Member::queued},
    {"grid", Member::grid},
    {"block", Member::block},
    {"registers per thread", Member::registers},
    {"shared memory", Member::shared_memory},
    {"bytes", Member::bytes},
    {"memory bandwidth (GB/s)", Member::bandwidth},
    {"blocks per SM", Member::blocks_per_sm},
    {"warps per SM", Member::warps_per_sm},
    {"est. achieved occupancy %", Member::occupancy},
    {"graph id", Member::graph},
    {"graph node id", Member::graph_node},
    {"kind", Member::kind},
    {"cuda_sync_kind", Member::sync_kind},
    {"wait_on_stream", Member::wait_stream},
    {"wait_on_cuda_event_id", Member::wait_event},
    {"wait_on_cuda_event_record_corr_id", Member::wait_correlation},
    {"Device Type", Member::device_type},
    {"Device Id", Member::device_id},
    {"Addr", Member::address},
    {"Bytes", Member::bytes},
    {"Total Allocated", Member::allocated},
    {"Total Reserved", Member::reserved},
    {"Collective name", Member::collective},
    {"In msg nelems", Member::elements_in},
    {"Out msg nelems", Member::elements_out},
    {"dtype", Member::element_type},
    {"Group size", Member::group_size},
    {"Process Group Name", Member::group},
    {"Process Group Description", Member::group_text},
    {"Process Group ID", Member::group_id},
    {"Process Group Ranks", Member::ranks},
    {"Rank", Member::rank},
    {"In split size", Member::splits_in},
    {"Out split size", Member::splits_out},
    {"Global rank start", Member::first_rank},
    {"Global rank stride", Member::rank_stride},
    {"Src Rank", Member::source_rank},
    {"Dst Rank", Member::target_rank},
};

// An open hash table over the length and the ends of a name: most names in a trace are known.
class Names {
 public:
  template <std::size_t N>
  explicit Names(const Name (&names)[N]) noexcept {
    static_assert(N * 2 <= kSlots);
    for (const Name& name : names) {
      const Ends ends(name.first);
      std::size_t at = ends.place();
      while (!slots_[at].name.empty()) at = (at + 1) % kSlots;
      slots_[at] = {name.first, ends, name.second};
    }
  }
  Member find(std::string_view name) const noexcept {
    if (name.empty()) return Member::none;
    const Ends ends(name);
    for (std::size_t at = ends.place(); !slots_[at].name.empty(); at = (at + 1) % kSlots) {
      const Slot& slot = slots_[at];
      if (slot.ends != ends) continue;
      // The ends of a name of two words or less are all of it.
      if (name.size() <= 2 * kWord || slot.name == name) return slot.member;
    }
    return Member::none;
  }

 private:
  static constexpr std::size_t kSlots = 256;
  static constexpr std::size_t kWord = sizeof(std::uint64_t);

  struct Ends {
    std::uint64_t bytes = 0, first = 0, last = 0;

    Ends() = default;
    explicit Ends(std::string_view name) noexcept : bytes(name.size()) {
      if (bytes >= kWord) {
        std::memcpy(&first, name.data(), kWord);
        std::memcpy(&last, name.data() + bytes - kWord, kWord);
      } else {
        for (const char c : name) first = first << 8 | static_cast<unsigned char>(c);
      }
    }
    bool operator==(const Ends&) const = default;
    std::size_t place() const noexcept {
      return ((first ^ (last * 31) ^ bytes) * 0x9E3779B97F4A7C15) >> 56;
    }
  };
  struct Slot {
    std::string_view name;
    Ends ends;
    Member member = Member::none;
  };

  std::array<Slot, kSlots> slots_{};
};

const Names& names_of(bool arguments) {
  static const Names events(kOfEvents);
  static const Names of_arguments(kOfArguments);
  return arguments ? of_arguments : events;
}

constexpr std::uint64_t kEventBits = bit(Member::arguments) | (bit(Member::arguments) - 1);

}  // namespace

std::string_view name_of(Member member) noexcept {
  for (const Name& name : kOfEvents) {
    if (name.second == member) return name.first;
  }
  for (const Name& name : kOfArguments) {
    if (name.second == member) return name.first;
  }
  return "";
}

Scan Event::read(const char*& p, const char* end) {
  there_ = 0;
  return object(p, end, Level::event);
}

Scan Event::object(const char*& p, const char* end, Level level) {
  const Names& names = names_of(level == Level::arguments);
  ++p;
  for (;;) {
    p = scan::blanks(p, end);
    if (p == end) return Scan::more;
    // An empty object, or a comma too many at its end.
    if (*p == '}') {
      ++p;
      return Scan::whole;
    }
    if (*p != '"') return Scan::bad;
    ++p;
    Token key;
    if (scan::string(p, end, key) != Scan::whole) return Scan::more;
    p = scan::blanks(p, end);
    if (p == end) return Scan::more;
    if (*p != ':') return Scan::bad;
    p = scan::blanks(p + 1, end);
    if (p == end) return Scan::more;

    std::string_view name{key.begin, static_cast<std::size_t>(key.end - key.begin)};
    Member member;
    if (key.plain) {
      member = names.find(name);
    } else {
      std::string decoded;
      decode(name, decoded);
      member = names.find(decoded);
    }
    Token token;
    if (member == Member::arguments && *p == '{') {
      there_ &= kEventBits;
      token = {p, nullptr, Type::object, false, false};
      const Scan scanned = object(p, end, Level::arguments);
      if (scanned != Scan::whole) return scanned;
      token.end = p;
    } else {
      const Scan scanned = scan::value(p, end, token);
      if (scanned != Scan::whole) return scanned;
      if (member == Member::arguments) there_ &= kEventBits;
    }
    if (member != Member::none) {
      tokens_[static_cast<std::size_t>(member)] = token;
      there_ |= bit(member);
    }
    p = scan::blanks(p, end);
    if (p == end) return Scan::more;
    if (*p == ',') {
      ++p;
    } else if (*p != '}') {
      return Scan::bad;
    }
  }
}

}  // namespace haiprof::trace

// The protocol between haiprof-perfd and its clients: whole messages of fixed size over a
// Unix socket (SOCK_SEQPACKET), in the byte order of the machine that both run on.
//
// The server speaks first: an Answer without descriptors, whose error is 0 where the peer is
// welcome. From then on each Request has one Answer, and the next Request comes after it. Every
// version begins both messages with magic and version, and has its Answers of one size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "perf/open_group.h"

namespace haiprof::perf::wire {

inline constexpr std::uint32_t kMagic = 0x46504148;  // "HAPF"
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kTextBytes = 248;

// Counters of one PMU on one CPU, the first `count` of `counters`.
struct Request {
  struct Counter {
    std::uint64_t config;
    std::uint64_t config1;
    std::uint64_t config2;
  };
  std::uint32_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::int32_t cpu = 0;
  std::uint32_t type = 0;
  std::uint32_t count = 0;
  std::uint32_t unused = 0;
  Counter counters[kMaxGroup] = {};
};
static_assert(sizeof(Request) == 24 + 24 * kMaxGroup);

// Where error is 0, the answer to a request carries its counters, in their order: SCM_RIGHTS.
struct Answer {
  std::uint32_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::int32_t error = 0;  // an errno
  std::uint32_t unused = 0;
  char reason[kTextBytes] = {};  // ends with a zero, or with the field
  char fix[kTextBytes] = {};
};
static_assert(sizeof(Answer) == 512);

inline void put(char (&field)[kTextBytes], std::string_view text) noexcept {
  text.copy(field, sizeof field);
}

// Whatever the other side sent, as one line of printable ASCII.
inline std::string take(const char (&field)[kTextBytes]) {
  std::string text(field, strnlen(field, sizeof field));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace haiprof::perf::wire

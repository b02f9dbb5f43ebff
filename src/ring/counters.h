// The counters of a ring file (layout.h): those that this process adds to, and any file's.
//
// They are mapped apart from the rest of the ring, because they serve longer: a forked child adds
// to its parent's until it has a ring of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ring/file.h"
#include "ring/layout.h"

namespace haiprof::ring {

// Those of this process, or null. Once mapped, the memory stays mapped.
extern std::atomic<Counter*> counters;

// Adds to one of them. A load and an atomic addition; safe anywhere, any time.
inline void count(Count what, std::uint64_t amount) noexcept {
  Counter* const here = counters.load(std::memory_order_acquire);
  if (here == nullptr || amount == 0) return;
  here[static_cast<std::size_t>(what)].value.fetch_add(amount, std::memory_order_relaxed);
}

// The space that they take in a file, and where they may begin.
std::size_t counter_bytes() noexcept;

// Takes those of a file that the caller has made, and writes their names.
void take_counters(int fd, std::uint64_t offset) noexcept;
// No more: what other threads still add goes nowhere.
void drop_counters() noexcept;

// Takes those of the living ring of another process, pid, which started at start_time, if this one
// has none. False: it has some, or the file is not such a ring with the counters that this version
// knows.
bool join_counters(const std::string& path, std::uint32_t pid, std::uint64_t start_time) noexcept;

// Those of a file, for reading. Names are as they were when it was opened.
class CounterReader {
 public:
  // False: there are none, or the file cannot be read.
  bool open(const std::string& path);

  std::size_t size() const noexcept { return names_.size(); }
  std::string_view metric(std::size_t index) const noexcept { return names_[index].metric; }
  std::string_view instance(std::size_t index) const noexcept { return names_[index].instance; }
  // Nothing: the file has been truncated.
  std::optional<std::uint64_t> value(std::size_t index) const noexcept;

 private:
  struct Name {
    std::string metric, instance;
  };

  File file_;
  std::uint64_t offset_ = 0;
  std::uint64_t stride_ = 0;
  std::vector<Name> names_;
};

}  // namespace haiprof::ring

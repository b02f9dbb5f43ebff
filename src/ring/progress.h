// How far communication has come, in the ring file (layout.h): this process's, and any file's.
//
// It is mapped apart from the rest of the ring, and stays mapped: threads of c10d may write to it
// at any time, and must not find that the ring is gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ring/file.h"
#include "ring/layout.h"

namespace haiprof::ring {

struct Progress {
  GroupProgress groups[kGroups];
  Blocked blocked[kBlocked];
};

// This process's, or null. Once mapped, the memory stays mapped.
extern std::atomic<Progress*> progress;

// The space that it takes in a file, and where it may begin.
std::size_t progress_bytes() noexcept;

// Takes that of a file that the caller has made.
void take_progress(int fd, std::uint64_t offset) noexcept;
// No more: what other threads still write goes nowhere.
void drop_progress() noexcept;

// A place for a group of that many ranks; null: there is none.
GroupProgress* add_group(const std::string& name, std::uint32_t size) noexcept;
// Which of the groups a place is; kNone: none.
std::uint32_t index_of(const GroupProgress* place) noexcept;

// Says that this thread is blocked, for as long as it exists.
class BlockedHere {
 public:
  BlockedHere(std::uint32_t thread, std::uint32_t group, std::uint64_t sequence, std::uint32_t peer,
              Operation operation, std::uint64_t ticks) noexcept;
  BlockedHere(const BlockedHere&) = delete;
  BlockedHere& operator=(const BlockedHere&) = delete;
  ~BlockedHere() {
    if (place_ != nullptr) place_->thread.store(0, std::memory_order_release);
  }

 private:
  Blocked* place_ = nullptr;
};

// That of a file, as it was at one moment.
struct ProgressCopy {
  struct Group {
    std::string name;
    std::uint32_t size, peer;
    std::uint64_t asked, ticks, elements_in, elements_out, done;
    std::uint8_t operation, type;
  };
  struct Wait {
    std::uint32_t thread, group, peer;  // group: index into the groups; kNone: not known
    std::uint64_t sequence, ticks;
    std::uint8_t operation;
  };
  std::vector<Group> groups;
  std::vector<Wait> blocked;
};

// Empty: the file is of an older layout, or damaged.
ProgressCopy read_progress(const File& file, const SuperBlock& super);

}  // namespace haiprof::ring

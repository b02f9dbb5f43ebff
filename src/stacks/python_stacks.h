// The Python stacks of another process, read from its memory while it runs: it is not stopped, gets
// no signal and need not give up its GIL, so a hung one and C code that keeps the GIL are no
// obstacle. What is read may change meanwhile: whatever does not fit together is torn, is read once
// more, and else counted.
//
// Where frames lie is known from the process itself (ring/python_layout.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "ring/python_layout.h"
#include "stacks/functions.h"
#include "stacks/remote.h"

namespace haiprof::stacks {

struct Frame {
  std::uint32_t function;  // its number in Functions
  int line;                // 0: none
  bool operator==(const Frame&) const = default;
};

struct ThreadStack {
  std::uint32_t thread = 0;  // the kernel's number
  bool has_gil = false;
  bool cut = false;           // there are more frames than are read
  bool same = false;          // it was left out: it has not run since
  std::vector<Frame> frames;  // the innermost first; none: it runs no Python
};

class PythonStacks {
 public:
  // Of a stack; CPython's own limit is 1 000 unless somebody raises it.
  static constexpr std::size_t kDeepest = 1024;
  static constexpr std::size_t kMostThreads = 4096;

  enum class Answer : std::uint8_t {
    taken,
    ended,      // there is no such process
    forbidden,  // it may not be read
    replaced,   // its memory is another program's, or not what the layout says
  };

  // Asked of each thread before its stack is read: whether it need not be.
  using Same = std::function<bool(std::uint32_t thread)>;

  // A layout may come from a process that wants to harm its reader.
  static bool possible(const ring::PythonLayout& layout) noexcept;

  // The layout must be possible. What stacks name is added to `functions`, which must stay.
  PythonStacks(pid_t pid, const ring::PythonLayout& layout, Functions& functions);
  ~PythonStacks();

  // See Remote.
  void read_through(base::UniqueFd memory) noexcept { remote_.read_through(std::move(memory)); }

  // The stacks of all its threads that Python knows. Those that were torn twice are missing.
  Answer take(std::vector<ThreadStack>& stacks, const Same& same = {});

  // Of threads, since the beginning.
  std::uint64_t torn() const noexcept { return torn_; }

 private:
  // Of all threads together: what one look may cost in memory.
  static constexpr std::size_t kMostFrames = 1 << 16;

  struct Raw;     // a frame as it lies there
  struct Thread;  // one whose stack is being read
  struct Code;    // a code object that was read
  // What a code object is recognised by: another one may lie at its address later.
  struct Key {
    std::uint64_t type = 0, name = 0, file = 0, lines = 0, units = 0;
    int first_line = 0, traceable = 0;
    bool operator==(const Key&) const = default;
  };

  Answer look(std::vector<ThreadStack>& stacks, const Same& same);
  Answer attempt(std::vector<Thread>& threads, const std::unordered_set<std::uint64_t>& taken,
                 const Same& same);
  Answer find(std::vector<Thread>& threads);
  Answer who_holds(std::uint64_t gil, std::uint64_t& holder);
  Answer chain(std::uint64_t head, std::uint64_t holder, std::vector<Thread>& threads);
  Answer resolve(std::vector<Thread>& threads);
  Answer walk(std::vector<Thread>& threads);
  Answer recognise(std::vector<Thread>& threads);
  Answer count_freed();
  Answer learn(std::unordered_map<std::uint64_t, Key>& unknown);
  void follow(Thread& thread);
  bool finish(const Thread& thread, ThreadStack& stack);
  Key key_of(const std::uint8_t* code) const;
  // Where a text has its hash: in front of its state, in every CPython.
  std::size_t hash_at() const noexcept { return layout_.string_state - sizeof(std::uint64_t); }
  std::size_t index_of(std::uint64_t address) const noexcept;  // in addresses_
  int line_in(Code& code, std::int64_t offset);

  ring::PythonLayout layout_;
  Remote remote_;
  std::size_t thread_bytes_;
  std::unordered_map<std::uint64_t, Code> codes_;  // by address
  Functions& functions_;
  std::uint32_t generation_ = 0;  // of the functions that codes_ name
  std::size_t table_bytes_ = 0;   // of codes_, those that were replaced included
  // Of this attempt: frames that were found, and bytes of tables that were searched.
  std::size_t frames_ = 0, searched_ = 0;
  // Of this look: code objects by address, and each as it is known; null: it is not.
  std::vector<std::uint64_t> addresses_;
  std::vector<Code*> known_;
  std::vector<std::size_t> unsure_;  // those that have to be looked at again
  std::vector<Remote::Wanted> wanted_, hashes_;
  // How many code objects had been freed once its frames had been read; nothing: that is not known.
  std::optional<std::uint64_t> freed_;
  std::uint64_t torn_ = 0;
};

}  // namespace haiprof::stacks

// The Python stacks of another process, read from its memory while it runs: it is not stopped, gets
// no signal and need not give up its GIL, so a hung one and C code that keeps the GIL are no
// obstacle. What is read may change meanwhile: whatever does not fit together is torn, is read once
// more, and else counted.
//
// Where frames lie is known from the process itself (ring/python_layout.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "ring/python_layout.h"
#include "stacks/remote.h"

namespace haiprof::stacks {

struct Frame {
  std::uint32_t function;  // index into functions()
  int line;                // 0: none
  bool operator==(const Frame&) const = default;
};

struct Function {
  std::string name;  // qualified since 3.11
  std::string file;
  int first_line;
};

struct ThreadStack {
  std::uint32_t thread = 0;  // the kernel's number
  bool has_gil = false;
  bool cut = false;           // there are more frames than are read
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

  // The layout must be one of a Python that is known.
  PythonStacks(pid_t pid, const ring::PythonLayout& layout);
  ~PythonStacks();

  // The stacks of all its threads that Python knows. Those that were torn twice are missing.
  Answer take(std::vector<ThreadStack>& stacks);

  // All that stacks have named so far. Their numbers stay.
  const std::vector<Function>& functions() const noexcept { return functions_; }
  // Of threads, since the beginning.
  std::uint64_t torn() const noexcept { return torn_; }

 private:
  // Numbers of functions, each with its own; the last one stands for all that there is no room for.
  static constexpr std::size_t kMostFunctions = 65'536;

  struct Raw;     // a frame as it lies there
  struct Thread;  // one whose stack is being read
  struct Code;    // a code object that was read
  // What a code object is recognised by: another one may lie at its address later.
  struct Key {
    std::uint64_t type = 0, name = 0, file = 0, lines = 0, units = 0;
    int first_line = 0;
    bool operator==(const Key&) const = default;
  };

  Answer attempt(std::vector<Thread>& threads);
  Answer find(std::vector<Thread>& threads);
  Answer chain(std::uint64_t head, std::uint64_t holder, std::vector<Thread>& threads);
  Answer resolve(std::vector<Thread>& threads);
  Answer walk(std::vector<Thread>& threads);
  Answer recognise(std::vector<Thread>& threads);
  Answer learn(std::unordered_map<std::uint64_t, Key>& unknown);
  void look(Thread& thread) const;
  bool finish(const Thread& thread, ThreadStack& stack);
  Key key_of(const std::uint8_t* code) const;
  std::uint32_t function_of(Function function);

  ring::PythonLayout layout_;
  Remote remote_;
  std::size_t thread_bytes_;
  std::vector<std::uint64_t> known_;                       // threads, of the last time
  std::unordered_map<std::uint64_t, std::uint8_t*> read_;  // … and what was read of them now
  std::vector<std::uint8_t> states_;
  std::unordered_map<std::uint64_t, Code> codes_;  // by address
  std::vector<Function> functions_;
  std::unordered_map<std::string, std::uint32_t> numbers_;  // of functions, by all that they are
  std::uint64_t torn_ = 0;
};

}  // namespace haiprof::stacks

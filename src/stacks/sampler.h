// Samples the Python stacks of processes many times a second, in a thread of its own.
//
// Every period is one sample, at a random moment in it: a loop whose steps take as long as a period
// would otherwise be seen at one place for ever. A thread that has not run since the last sample is
// not read again; it goes on with the sample that it has. When a look takes long, the periods grow:
// it never costs more than a set part of one core.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ring/python_layout.h"
#include "stacks/functions.h"
#include "stacks/thread_state.h"

namespace haiprof::stacks {

inline constexpr std::uint32_t kNoStack = 0xFFFF'FFFF;

// A thread at one place. More than one sample only while it did not run between them.
struct Sample {
  std::int64_t monotonic_ns;  // of the first
  std::int64_t duration_ns;   // that they stand for
  std::uint32_t samples;
  std::uint32_t process, thread;
  std::uint32_t stack;  // id of its innermost node
  State state;
  bool has_gil;
  std::string waits_in;  // empty: it does not wait, or that is not known

  void go_on(std::int64_t period_ns) noexcept {
    ++samples;
    duration_ns += period_ns;
  }
};

struct NamedNode {
  std::uint32_t id;
  std::uint32_t parent;  // kNoStack: none
  int line;              // 0: none
  Function function;
};

struct Taken {
  std::vector<Sample> samples;
  std::vector<NamedNode> nodes;  // that samples name from now on, each behind its parent
};

struct Counts {
  std::uint64_t torn = 0;     // stacks that changed while they were read, twice
  std::uint64_t dropped = 0;  // samples that nobody took in time
  std::uint64_t cut = 0;      // stacks of more frames than are read
  bool ended = false;         // the process has
  std::string problem;        // why nothing is sampled of it while it lives; empty: all is well
};

// The Python of this process. Workers that a process spawns run the same one, somewhere else.
struct OwnPython {
  ring::PythonLayout layout;
  std::uint64_t runtime;  // the address of its _PyRuntime
};

class Sampler {
 public:
  // own: without it, workers that are spawned are not sampled.
  explicit Sampler(double hz, std::optional<OwnPython> own = {});
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  // Does not wait for a look at a process whose memory the kernel keeps locked.
  ~Sampler();

  double hz() const;
  void set_hz(double hz);

  // Begins to sample a process and the workers that it forks, or spawns. False: it is not the one
  // meant, by its start time and owner, or the layout is not one.
  bool watch(pid_t pid, std::uint64_t start_time, uid_t owner, const ring::PythonLayout& layout,
             std::uint32_t first_node);
  // Returns what take() would, and what was still going on.
  Taken unwatch(pid_t pid);

  // What was sampled of a process and its children since.
  Taken take(pid_t pid);
  Counts counts(pid_t pid) const;
  // CPU time of the thread, ns.
  std::uint64_t cost_ns() const;

 private:
  struct Watched;
  struct Group;
  struct Shared;

  static void run(const std::shared_ptr<Shared>& shared) noexcept;
  static void look_again_and_again(Shared& shared);

  // The thread has it, too, and outlives us when it cannot end.
  std::shared_ptr<Shared> shared_;
  std::optional<OwnPython> own_;
};

}  // namespace haiprof::stacks

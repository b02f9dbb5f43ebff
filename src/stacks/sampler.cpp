#include "stacks/sampler.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/unique_fd.h"
#include "stacks/elsewhere.h"
#include "stacks/python_stacks.h"
#include "stacks/stack_tree.h"

namespace haiprof::stacks {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// A thread that waits for ever is written so often, ns.
constexpr std::int64_t kLongest = 10 * kSecond;
// The part of one core that looking may take.
constexpr double kShare = 0.01;
// Children are looked for that often, ns: those of the main thread, and of all threads.
constexpr std::int64_t kChildrenEach = kSecond, kAllChildrenEach = 10 * kSecond;
constexpr std::size_t kMostChildren = 256;
// Samples that wait to be taken; what a recorder that a full disk stops may keep.
constexpr std::size_t kMostSamples = 1 << 16;
// Nodes, until all are forgotten; functions likewise.
constexpr std::size_t kMostNodes = 1 << 16, kMostFunctions = 1 << 15;
// A process whose memory may not be read is tried again after that long, ns, and twice that.
constexpr std::int64_t kFirstPause = kSecond, kLongestPause = 64 * kSecond;
// How long the thread may take to end.
constexpr std::chrono::seconds kPatience{1};
static_assert(kNoStack == StackTree::kRoot);

std::int64_t clock_ns(clockid_t clock) noexcept {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

int open_folder(const std::string& path) noexcept {
  return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

// Field 22 of a stat file; 0: it cannot be read.
std::uint64_t start_time_in(int folder) noexcept {
  const base::UniqueFd file(openat(folder, "stat", O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t got = file ? ::read(file.get(), text, sizeof text - 1) : -1;
  if (got <= 0) return 0;
  text[got] = '\0';
  const char* at = std::strrchr(text, ')');
  if (at == nullptr) return 0;
  for (int field = 2; field < 22; ++field) {
    at = std::strchr(at + 1, ' ');
    if (at == nullptr) return 0;
  }
  return std::strtoull(at, nullptr, 10);
}

// Whether a process is a worker that Python's multiprocessing has spawned: it is no copy of its
// parent, but a Python of its own.
bool is_spawned(int folder) noexcept {
  const base::UniqueFd file(openat(folder, "cmdline", O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t got = file ? ::read(file.get(), text, sizeof text) : -1;
  if (got <= 0) return false;
  using namespace std::string_view_literals;
  return std::string_view(text, static_cast<std::size_t>(got))
             .find("\0--multiprocessing-fork\0"sv) != std::string_view::npos;
}

// Numbers of the processes that threads of a process have started.
void children_of(pid_t pid, std::string_view thread, std::vector<pid_t>& children) {
  char path[96];
  std::snprintf(path, sizeof path, "/proc/%d/task/%.*s/children", static_cast<int>(pid),
                static_cast<int>(thread.size()), thread.data());
  const base::UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t got = file ? ::read(file.get(), text, sizeof text - 1) : -1;
  if (got <= 0) return;
  text[got] = '\0';
  for (char* at = text;;) {
    char* end = nullptr;
    const long child = std::strtol(at, &end, 10);
    if (end == at || child <= 0) return;
    children.push_back(static_cast<pid_t>(child));
    at = end;
  }
}

}  // namespace

struct Sampler::Watched {
  struct Thread {
    Sample sample;
    bool open = false;  // the sample may go on
    bool seen = true;
  };

  Watched(pid_t number, const ring::PythonLayout& layout, Functions& functions)
      : pid(number), stacks(number, layout, functions), states(number) {}

  pid_t pid;
  base::UniqueFd folder;  // of /proc: stays of this process
  PythonStacks stacks;
  ThreadStates states;
  std::unordered_map<std::uint32_t, Thread> threads;
};

// What is sampled together: a process and its children.
struct Sampler::Group {
  Group(uid_t user, const ring::PythonLayout& where, std::uint32_t first_node,
        const std::optional<OwnPython>& of_us)
      : owner(user), layout(where), own(of_us), tree(first_node) {}

  std::unique_ptr<Watched> opened(pid_t pid);
  std::unique_ptr<Watched> opened_spawned(pid_t pid);
  void look(std::int64_t now, std::int64_t period, const std::vector<pid_t>& watched);
  bool look(Watched& process, std::int64_t period);
  void find_children(bool of_all_threads, const std::vector<pid_t>& watched);
  void end(Watched& process);
  bool is_the_owners(const Watched& process) const noexcept;
  // A thread of it sleeps so that nothing wakes it, as when a file server hangs: its memory may be
  // locked.
  static bool is_stuck(Watched& process);

  const uid_t owner;
  const ring::PythonLayout layout;
  const std::optional<OwnPython> own;
  Functions functions;
  StackTree tree;
  std::vector<std::unique_ptr<Watched>> processes;  // the one that was named comes first
  std::vector<pid_t> others;                        // children with a memory of their own
  std::vector<Sample> samples;                      // of this look
  Counts counts;
  std::int64_t children_at = 0, all_children_at = 0;
  std::int64_t not_before = 0, pause = kFirstPause;
  bool over = false;

  // For whoever takes it, under the mutex.
  Taken taken;
  std::vector<Sample> open;
  Counts last_counts;
};

struct Sampler::Shared {
  std::mutex mutex;  // of all that follows
  std::condition_variable changed;
  bool ending = false, ended = false;
  double hz = 0.0;
  std::uint64_t cost_ns = 0;
  std::unordered_map<pid_t, std::shared_ptr<Group>> groups;

  void publish(Group& group);
};

// Null: it is not there, or another user's.
std::unique_ptr<Sampler::Watched> Sampler::Group::opened(pid_t pid) {
  auto process = std::make_unique<Watched>(pid, layout, functions);
  const std::string path = "/proc/" + std::to_string(pid);
  process->folder.reset(open_folder(path));
  if (!process->folder || !is_the_owners(*process)) return nullptr;
  return is_spawned(process->folder.get()) ? opened_spawned(pid) : std::move(process);
}

// Null, too, while it has not loaded its Python yet.
std::unique_ptr<Sampler::Watched> Sampler::Group::opened_spawned(pid_t pid) {
  if (!own || ThreadStates(pid).state(static_cast<std::uint32_t>(pid)) == State::uninterruptible) {
    return nullptr;
  }
  const Elsewhere found = layout_of(pid, own->layout, own->runtime);
  if (!found.reason.empty() || !PythonStacks::possible(found.layout)) return nullptr;
  auto process = std::make_unique<Watched>(pid, found.layout, functions);
  const std::string path = "/proc/" + std::to_string(pid);
  process->folder.reset(open_folder(path));
  if (!process->folder || !is_the_owners(*process)) return nullptr;
  return process;
}

// A program that runs as another user, or that hides from its own, shows another owner.
bool Sampler::Group::is_the_owners(const Watched& process) const noexcept {
  struct stat about;
  return fstat(process.folder.get(), &about) == 0 && about.st_uid == owner;
}

bool Sampler::Group::is_stuck(Watched& process) {
  return std::ranges::any_of(process.threads, [&](const auto& entry) {
    return entry.second.sample.state == State::uninterruptible &&
           process.states.state(entry.first) == State::uninterruptible &&
           !process.states.has_run(entry.first);
  });
}

void Sampler::Group::end(Watched& process) {
  for (auto& [number, thread] : process.threads) {
    if (std::exchange(thread.open, false)) samples.push_back(std::move(thread.sample));
  }
  process.threads.clear();
}

void Sampler::Group::look(std::int64_t now, std::int64_t period,
                          const std::vector<pid_t>& watched) {
  if (over || now < not_before) return;
  if (now >= children_at) {
    const bool of_all = now >= all_children_at;
    if (of_all) all_children_at = now + kAllChildrenEach;
    children_at = now + kChildrenEach;
    find_children(of_all, watched);
  }
  if (tree.size() > kMostNodes || functions.all().size() > kMostFunctions) {
    tree.clear();
    functions.clear();
    for (const auto& process : processes) end(*process);  // their stacks have no id any more
  }
  for (std::size_t i = 0; i < processes.size();) {
    if (look(*processes[i], period)) {
      ++i;
      continue;
    }
    end(*processes[i]);
    if (i == 0) {
      over = true;
      for (const auto& process : processes) end(*process);
      return;
    }
    // A worker that has been spawned just now was its parent's copy until then.
    if (!is_spawned(processes[i]->folder.get())) others.push_back(processes[i]->pid);
    processes.erase(processes.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// False: nothing more can be learnt from it.
bool Sampler::Group::look(Watched& process, std::int64_t period) {
  const bool is_named = &process == processes.front().get();
  process.states.begin();
  if (is_stuck(process)) {
    for (auto& [number, thread] : process.threads) {
      if (thread.open && !process.states.has_run(number)) thread.sample.go_on(period);
    }
    return true;
  }
  std::vector<ThreadStack> stacks;
  const std::uint64_t torn_before = process.stacks.torn();
  const auto same = [&](std::uint32_t thread) {
    return !process.states.has_run(thread) && process.threads.contains(thread);
  };
  // Not earlier: on a busy machine others may run between one process and the next.
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  const PythonStacks::Answer answer = process.stacks.take(stacks, same);
  process.states.end();
  counts.torn += process.stacks.torn() - torn_before;
  if (answer != PythonStacks::Answer::taken && !is_named) return false;
  switch (answer) {
    case PythonStacks::Answer::taken:
      break;
    case PythonStacks::Answer::ended:
      counts.ended = true;
      return false;
    case PythonStacks::Answer::replaced:
      counts.problem = "the process runs another program now";
      return false;
    case PythonStacks::Answer::forbidden:
      counts.problem = "the memory of the process may not be read";
      not_before = now + pause;
      pause = std::min(2 * pause, kLongestPause);
      return true;
  }
  // After the look: a program that became another user's in it shows another owner now.
  if (!is_the_owners(process)) {
    if (!is_named) return false;
    counts.ended = start_time_in(process.folder.get()) == 0;
    if (!counts.ended) counts.problem = "the process runs as another user now";
    return false;
  }
  counts.problem.clear();
  pause = kFirstPause;

  for (auto& [number, thread] : process.threads) thread.seen = false;
  for (const ThreadStack& stack : stacks) {
    if (stack.thread == 0) continue;
    Watched::Thread& thread = process.threads[stack.thread];
    thread.seen = true;
    Sample sample = thread.sample;
    if (!stack.same) {
      sample = {now,
                0,
                0,
                static_cast<std::uint32_t>(process.pid),
                stack.thread,
                stack.frames.empty() ? kNoStack : tree.id_of(stack.frames),
                State::unknown,
                false,
                {}};
      if (stack.cut) ++counts.cut;
    }
    sample.has_gil = stack.has_gil;
    if (!stack.same || sample.state == State::running) {
      sample.state = process.states.state(stack.thread);
      const bool waits = sample.state == State::waiting || sample.state == State::uninterruptible;
      sample.waits_in = waits ? process.states.waits_in(stack.thread) : std::string();
    }
    if (stack.same && thread.open && sample.state == thread.sample.state &&
        sample.has_gil == thread.sample.has_gil && thread.sample.duration_ns < kLongest) {
      thread.sample.go_on(period);
      continue;
    }
    if (thread.open) samples.push_back(std::move(thread.sample));
    sample.monotonic_ns = now;
    sample.duration_ns = period;
    sample.samples = 1;
    thread.sample = std::move(sample);
    thread.open = thread.sample.stack != kNoStack;  // else it runs no Python
  }
  // Those that were torn begin anew; so do those that have ended.
  std::erase_if(process.threads, [&](auto& entry) {
    if (entry.second.seen) return false;
    if (entry.second.open) samples.push_back(std::move(entry.second.sample));
    return true;
  });
  return true;
}

void Sampler::Group::find_children(bool of_all_threads, const std::vector<pid_t>& watched) {
  const pid_t pid = processes.front()->pid;
  // Those that have a ring are looked at for their own sake.
  std::erase_if(processes, [&](const auto& process) {
    const bool is_own =
        process->pid != pid && std::ranges::find(watched, process->pid) != watched.end();
    if (is_own) end(*process);
    return is_own;
  });
  std::vector<pid_t> children;
  if (of_all_threads) {
    others.clear();  // their numbers may be others' by now
    const std::string path = "/proc/" + std::to_string(pid) + "/task";
    if (DIR* const folder = opendir(path.c_str())) {
      while (const dirent* const entry = readdir(folder)) {
        if (entry->d_name[0] != '.') children_of(pid, entry->d_name, children);
      }
      closedir(folder);
    }
  } else {
    children_of(pid, std::to_string(pid), children);
  }
  const auto has = [](const std::vector<pid_t>& pids, pid_t child) {
    return std::ranges::find(pids, child) != pids.end();
  };
  for (const pid_t child : children) {
    if (processes.size() > kMostChildren) return;
    const auto is_it = [&](const auto& process) { return process->pid == child; };
    if (has(watched, child) || has(others, child) || std::ranges::any_of(processes, is_it)) {
      continue;
    }
    if (std::unique_ptr<Watched> process = opened(child)) processes.push_back(std::move(process));
  }
}

void Sampler::Shared::publish(Group& group) {
  for (Sample& sample : group.samples) {
    if (group.taken.samples.size() < kMostSamples) {
      group.taken.samples.push_back(std::move(sample));
    } else {
      group.counts.dropped += sample.samples;
    }
  }
  group.samples.clear();
  for (const StackTree::Node& node : group.tree.take_new()) {
    group.taken.nodes.push_back(
        {node.id, node.parent, node.frame.line, group.functions.all()[node.frame.function]});
  }
  group.open.clear();
  for (const auto& process : group.processes) {
    for (const auto& [number, thread] : process->threads) {
      if (thread.open) group.open.push_back(thread.sample);
    }
  }
  group.last_counts = group.counts;
}

Sampler::Sampler(double hz, std::optional<OwnPython> own)
    : shared_(std::make_shared<Shared>()), own_(own) {
  shared_->hz = hz;
  // Signals are for the threads that expect them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([shared = shared_] { run(shared); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Sampler::~Sampler() {
  std::unique_lock lock(shared_->mutex);
  shared_->ending = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, kPatience, [this] { return shared_->ended; });
}

double Sampler::hz() const {
  const std::scoped_lock lock(shared_->mutex);
  return shared_->hz;
}

void Sampler::set_hz(double hz) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->hz = hz;
  shared_->changed.notify_all();
}

bool Sampler::watch(pid_t pid, std::uint64_t start_time, uid_t owner,
                    const ring::PythonLayout& layout, std::uint32_t first_node) {
  if (!PythonStacks::possible(layout)) return false;
  auto group = std::make_shared<Group>(owner, layout, first_node, own_);
  std::unique_ptr<Watched> process = group->opened(pid);
  if (process == nullptr || start_time_in(process->folder.get()) != start_time) return false;
  group->processes.push_back(std::move(process));
  const std::scoped_lock lock(shared_->mutex);
  shared_->groups[pid] = std::move(group);
  shared_->changed.notify_all();
  return true;
}

Taken Sampler::unwatch(pid_t pid) {
  const std::scoped_lock lock(shared_->mutex);
  const auto found = shared_->groups.find(pid);
  if (found == shared_->groups.end()) return {};
  Taken taken = std::exchange(found->second->taken, {});
  for (Sample& sample : found->second->open) taken.samples.push_back(std::move(sample));
  shared_->groups.erase(found);
  return taken;
}

Taken Sampler::take(pid_t pid) {
  const std::scoped_lock lock(shared_->mutex);
  const auto found = shared_->groups.find(pid);
  return found == shared_->groups.end() ? Taken{} : std::exchange(found->second->taken, {});
}

Counts Sampler::counts(pid_t pid) const {
  const std::scoped_lock lock(shared_->mutex);
  const auto found = shared_->groups.find(pid);
  return found == shared_->groups.end() ? Counts{} : found->second->last_counts;
}

std::uint64_t Sampler::cost_ns() const {
  const std::scoped_lock lock(shared_->mutex);
  return shared_->cost_ns;
}

void Sampler::run(const std::shared_ptr<Shared>& shared) noexcept {
  std::string problem;
  try {
    look_again_and_again(*shared);
  } catch (const std::exception& error) {  // for want of memory, say: the recorder goes on
    problem = std::string("sampling has failed: ") + error.what();
  }
  const std::scoped_lock lock(shared->mutex);
  for (const auto& [pid, group] : shared->groups) {
    if (!problem.empty()) group->last_counts.problem = problem;
  }
  shared->ended = true;
  shared->changed.notify_all();
}

void Sampler::look_again_and_again(Shared& shared) {
  std::minstd_rand random(std::random_device{}());
  std::uniform_real_distribution<double> part(0.0, 1.0);
  std::unique_lock lock(shared.mutex);
  std::int64_t begin = clock_ns(CLOCK_MONOTONIC);
  double cost = 0.0;  // of the last look, ns of CPU time
  while (!shared.ending) {
    if (shared.groups.empty() || shared.hz <= 0) {
      shared.changed.wait(lock);
      begin = clock_ns(CLOCK_MONOTONIC);
      continue;
    }
    const double rate = shared.hz;
    const double period = std::max(static_cast<double>(kSecond) / rate, cost / kShare);
    const auto at = begin + static_cast<std::int64_t>(part(random) * period);
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(at)};
    // A new rate takes effect at once; so does the end.
    if (shared.changed.wait_until(lock, until,
                                  [&] { return shared.ending || shared.hz != rate; })) {
      continue;
    }
    const std::int64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    std::vector<std::pair<pid_t, std::shared_ptr<Group>>> groups(shared.groups.begin(),
                                                                 shared.groups.end());
    std::vector<pid_t> watched;
    for (const auto& [pid, group] : groups) watched.push_back(pid);
    for (const auto& [pid, group] : groups) {
      lock.unlock();
      group->look(clock_ns(CLOCK_MONOTONIC), static_cast<std::int64_t>(period), watched);
      lock.lock();
      shared.publish(*group);
    }
    const std::int64_t after = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    shared.cost_ns = static_cast<std::uint64_t>(after);
    cost = static_cast<double>(after - before);
    begin += static_cast<std::int64_t>(period);
    begin = std::max(begin, clock_ns(CLOCK_MONOTONIC) - static_cast<std::int64_t>(period));
  }
}

}  // namespace haiprof::stacks

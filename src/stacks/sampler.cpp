#include "stacks/sampler.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/unique_fd.h"
#include "stacks/bell.h"
#include "stacks/elsewhere.h"
#include "stacks/python_stacks.h"
#include "stacks/relatives.h"
#include "stacks/stack_tree.h"

namespace haiprof::stacks {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();
// A thread that waits for ever is written so often, ns.
constexpr std::int64_t kLongest = 10 * kSecond;
// The part of one core that looking may take.
constexpr double kShare = 0.01;
// Children are looked for that often, ns: those of the main thread, and of all threads.
constexpr std::int64_t kChildrenEach = kSecond, kAllChildrenEach = 10 * kSecond;
constexpr std::size_t kMostChildren = 256;
// Who owns a process that stays the same program is asked that often, ns.
constexpr std::int64_t kOwnerEach = kSecond;
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

}  // namespace

struct Sampler::Watched {
  struct Thread {
    Sample sample;
    StackTree::Path path;  // to the stack of its sample
    bool open = false;     // the sample may go on
    bool seen = true;
  };

  Watched(pid_t number, base::UniqueFd in_proc, const ring::PythonLayout& layout,
          Functions& functions)
      : pid(number),
        folder(std::move(in_proc)),
        stacks(number, layout, functions),
        states(number) {}

  pid_t pid;
  base::UniqueFd folder;      // of /proc: stays of this process
  bool is_bound = false;      // it is read through a file: that stays of this program
  bool was_bound = false;     // or could not be
  std::int64_t owner_at = 0;  // asked for again
  PythonStacks stacks;
  ThreadStates states;
  std::unordered_map<std::uint32_t, Thread> threads;
};

// What is sampled together: a process and its children.
struct Sampler::Group {
  struct Server {
    pid_t pid;
    base::UniqueFd children_file;
  };

  Group(uid_t user, const ring::PythonLayout& where, std::uint32_t first_node,
        const std::optional<OwnPython>& of_us)
      : owner(user), layout(where), own(of_us), tree(first_node) {}

  void look(std::int64_t now, std::int64_t period, const std::vector<pid_t>& watched);
  bool look(Watched& process, std::int64_t period);
  void find_children(bool of_all_threads, const std::vector<pid_t>& watched);
  void add_child(pid_t child, pid_t parent, const std::vector<pid_t>& watched);
  std::optional<ring::PythonLayout> layout_elsewhere(pid_t pid) const;
  void end(Watched& process);
  bool is_the_owners(int folder) const noexcept;
  void bind(Watched& process) const;
  // A thread of it sleeps so that nothing wakes it, as when a file server hangs: its memory may be
  // locked.
  static bool is_stuck(Watched& process);

  const uid_t owner;
  const ring::PythonLayout layout;
  const std::optional<OwnPython> own;
  Functions functions;
  StackTree tree;
  std::vector<std::unique_ptr<Watched>> processes;  // the one that was named comes first
  base::UniqueFd children_file;                     // of the one that was named
  std::vector<pid_t> others;                        // children with a memory of their own
  std::vector<Server> servers;                      // children that fork workers
  bool serves = false;                              // the one that was named does so itself
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
  Bell bell;         // rings when what the thread waits by has changed
  std::mutex mutex;  // of all that follows
  std::condition_variable left;
  bool ending = false, ended = false;
  double hz = 0.0;
  std::uint64_t cost_ns = 0;
  std::unordered_map<pid_t, std::shared_ptr<Group>> groups;

  void publish(Group& group);
};

// Of a Python that is no copy of the one that was named. None, too, while it is not loaded yet.
std::optional<ring::PythonLayout> Sampler::Group::layout_elsewhere(pid_t pid) const {
  if (!own || ThreadStates(pid).state(static_cast<std::uint32_t>(pid)) == State::uninterruptible) {
    return {};
  }
  const Elsewhere found = layout_of(pid, own->layout, own->runtime);
  if (!found.reason.empty() || !PythonStacks::possible(found.layout)) return {};
  return found.layout;
}

// A program that runs as another user shows another owner.
bool Sampler::Group::is_the_owners(int folder) const noexcept {
  struct stat about;
  return fstat(folder, &about) == 0 && about.st_uid == owner;
}

// For no child: one that has not become another program yet may share its parent's memory.
void Sampler::Group::bind(Watched& process) const {
  base::UniqueFd memory(openat(process.folder.get(), "mem", O_RDONLY | O_CLOEXEC));
  // Asked for behind that: what was opened is no other user's program.
  process.is_bound = memory && is_the_owners(process.folder.get());
  if (process.is_bound) process.stacks.read_through(std::move(memory));
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
    if (kind_in(processes[i]->folder.get()) == Kind::fork) others.push_back(processes[i]->pid);
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
  const bool asks = !process.is_bound || now >= process.owner_at;
  if (asks) process.owner_at = now + kOwnerEach;
  if (asks && !is_the_owners(process.folder.get())) {
    if (!is_named) return false;
    counts.ended = start_time_in(process.folder.get()) == 0;
    if (!counts.ended) counts.problem = "the process runs as another user now";
    return false;
  }
  counts.problem.clear();
  pause = kFirstPause;
  if (is_named && !std::exchange(process.was_bound, true)) bind(process);

  for (auto& [number, thread] : process.threads) thread.seen = false;
  for (const ThreadStack& stack : stacks) {
    if (stack.thread == 0) continue;
    Watched::Thread& thread = process.threads[stack.thread];
    thread.seen = true;
    const bool lasts = thread.open && thread.sample.duration_ns < kLongest;
    if (stack.same && lasts && thread.sample.state != State::running &&
        thread.sample.has_gil == stack.has_gil) {
      thread.sample.go_on(period);
      continue;
    }
    Sample sample;
    if (stack.same) {
      sample = thread.sample;
    } else {
      sample = {now,
                0,
                0,
                static_cast<std::uint32_t>(process.pid),
                stack.thread,
                stack.frames.empty() ? kNoStack : tree.id_of(stack.frames, thread.path),
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
    if (stack.same && lasts && sample.state == thread.sample.state &&
        sample.has_gil == thread.sample.has_gil) {
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
  const int folder = processes.front()->folder.get();
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
    servers.clear();
    add_all_children_in(folder, children);
  } else {
    add_children_from(children_file.get(), children);
  }
  for (const pid_t child : children) add_child(child, pid, watched);
  for (const Server& server : servers) {
    children.clear();
    add_children_from(server.children_file.get(), children);
    for (const pid_t child : children) add_child(child, server.pid, watched);
  }
}

// parent: the one that was named, or one of its servers.
void Sampler::Group::add_child(pid_t child, pid_t parent, const std::vector<pid_t>& watched) {
  if (processes.size() > kMostChildren || servers.size() > kMostChildren) return;
  const auto has = [&](const std::vector<pid_t>& pids) {
    return std::ranges::find(pids, child) != pids.end();
  };
  const bool is_known =
      has(watched) || has(others) ||
      std::ranges::any_of(servers, [&](const Server& server) { return server.pid == child; }) ||
      std::ranges::any_of(processes, [&](const auto& process) { return process->pid == child; });
  if (is_known) return;
  base::UniqueFd folder = folder_of(child);
  // Its number may be another's by now.
  const auto is_it = [&] {
    return folder && parent_in(folder.get()) == parent && is_the_owners(folder.get());
  };
  if (!is_it()) return;
  const bool is_of_named = parent == processes.front()->pid;
  const Kind kind = kind_in(folder.get());
  if (kind == Kind::server && is_of_named && !serves) {
    servers.push_back({child, children_file_in(folder.get(), child)});
    return;
  }
  const bool is_copy = kind == Kind::fork || (kind == Kind::server && is_of_named);
  const auto found = is_copy ? std::optional(layout) : layout_elsewhere(child);
  if (!found || !is_it()) return;
  processes.push_back(std::make_unique<Watched>(child, std::move(folder), *found, functions));
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
  shared_->bell.ring();
  shared_->left.wait_for(lock, kPatience, [this] { return shared_->ended; });
}

double Sampler::hz() const {
  const std::scoped_lock lock(shared_->mutex);
  return shared_->hz;
}

void Sampler::set_hz(double hz) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->hz = hz;
  shared_->bell.ring();
}

bool Sampler::watch(pid_t pid, std::uint64_t start_time, uid_t owner,
                    const ring::PythonLayout& layout, std::uint32_t first_node) {
  if (!PythonStacks::possible(layout)) return false;
  auto group = std::make_shared<Group>(owner, layout, first_node, own_);
  base::UniqueFd folder = folder_of(pid);
  if (!folder || !group->is_the_owners(folder.get())) return false;
  if (start_time_in(folder.get()) != start_time) return false;
  group->serves = kind_in(folder.get()) == Kind::server;
  group->processes.push_back(
      std::make_unique<Watched>(pid, std::move(folder), layout, group->functions));
  group->children_file = children_file_in(group->processes.front()->folder.get(), pid);
  const std::scoped_lock lock(shared_->mutex);
  shared_->groups[pid] = std::move(group);
  shared_->bell.ring();
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
  shared->left.notify_all();
}

void Sampler::look_again_and_again(Shared& shared) {
  std::minstd_rand random(std::random_device{}());
  std::uniform_real_distribution<double> part(0.0, 1.0);
  std::unique_lock lock(shared.mutex);
  const auto wait = [&](std::int64_t until) {
    const std::uint32_t seen = shared.bell.rings();
    lock.unlock();
    shared.bell.wait(seen, until);
    lock.lock();
  };
  std::int64_t begin = clock_ns(CLOCK_MONOTONIC), before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  double cost = 0.0;  // of the last look and the wait for it, ns of CPU time
  while (!shared.ending) {
    if (shared.groups.empty() || shared.hz <= 0) {
      wait(kForEver);
      begin = clock_ns(CLOCK_MONOTONIC);
      before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
      continue;
    }
    const double rate = shared.hz;
    const double period = std::max(static_cast<double>(kSecond) / rate, cost / kShare);
    const auto at = begin + static_cast<std::int64_t>(part(random) * period);
    // A new rate takes effect at once; so does the end.
    const auto goes_on = [&] { return !shared.ending && shared.hz == rate; };
    while (goes_on() && clock_ns(CLOCK_MONOTONIC) < at) wait(at);
    if (!goes_on()) continue;
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
    before = after;
    begin += static_cast<std::int64_t>(period);
    begin = std::max(begin, clock_ns(CLOCK_MONOTONIC) - static_cast<std::int64_t>(period));
  }
}

}  // namespace haiprof::stacks

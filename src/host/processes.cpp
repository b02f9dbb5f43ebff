#include "host/processes.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "host/scan.h"
#include "ring/clock.h"

namespace haiprof::host {

namespace {

// Listing /proc may take this part of a core; and it is listed at least this often, because the
// newest process number is that of our own pid namespace.
constexpr std::uint64_t kListingPause = 2000;
constexpr std::uint64_t kListAtLeastNs = 10'000'000'000;

// Reading again while processes die under the reading; more deaths in a row are left for later.
constexpr int kMaxPasses = 8;

constexpr unsigned kMaxDepth = 64;

constexpr pid_t kMaxPid = 1 << 22;  // PID_MAX_LIMIT

std::uint64_t growth(std::uint64_t now, std::uint64_t before) noexcept {
  return now > before ? now - before : 0;
}

}  // namespace

bool parse_process_stat(std::string_view text, ProcessStat& stat) noexcept {
  // The name may hold blanks and brackets, and only it may.
  const std::size_t bracket = text.rfind(')');
  if (bracket == std::string_view::npos) return false;
  std::string_view rest = text.substr(bracket + 1);
  std::string_view word;
  if (!next_word(rest, word) || word.size() != 1) return false;
  const char state = word[0];
  // Fields 4 to 24; some may be negative, and of those we use none.
  std::uint64_t field[21] = {};
  bool number[21] = {};
  for (std::size_t i = 0; i < 21; ++i) {
    if (!next_word(rest, word)) return false;
    number[i] = to_number(word, field[i]);
  }
  for (const std::size_t used : {0, 6, 7, 8, 9, 10, 11, 12, 13, 16, 18, 20}) {
    if (!number[used]) return false;
  }
  stat.state = state;
  stat.parent = field[0] <= kMaxPid ? static_cast<pid_t>(field[0]) : 0;
  stat.reaped_minor_faults = field[7];
  stat.minor_faults = field[6] + field[7];
  stat.major_faults = field[8] + field[9];
  stat.ticks = field[10] + field[11] + field[12] + field[13];
  stat.own_ticks = field[10] + field[11];
  stat.system_ticks = field[11];
  stat.threads = field[16];
  stat.start = field[18];
  stat.resident_pages = field[20];
  return true;
}

Processes::Processes(std::string procfs)
    : procfs_(std::move(procfs)), loadavg_(procfs_ + "/loadavg") {}

Processes::Process* Processes::find(pid_t pid) noexcept {
  const auto at = places_.find(pid);
  return at == places_.end() ? nullptr : &processes_[at->second];
}

Processes::Listed* Processes::find_listed(pid_t pid) noexcept {
  const auto at =
      std::lower_bound(listed_.begin(), listed_.end(), pid,
                       [](const Listed& entry, pid_t wanted) { return entry.pid < wanted; });
  return at != listed_.end() && at->pid == pid ? &*at : nullptr;
}

Tree* Processes::tree_of(pid_t root) noexcept {
  const auto at = std::find_if(trees_.begin(), trees_.end(),
                               [&](const Tree& tree) { return tree.root == root; });
  return at == trees_.end() ? nullptr : &*at;
}

void Processes::watch(pid_t root) {
  trees_.emplace_back().root = root;
  look_at_all_ = true;
}

void Processes::unwatch(pid_t root) noexcept {
  std::erase_if(trees_, [&](const Tree& tree) { return tree.root == root; });
  put_in_order();  // a tree around this one takes them over, as they were counted
  for (Process& process : processes_) {
    if (process.root != root) continue;
    process.gone = true;
    process.open = false;
  }
  forget_gone();
}

void Processes::update(std::uint64_t now_ns) {
  if (trees_.empty()) return;
  find_new(now_ns);
  // A parent read after its child was waited for holds the child's totals, one read before does
  // not. Once nobody died during a reading, every child was alive after its parent was read.
  bool died = true;
  for (int pass = 0; pass < kMaxPasses && died; ++pass) died = read_all();
  count(!died);
  forget_gone();
}

void Processes::list_tree(pid_t root, std::vector<pid_t>& pids) const {
  for (const Process& process : processes_) {
    if (process.root == root && process.seen && !process.gone) pids.push_back(process.pid);
  }
}

// ---- finding processes

bool Processes::newest_pid_changed() {
  if (procfs_ != "/proc" || loadavg_.read(buffer_) != 0) return true;
  std::string_view text = buffer_.text();
  std::string_view word;
  for (int i = 0; i < 4; ++i) next_word(text, word);
  std::uint64_t newest = 0;
  if (!next_number(text, newest)) return true;
  return std::exchange(newest_pid_, newest) != newest;
}

void Processes::find_new(std::uint64_t now_ns) {
  const bool changed = newest_pid_changed();
  if (changed) list_before_ns_ = std::min(list_before_ns_, list_after_ns_);
  // A clock that jumped back must not stop the listing for ever.
  const bool due = now_ns >= list_before_ns_ || list_before_ns_ > now_ns + 2 * kListAtLeastNs;
  if (!due && !look_at_all_) return;
  const std::uint64_t before = ring::clock_ns(CLOCK_THREAD_CPUTIME_ID);
  list();
  look_up_parents();
  adopt();
  const std::uint64_t cost = ring::clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
  list_after_ns_ = now_ns + std::min(cost * kListingPause, kListAtLeastNs);
  list_before_ns_ = now_ns + kListAtLeastNs;
}

void Processes::list() {
  std::swap(listed_, listed_before_);
  listed_.clear();
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(procfs_.c_str()), closedir);
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory.get())) {
    std::uint64_t pid = 0;
    if (!to_number(entry->d_name, pid) || pid == 0 || pid > kMaxPid) continue;
    listed_.push_back({static_cast<pid_t>(pid), entry->d_ino, 0, true});
  }
  const auto by_pid = [](const Listed& a, const Listed& b) { return a.pid < b.pid; };
  if (!std::is_sorted(listed_.begin(), listed_.end(), by_pid)) {
    std::sort(listed_.begin(), listed_.end(), by_pid);
  }
  auto old = listed_before_.begin();
  for (Listed& entry : listed_) {
    while (old != listed_before_.end() && old->pid < entry.pid) ++old;
    if (old == listed_before_.end()) break;
    entry.fresh = old->pid != entry.pid || old->inode != entry.inode;
  }
}

void Processes::look_up_parents() {
  for (Listed& entry : listed_) {
    if ((!entry.fresh && !look_at_all_) || find(entry.pid) != nullptr) continue;
    ProcessStat stat;
    File file(procfs_ + "/" + std::to_string(entry.pid) + "/stat");
    if (file.read(buffer_) != 0 || !parse_process_stat(buffer_.text(), stat)) continue;
    entry.parent = stat.parent;
    // Born under the listing with a smaller number than its child: look at the child again.
    if (stat.parent != 0 && find_listed(stat.parent) == nullptr) entry.inode = 0;
  }
  look_at_all_ = false;
}

void Processes::adopt() {
  const std::size_t before = processes_.size();
  bool new_tree = false;
  for (const Tree& tree : trees_) {
    new_tree |= !tree.listed;
    if (!tree.listed && find(tree.root) == nullptr) add(tree.root, 0, tree.root, false);
  }
  for (bool more = true; more;) {
    more = false;
    for (const Listed& entry : listed_) {
      if (entry.parent == 0 || find(entry.pid) != nullptr) continue;
      const Process* parent = find(entry.parent);
      if (parent == nullptr) continue;
      add(entry.pid, entry.parent, parent->root, entry.fresh && tree_of(parent->root)->listed);
      more = true;
    }
  }
  if (new_tree || processes_.size() != before) put_in_order();
  for (Tree& tree : trees_) tree.listed = true;
}

void Processes::add(pid_t pid, pid_t parent, pid_t root, bool counts_from_zero) {
  const std::string folder = procfs_ + "/" + std::to_string(pid);
  Process process;
  process.pid = pid;
  process.parent = parent;
  process.root = root;
  process.stat = File(folder + "/stat");
  process.io = File(folder + "/io");
  process.counts_from_zero = counts_from_zero;
  places_[pid] = processes_.size();
  processes_.push_back(std::move(process));
}

// Parents first; and a process belongs to the nearest watched one above it.
void Processes::put_in_order() {
  for (Process& process : processes_) {
    process.depth = 0;
    const Process* above = find(process.parent);
    while (above != nullptr && process.depth < kMaxDepth) {
      ++process.depth;
      above = find(above->parent);
    }
  }
  std::stable_sort(processes_.begin(), processes_.end(),
                   [](const Process& a, const Process& b) { return a.depth < b.depth; });
  for (std::size_t i = 0; i < processes_.size(); ++i) places_[processes_[i].pid] = i;
  for (Process& process : processes_) {
    const Process* parent = find(process.parent);
    if (tree_of(process.pid) != nullptr) {
      process.root = process.pid;
    } else if (parent != nullptr) {
      process.root = parent->root;
    }
    if (process.root != process.pid) {
      process.status = File();
      process.schedstat = File();
      process.main_thread = File();
      process.communication = {};
    } else if (!process.status) {
      const std::string folder = procfs_ + "/" + std::to_string(process.pid);
      process.status = File(folder + "/status");
      process.schedstat = File(folder + "/schedstat");
      process.main_thread = File(folder + "/task/" + std::to_string(process.pid) + "/stat");
    }
  }
}

// ---- reading them

// True when a process was found dead that was not known to be.
bool Processes::read_all() {
  bool died = false;
  for (Process& process : processes_) {
    if (process.gone) continue;
    read_process(process);
    died |= process.gone;
  }
  return died;
}

void Processes::read_process(Process& process) {
  if (const int error = process.stat.read(buffer_); error != 0) {
    // A lack of descriptors or memory says nothing about the process.
    process.gone = error == ESRCH || error == ENOENT;
    return;
  }
  ProcessStat stat;
  if (!parse_process_stat(buffer_.text(), stat)) return;
  if (process.seen && stat.start != process.start) {
    process.gone = true;
    return;
  }
  if (stat.state == 'X') {
    // Somebody waited for it just now, and has its totals already, or will at once.
    process.gone = true;
    process.state = stat.state;
    return;
  }
  process.seen = true;
  process.start = stat.start;
  process.parent = stat.parent;
  process.state = stat.state;
  process.threads = stat.threads;
  process.latest.minor_faults = stat.minor_faults;
  process.latest.reaped_minor_faults = stat.reaped_minor_faults;
  process.latest.totals[kCpuTicks] = stat.ticks;
  process.latest.totals[kMajorFaults] = stat.major_faults;
  process.latest.totals[kMinorFaults] = stat.minor_faults;
  process.resident_pages = stat.resident_pages;
  read_io(process);
  if (process.status) read_root(process);
}

void Processes::read_io(Process& process) {
  const int error = process.io.read(buffer_);
  Tree* tree = process.root == process.pid ? tree_of(process.root) : nullptr;
  if (tree != nullptr) tree->io_error = error;
  constexpr std::string_view kKeys[] = {"rchar", "wchar", "read_bytes", "write_bytes"};
  std::uint64_t values[4];
  bool complete = error == 0;
  for (std::size_t i = 0; complete && i < 4; ++i) {
    complete = find_number(buffer_.text(), kKeys[i], values[i]);
  }
  if (!complete) {
    process.has_io = false;
    return;
  }
  const bool missed_some = process.has_baseline && !process.has_io;
  process.has_io = true;
  for (std::size_t i = 0; i < 4; ++i) {
    process.latest.totals[kFirstIoTotal + i] = values[i];
    if (missed_some) process.counted.totals[kFirstIoTotal + i] = values[i];
  }
}

void Processes::read_root(Process& process) {
  Tree* tree = tree_of(process.root);
  if (tree == nullptr) return;
  if (process.status.read(buffer_) == 0) {
    tree->has_switches =
        find_number(buffer_.text(), "voluntary_ctxt_switches", tree->switches_voluntary) &&
        find_number(buffer_.text(), "nonvoluntary_ctxt_switches", tree->switches_involuntary);
  }
  // How long it ran, how long it waited to run, and how often it was given a CPU: a kernel that
  // does not count them writes zeros.
  std::uint64_t ran = 0;
  std::uint64_t turns = 0;
  tree->has_wait = process.schedstat.read(buffer_) == 0;
  std::string_view text = buffer_.text();
  tree->has_wait = tree->has_wait && next_number(text, ran) && next_number(text, tree->wait_ns) &&
                   next_number(text, turns) && turns != 0;
  ProcessStat main;
  tree->has_main_thread =
      process.main_thread.read(buffer_) == 0 && parse_process_stat(buffer_.text(), main);
  if (tree->has_main_thread) {
    tree->main_system_ticks = main.system_ticks;
    tree->main_minor_faults = main.minor_faults - main.reaped_minor_faults;
  }
  const std::string folder = procfs_ + "/" + std::to_string(process.pid);
  tree->has_communication_wait = process.communication.update(folder, process.threads, buffer_);
  tree->communication_wait_ns = process.communication.waited_ns();
}

// ---- counting what they used

void Processes::count(bool settled) {
  for (Tree& tree : trees_) {
    tree.alive = false;
    tree.processes = 0;
    tree.threads = 0;
    tree.resident_pages = 0;
  }
  grown_.assign(processes_.size(), Reading{});
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    Process& process = processes_[i];
    if (process.gone || !process.seen) continue;
    if (!process.has_baseline && !process.counts_from_zero) process.counted = process.latest;
    process.has_baseline = true;
    Reading& grown = grown_[i];
    grown.reaped_minor_faults =
        growth(process.latest.reaped_minor_faults, process.counted.reaped_minor_faults);
    for (std::size_t k = 0; k < kTotals; ++k) {
      grown.totals[k] = growth(process.latest.totals[k], process.counted.totals[k]);
    }
  }
  for (Process& process : processes_) {
    if (!process.gone || !process.has_baseline) continue;
    // Its parent may have been read before it took over: then the next reading tells.
    const bool early = !settled || process.state == 'X';
    process.open = !take_over(process) && early && !process.open;
  }
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    Process& process = processes_[i];
    Tree* tree = tree_of(process.root);
    if (process.gone || tree == nullptr) continue;
    const bool zombie = process.state == 'Z' || process.state == 'X';
    tree->alive |= process.pid == process.root && !zombie;
    if (!process.seen) continue;
    process.counted = process.latest;
    for (std::size_t k = 0; k < kTotals; ++k) tree->totals[k] += grown_[i].totals[k];
    if (zombie) continue;
    ++tree->processes;
    tree->threads += process.threads;
    tree->resident_pages += process.resident_pages;
  }
}

// Takes what was counted of a dead process off the growth of whoever waited for it. Returns whether
// somebody did.
bool Processes::take_over(const Process& ended) {
  Process* above = find(ended.parent);
  for (unsigned depth = 0; above != nullptr && above->gone && depth < kMaxDepth; ++depth) {
    above = find(above->parent);
  }
  if (above == nullptr || above->gone) return false;
  Reading& grown = grown_[static_cast<std::size_t>(above - processes_.data())];
  if (grown.reaped_minor_faults < ended.counted.minor_faults) return false;
  grown.reaped_minor_faults -= ended.counted.minor_faults;
  for (std::size_t k = 0; k < kTotals; ++k) {
    grown.totals[k] = growth(grown.totals[k], ended.counted.totals[k]);
  }
  return true;
}

void Processes::forget_gone() noexcept {
  for (const Process& process : processes_) {
    if (!process.gone || process.open) continue;
    places_.erase(process.pid);
    // Its number may come back, in front of us, as a child's.
    if (Listed* entry = find_listed(process.pid); entry != nullptr) entry->inode = 0;
  }
  std::erase_if(processes_, [](const Process& process) { return process.gone && !process.open; });
  for (std::size_t i = 0; i < processes_.size(); ++i) places_.find(processes_[i].pid)->second = i;
}

}  // namespace haiprof::host

// The processes below each watched process, and what each tree of them has used in all, counted
// once. Knows /proc/<pid>; knows nothing of metrics.
//
// The kernel adds a child's totals to its parent when the parent waits for it, and not before. So
// what a tree has used grows by what every living process of it has grown by, less what a parent
// took over from children that were counted while they lived. Which ones it took over shows in its
// cminflt: page faults of waited-for children, which every process has. (A parent that ignores
// SIGCHLD takes over nothing.)
//
// New processes are found by listing /proc, which costs by process, where task/<tid>/children costs
// by thread: a rank has hundreds. Of processes seen before only the number and the inode are
// compared. The list is not read while /proc/loadavg names the same newest process as before.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "host/communication_threads.h"
#include "host/file.h"

namespace haiprof::host {

enum Total : std::size_t {
  kCpuTicks,  // user and system, in clock ticks
  kMajorFaults,
  kMinorFaults,
  kSyscallRead,  // bytes through read() and its like
  kSyscallWrite,
  kStorageRead,  // bytes from and to block devices and network file systems
  kStorageWrite,
  kTotals,
};
inline constexpr std::size_t kFirstIoTotal = kSyscallRead;

// The numbers of /proc/<pid>/stat that we use.
struct ProcessStat {
  char state = '?';
  pid_t parent = 0;
  std::uint64_t minor_faults = 0;         // own and waited-for children's
  std::uint64_t reaped_minor_faults = 0;  // waited-for children's alone
  std::uint64_t major_faults = 0;         // own and waited-for children's
  std::uint64_t ticks = 0;                // own and waited-for children's
  std::uint64_t own_ticks = 0;
  std::uint64_t system_ticks = 0;  // of the own, in the kernel
  std::uint64_t threads = 0;
  std::uint64_t start = 0;
  std::uint64_t resident_pages = 0;
};

// False when the line is truncated or malformed.
bool parse_process_stat(std::string_view text, ProcessStat& stat) noexcept;

struct Tree {
  pid_t root = 0;
  bool alive = false;   // the watched process itself
  bool listed = false;  // its processes have been looked for
  int io_error = 0;     // errno of reading the root's io, or 0
  std::size_t processes = 0;
  std::uint64_t threads = 0;
  std::uint64_t resident_pages = 0;
  std::uint64_t totals[kTotals] = {};  // since the watch began
  bool has_switches = false;
  std::uint64_t switches_voluntary = 0;  // of the root's main thread
  std::uint64_t switches_involuntary = 0;
  bool has_wait = false;
  std::uint64_t wait_ns = 0;  // that the root's main thread could have run and had no CPU
  bool has_main_thread = false;
  std::uint64_t main_system_ticks = 0;  // of the root's main thread, in the kernel
  std::uint64_t main_minor_faults = 0;
  bool has_communication_wait = false;
  std::uint64_t communication_wait_ns = 0;  // the same of its threads that communicate
};

class Processes {
 public:
  explicit Processes(std::string procfs);

  void watch(pid_t root);  // one that is not watched
  void unwatch(pid_t root) noexcept;

  // Brings every tree up to date. now_ns paces the listing of /proc.
  void update(std::uint64_t now_ns);

  const std::vector<Tree>& trees() const noexcept { return trees_; }

  // Appends the processes that counted to a tree when it was last brought up to date: the watched
  // one first, parents before their children.
  void list_tree(pid_t root, std::vector<pid_t>& pids) const;

 private:
  struct Reading {
    std::uint64_t minor_faults = 0;
    std::uint64_t reaped_minor_faults = 0;
    std::uint64_t totals[kTotals] = {};
  };

  struct Process {
    pid_t pid = 0;
    pid_t parent = 0;
    pid_t root = 0;  // of its tree
    unsigned depth = 0;
    std::uint64_t start = 0;
    File stat, io, status, schedstat, main_thread;
    CommunicationThreads communication;
    Reading counted;  // its share of the tree's totals
    Reading latest;
    bool counts_from_zero = false;  // born since we watch: all it ever did belongs to the tree
    bool has_baseline = false;
    bool has_io = false;  // its io could be read the last time
    bool seen = false;    // its stat could be read at least once
    bool gone = false;
    bool open = false;  // gone, and it is not known yet whether somebody waited for it
    char state = '?';
    std::uint64_t threads = 0;
    std::uint64_t resident_pages = 0;
  };

  struct Listed {
    pid_t pid = 0;
    std::uint64_t inode = 0;
    pid_t parent = 0;  // 0: not looked up
    bool fresh = false;
  };

  void find_new(std::uint64_t now_ns);
  bool newest_pid_changed();
  void list();
  void look_up_parents();
  void adopt();
  void add(pid_t pid, pid_t parent, pid_t root, bool counts_from_zero);
  void put_in_order();
  bool read_all();
  void read_process(Process& process);
  void read_io(Process& process);
  void read_root(Process& process);
  void count(bool settled);
  bool take_over(const Process& ended);
  void forget_gone() noexcept;
  Process* find(pid_t pid) noexcept;
  Listed* find_listed(pid_t pid) noexcept;
  Tree* tree_of(pid_t root) noexcept;

  std::string procfs_;
  File loadavg_;
  Buffer buffer_;
  std::vector<Tree> trees_;
  std::vector<Process> processes_;  // parents before their children
  std::vector<Reading> grown_;      // of each process, while they are counted
  std::unordered_map<pid_t, std::size_t> places_;
  std::vector<Listed> listed_;  // all of /proc, by pid
  std::vector<Listed> listed_before_;
  std::uint64_t newest_pid_ = 0;
  std::uint64_t list_after_ns_ = 0;   // not before: what the last listing cost
  std::uint64_t list_before_ns_ = 0;  // at the latest
  bool look_at_all_ = false;
};

}  // namespace haiprof::host

#include "host/threads.h"

#include <dirent.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "host/cpu_list.h"
#include "host/scan.h"

namespace haiprof::host {

bool parse_thread_stat(std::string_view text, Thread& thread) noexcept {
  // The name may hold blanks and brackets, and only it may.
  const std::size_t bracket = text.rfind(')');
  if (bracket == std::string_view::npos) return false;
  std::string_view rest = text.substr(bracket + 1);
  std::string_view word;
  std::uint64_t utime = 0;
  std::uint64_t stime = 0;
  std::uint64_t cpu = 0;
  for (int field = 3; field <= 39; ++field) {
    if (!next_word(rest, word)) return false;
    std::uint64_t* target = nullptr;
    if (field == 14) target = &utime;
    if (field == 15) target = &stime;
    if (field == 22) target = &thread.start;
    if (field == 39) target = &cpu;
    if (target != nullptr && !to_number(word, *target)) return false;
  }
  if (cpu >= kMaxCpus) return false;
  thread.ticks = utime + stime;
  thread.cpu = static_cast<unsigned>(cpu);
  return true;
}

void Threads::list(pid_t process, Buffer& buffer) {
  const std::string folder = procfs_ + "/" + std::to_string(process) + "/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory.get())) {
    if (threads_.size() >= kMost) return;
    std::uint64_t tid = 0;
    if (!to_number(entry->d_name, tid) || tid == 0 || tid > (1u << 22)) continue;
    Thread thread;
    thread.tid = static_cast<pid_t>(tid);
    const std::string place = folder + "/" + entry->d_name;
    File stat(place + "/stat");
    if (stat.read(buffer) != 0 || !parse_thread_stat(buffer.text(), thread)) continue;
    if (File waits(place + "/schedstat"); waits_ && waits.read(buffer) == 0) {
      // How long it ran, and how long it waited to run.
      std::uint64_t ran[2] = {};
      std::string_view text = buffer.text();
      if (next_numbers(text, ran) == 2) thread.wait_ns = ran[1];
    }
    threads_.push_back(thread);
  }
}

void Threads::look(const std::vector<pid_t>& processes, Buffer& buffer) {
  std::swap(threads_, before_);
  threads_.clear();
  for (const pid_t process : processes) list(process, buffer);
  const auto by_tid = [](const Thread& a, const Thread& b) { return a.tid < b.tid; };
  std::sort(threads_.begin(), threads_.end(), by_tid);

  std::uint64_t newest = 0;
  for (const Thread& before : before_) newest = std::max(newest, before.start);
  auto before = before_.begin();
  for (Thread& thread : threads_) {
    while (before != before_.end() && before->tid < thread.tid) ++before;
    const bool same =
        before != before_.end() && before->tid == thread.tid && before->start == thread.start;
    if (same) {
      thread.grown = thread.ticks - std::min(thread.ticks, before->ticks);
      thread.waited_ns = thread.wait_ns - std::min(thread.wait_ns, before->wait_ns);
    } else if (!before_.empty() && thread.start > newest) {
      thread.grown = thread.ticks;  // younger than all known ones: born since
      thread.waited_ns = thread.wait_ns;
    }
  }
}

}  // namespace haiprof::host

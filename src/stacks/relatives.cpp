#include "stacks/relatives.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

namespace haiprof::stacks {
namespace {

// A number of its stat file, by its place there, which is behind the name's; 0: it has ended.
std::uint64_t stat_of(int folder, int place) noexcept {
  const base::UniqueFd file(openat(folder, "stat", O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t got = file ? ::read(file.get(), text, sizeof text - 1) : -1;
  if (got <= 0) return 0;
  text[got] = '\0';
  const char* at = std::strrchr(text, ')');
  for (int before = 2; at != nullptr && before < place; ++before) at = std::strchr(at + 1, ' ');
  return at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
}

base::UniqueFd children_file_of(int folder, const char* thread) noexcept {
  char path[288];
  std::snprintf(path, sizeof path, "task/%s/children", thread);
  return base::UniqueFd(openat(folder, path, O_RDONLY | O_CLOEXEC));
}

}  // namespace

base::UniqueFd folder_of(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid);
  return base::UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

std::uint64_t start_time_in(int folder) noexcept { return stat_of(folder, 22); }

pid_t parent_in(int folder) noexcept { return static_cast<pid_t>(stat_of(folder, 4)); }

Kind kind_in(int folder) noexcept {
  const base::UniqueFd file(openat(folder, "cmdline", O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t got = file ? ::read(file.get(), text, sizeof text) : -1;
  if (got <= 0) return Kind::fork;
  using namespace std::string_view_literals;
  const std::string_view command(text, static_cast<std::size_t>(got));
  const auto has = [&](std::string_view part) { return command.find(part) != command.npos; };
  if (has("\0--multiprocessing-fork\0"sv)) return Kind::spawned;
  const bool serves = has("\0from multiprocessing.forkserver import main;"sv) ||
                      // Since a fix of 3.14.
                      has("\0import sys; from multiprocessing.forkserver import main;"sv);
  return serves ? Kind::server : Kind::fork;
}

base::UniqueFd children_file_in(int folder, pid_t pid) {
  return children_file_of(folder, std::to_string(pid).c_str());
}

void add_children_from(int file, std::vector<pid_t>& children) {
  char text[4096];
  const ssize_t got = file < 0 ? -1 : pread(file, text, sizeof text - 1, 0);
  if (got <= 0) return;
  text[got] = '\0';
  for (char* at = text;;) {
    char* end = nullptr;
    const long child = std::strtol(at, &end, 10);
    // Each ends with a space; one that does not is cut.
    if (end == at || *end != ' ') return;
    children.push_back(static_cast<pid_t>(child));
    at = end;
  }
}

void add_all_children_in(int folder, std::vector<pid_t>& children) {
  base::UniqueFd opened(openat(folder, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(opened ? fdopendir(opened.get()) : nullptr,
                                                    closedir);
  if (threads == nullptr) return;
  opened.release();
  while (const dirent* const entry = readdir(threads.get())) {
    if (entry->d_name[0] == '.') continue;
    add_children_from(children_file_of(folder, entry->d_name).get(), children);
  }
}

}  // namespace haiprof::stacks

// The memory mappings of a process: /proc/<pid>/maps.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace haiprof::attach {

struct Mapping {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool readable = false;
  bool writable = false;
  bool executable = false;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t inode = 0;   // 0: no file
  std::string path;          // as the process sees it; "[vdso]" and the like; may be empty
};

// Truncated and malformed lines are left out.
std::vector<Mapping> parse_maps(std::string_view text);

// 0 and the mappings, or the errno. An ended process has no mappings.
int read_maps(pid_t pid, std::vector<Mapping>& maps);

}  // namespace haiprof::attach

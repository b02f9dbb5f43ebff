#include "attach/maps.h"

#include <charconv>

#include "attach/proc.h"

namespace haiprof::attach {

namespace {

// Takes a number and the character after it off the front of the text.
bool take(std::string_view& text, std::uint64_t& number, int base, char after) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc{} || end == text.data() + text.size() || *end != after) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

// 7f0a-7f0b r-xp 00001000 fe:01 1234      /usr/lib/x.so
bool parse(std::string_view line, Mapping& mapping) {
  if (!take(line, mapping.begin, 16, '-') || !take(line, mapping.end, 16, ' ')) return false;
  if (line.size() < 5 || line[4] != ' ') return false;
  mapping.readable = line[0] == 'r';
  mapping.writable = line[1] == 'w';
  mapping.executable = line[2] == 'x';
  line.remove_prefix(5);
  std::uint64_t device = 0;
  if (!take(line, mapping.offset, 16, ' ') || !take(line, device, 16, ':') ||
      !take(line, device, 16, ' ')) {
    return false;
  }
  const auto [end, error] =
      std::from_chars(line.data(), line.data() + line.size(), mapping.inode, 10);
  if (error != std::errc{}) return false;
  line.remove_prefix(static_cast<std::size_t>(end - line.data()));
  const std::size_t name = line.find_first_not_of(' ');
  if (name != std::string_view::npos) mapping.path = line.substr(name);
  return mapping.begin < mapping.end;
}

}  // namespace

std::vector<Mapping> parse_maps(std::string_view text) {
  std::vector<Mapping> maps;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;
    Mapping mapping;
    if (parse(text.substr(0, end), mapping)) maps.push_back(std::move(mapping));
    text.remove_prefix(end + 1);
  }
  return maps;
}

int read_maps(pid_t pid, std::vector<Mapping>& maps) {
  std::string text;
  if (const int error = read_proc(pid, "maps", text); error != 0) return error;
  maps = parse_maps(text);
  return 0;
}

}  // namespace haiprof::attach

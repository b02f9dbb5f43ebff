#include "perf/attribute.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>

#include "host/file.h"

namespace haiprof::perf {

namespace {

constexpr std::string_view kWhite = " \t\r\n";

std::string because(const std::string& path, int error) {
  return path + ": " + host::error_text(error);
}

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

}  // namespace

Found<std::string> read_start(const std::string& path, std::size_t most) {
  // O_NONBLOCK: a fifo or device that stands in for a file must not stop the reader.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return Found<std::string>::none(because(path, errno));
  std::string text;
  int error = 0;
  while (text.size() < most) {
    char chunk[4096];
    const ssize_t got = ::read(fd, chunk, std::min(sizeof chunk, most - text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    text.append(chunk, static_cast<std::size_t>(got));
  }
  ::close(fd);
  if (error != 0) return Found<std::string>::none(because(path, error));
  return {std::move(text), {}};
}

Found<std::string> read_attribute(const std::string& path) {
  Found<std::string> read = read_start(path, kMaxAttribute + 1);
  if (!read) return read;
  const std::string& text = *read;
  if (text.size() > kMaxAttribute) {
    return Found<std::string>::none(path + ": is longer than any attribute of sysfs");
  }
  const std::size_t begin = text.find_first_not_of(kWhite);
  if (begin == std::string::npos) return Found<std::string>::none(path + ": is empty");
  return {text.substr(begin, text.find_last_not_of(kWhite) - begin + 1), {}};
}

Found<std::vector<std::string>> list_folder(const std::string& path, bool must_exist) {
  using Names = std::vector<std::string>;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), &closedir);
  if (folder == nullptr) {
    if (errno == ENOENT && !must_exist) return {Names{}, {}};
    return Found<Names>::none(because(path, errno));
  }
  Names names;
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end(), natural_less);
  return {std::move(names), {}};
}

Numbered numbered(std::string_view name) noexcept {
  std::size_t end = name.size();
  while (end > 0 && is_digit(name[end - 1])) --end;
  unsigned number = 0;
  const auto [at, error] = std::from_chars(name.data() + end, name.data() + name.size(), number);
  if (error != std::errc{}) return {name, std::nullopt};
  return {name.substr(0, end), number};
}

bool natural_less(std::string_view a, std::string_view b) noexcept {
  const Numbered left = numbered(a);
  const Numbered right = numbered(b);
  if (left.stem != right.stem) return left.stem < right.stem;
  if (left.number != right.number) return left.number < right.number;
  return a < b;
}

std::optional<unsigned long long> parse_number(std::string_view text) noexcept {
  const bool hex = text.starts_with("0x") || text.starts_with("0X");
  if (hex) text.remove_prefix(2);
  unsigned long long number = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number, hex ? 16 : 10);
  if (error != std::errc{} || at != end) return std::nullopt;
  return number;
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 40;
  std::string quoted_text = "'";
  for (const char c : text.substr(0, kMost)) quoted_text += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > kMost) quoted_text += "…";
  return quoted_text + "'";
}

}  // namespace haiprof::perf

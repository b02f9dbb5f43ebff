#include "perfd/log.h"

#include <poll.h>
#include <unistd.h>

namespace haiprof::perfd {

namespace {

constexpr std::int64_t kMinute = 60'000'000'000;

}  // namespace

void Log::say(const std::string& line, std::int64_t now_ns) {
  if (said_ == 0 || now_ns - since_ns_ >= kMinute) {
    if (unsaid_ > 0) write_line(std::to_string(unsaid_) + " more lines were left out");
    since_ns_ = now_ns;
    said_ = 0;
    unsaid_ = 0;
  }
  if (said_ < kMostPerMinute) {
    ++said_;
    write_line(line);
  } else {
    ++unsaid_;
  }
}

void write_line(const std::string& line) {
  pollfd error{STDERR_FILENO, POLLOUT, 0};
  if (poll(&error, 1, 0) != 1 || (error.revents & POLLOUT) == 0) return;
  const std::string whole = "haiprof-perfd: " + line + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, whole.data(), whole.size());
}

}  // namespace haiprof::perfd

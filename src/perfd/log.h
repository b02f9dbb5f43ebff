// Lines on standard error, limited per minute: a peer that fails again and again must not fill the
// journal, and a journal that nobody reads must not stop the server.
#pragma once

#include <cstdint>
#include <string>

namespace haiprof::perfd {

class Log {
 public:
  static constexpr unsigned kMostPerMinute = 20;

  // now_ns: of a clock that does not go backwards.
  void say(const std::string& line, std::int64_t now_ns);

 private:
  std::int64_t since_ns_ = 0;
  unsigned said_ = 0;
  std::uint64_t unsaid_ = 0;
};

// One line, whatever the rate.
void write_line(const std::string& line);

}  // namespace haiprof::perfd

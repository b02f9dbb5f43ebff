// The assertion of the native tests: prints what differed and where, counts, and goes on.
#pragma once

#include <cstdio>
#include <iostream>

namespace haiprof::test {

inline int failures = 0;
inline int checks = 0;

template <typename A, typename B>
void equal(const A& got, const B& expected, const char* expression, const char* file, int line) {
  ++checks;
  if (got == expected) return;
  ++failures;
  std::cerr << file << ":" << line << ": " << expression << ": got " << got << ", wanted "
            << expected << "\n";
}

inline void holds(bool condition, const char* expression, const char* file, int line) {
  ++checks;
  if (condition) return;
  ++failures;
  std::cerr << file << ":" << line << ": not true: " << expression << "\n";
}

// The exit status of a test program: 0 only when something was checked and all of it held.
inline int result() {
  std::cout << checks << " checks, " << failures << " failed\n";
  return checks > 0 && failures == 0 ? 0 : 1;
}

}  // namespace haiprof::test

#define CHECK(condition) ::haiprof::test::holds(bool(condition), #condition, __FILE__, __LINE__)
#define CHECK_EQUAL(got, expected) \
  ::haiprof::test::equal((got), (expected), #got " == " #expected, __FILE__, __LINE__)

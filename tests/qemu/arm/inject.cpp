// inject PID TEXT: has a running Python execute a text, once, and waits until it has. Prints for
// how many nanoseconds one of its threads stood, or why it cannot be.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "attach/injection.h"
#include "attach/refused.h"

namespace {

using namespace haiprof::attach;
using std::chrono::steady_clock;

template <typename Done>
bool wait(steady_clock::time_point deadline, Done done) {
  while (!done()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  const auto deadline = steady_clock::now() + std::chrono::seconds(60);
  try {
    Injection injection(std::atoi(words[1]), words[2]);
    const bool ran = wait(deadline, [&] { return injection.queue() == Queued::kYes; }) &&
                     wait(deadline, [&] { return injection.ran(); });
    injection.close();
    std::printf(ran ? "%" PRId64 "\n" : "late after %" PRId64 "\n", injection.frozen_ns());
    return ran ? 0 : 1;
  } catch (const Refused& refused) {
    std::printf("%s: %s\n", refused.reason(), refused.what());
    return 1;
  }
}

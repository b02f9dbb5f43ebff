#include "stacks/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <limits>

namespace haiprof::stacks {

void Bell::ring() noexcept {
  rings_.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &rings_, FUTEX_WAKE_PRIVATE, std::numeric_limits<int>::max(), nullptr, nullptr,
          0);
}

void Bell::wait(std::uint32_t seen, std::int64_t until) const noexcept {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const timespec time{static_cast<time_t>(until / kSecond), static_cast<long>(until % kSecond)};
  syscall(SYS_futex, &rings_, FUTEX_WAIT_BITSET_PRIVATE, seen, &time, nullptr,
          FUTEX_BITSET_MATCH_ANY);
}

}  // namespace haiprof::stacks

#include "gpu/health.h"

namespace haiprof::gpu {
namespace {

// Fewer records say nothing: what a flush by force cuts short has no time either.
constexpr std::uint64_t kTimed = 1000;
constexpr std::uint64_t kPerHundred = 1;

// The cost is looked at in millions of records, which a busy job makes in a minute or two. Of a
// quiet one it would be the cost of looking.
constexpr std::uint64_t kMetered = 1'000'000;
constexpr std::uint64_t kSoon = 600'000'000'000;  // ns
constexpr double kTimes = 4;
constexpr double kNoticeable = 1000;  // ns; a hundredth of a core at 10 000 kernels a second

}  // namespace

void Health::begin(const Seen& now) noexcept {
  timed_from_ = metered_from_ = now;
  best_ns_ = 0;
}

Health::Trouble Health::look(const Seen& now) noexcept {
  if (timeless(now)) return Trouble::timeless;
  return slower(now) ? Trouble::slower : Trouble::none;
}

bool Health::timeless(const Seen& now) noexcept {
  const std::uint64_t without = now.timeless - timed_from_.timeless;
  const std::uint64_t all = now.records - timed_from_.records + without;
  if (all < kTimed) return false;
  judged_ = all;
  judged_timeless_ = without;
  timed_from_ = now;
  return without * 100 > all * kPerHundred;
}

bool Health::slower(const Seen& now) noexcept {
  const std::uint64_t records = now.records - metered_from_.records;
  if (records < kMetered) return false;
  const auto cost = static_cast<double>(now.cost_ns - metered_from_.cost_ns);
  const bool soon = now.now_ns - metered_from_.now_ns <= kSoon;
  metered_from_ = now;
  if (!soon) return false;
  const double each = cost / static_cast<double>(records);
  if (best_ns_ == 0 || each < best_ns_) best_ns_ = each;
  return each > kTimes * best_ns_ && each > kNoticeable;
}

}  // namespace haiprof::gpu

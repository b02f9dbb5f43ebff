#include "sampler/minutes.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "sampler/series.h"

namespace haiprof::sampler {
namespace {

constexpr std::int64_t kMinuteNs = 60'000'000'000;

std::int64_t minute_of(std::int64_t time_ns) noexcept {
  const std::int64_t into = time_ns % kMinuteNs;
  return time_ns - (into < 0 ? into + kMinuteNs : into);
}

}  // namespace

void Minutes::add(std::int64_t time_ns, std::string_view metric, std::string_view instance,
                  double value, std::uint32_t flags) {
  if (!std::isfinite(value) || (flags & kImplausible) != 0) return;
  const Key key{metrics_.index_of(metric),
                instance.data() == nullptr ? kNoInstance : instances_.index_of(instance)};
  const std::int64_t begin = minute_of(time_ns);
  const auto [place, fresh] = open_.try_emplace(key, Minute{begin, 0, 0, 0.0, value, value});
  Minute& minute = place->second;
  if (!fresh && begin > minute.begin) {
    write(key, minute);
    minute = {begin, 0, 0, 0.0, value, value};
  }
  ++minute.count;
  minute.flags |= flags;
  minute.sum += value;
  minute.least = std::min(minute.least, value);
  minute.greatest = std::max(minute.greatest, value);
  if (begin <= newest_) return;
  newest_ = begin;
  end_before(begin - kMinuteNs);
}

void Minutes::end() {
  for (const auto& [key, minute] : open_) write(key, minute);
  open_.clear();
}

// The minutes of series that have no samples any more.
void Minutes::end_before(std::int64_t begin) {
  std::erase_if(open_, [&](const auto& each) {
    if (each.second.begin >= begin) return false;
    write(each.first, each.second);
    return true;
  });
}

void Minutes::write(const Key& key, const Minute& minute) {
  const std::size_t row = time_.size();
  if (row % 8 == 0) instance_bits_.push_back(0);
  if (key.second == kNoInstance) {
    ++without_instance_;
    instance_.push_back(0);
  } else {
    instance_bits_.back() |= static_cast<std::uint8_t>(1U << (row % 8));
    instance_.push_back(key.second);
  }
  time_.push_back(minute.begin);
  metric_.push_back(key.first);
  count_.push_back(minute.count);
  least_.push_back(minute.least);
  mean_.push_back(minute.sum / minute.count);
  greatest_.push_back(minute.greatest);
  flags_.push_back(minute.flags);
}

void Minutes::clear() {
  time_.clear();
  metric_.clear();
  instance_.clear();
  instance_bits_.clear();
  without_instance_ = 0;
  count_.clear();
  flags_.clear();
  least_.clear();
  mean_.clear();
  greatest_.clear();
  if (metrics_.is_large() || instances_.is_large()) renew();
}

// Minutes that are not over go on with the new numbers of their texts.
void Minutes::renew() {
  struct Named {
    std::string metric, instance;
    bool has_instance;
    Minute minute;
  };
  std::vector<Named> named;
  for (const auto& [key, minute] : open_) {
    const bool has = key.second != kNoInstance;
    named.push_back(
        {metrics_.texts()[key.first], has ? instances_.texts()[key.second] : "", has, minute});
  }
  open_.clear();
  metrics_.renew();
  instances_.renew();
  for (const Named& each : named) {
    open_.emplace(Key{metrics_.index_of(each.metric),
                      each.has_instance ? instances_.index_of(each.instance) : kNoInstance},
                  each.minute);
  }
}

}  // namespace haiprof::sampler

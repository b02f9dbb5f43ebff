#include "sampler/series.h"

#include <algorithm>
#include <cmath>

namespace haiprof::sampler {

const std::string* SeriesTable::text(std::string_view text) {
  if (texts_.size() >= kMaxTexts) {
    const auto entry = texts_.find(std::string(text));
    return entry == texts_.end() ? nullptr : &*entry;
  }
  return &*texts_.emplace(text).first;
}

SeriesId SeriesTable::add(std::string_view metric, std::string_view instance, pid_t target,
                          double scale, Emit emit) {
  Series series;
  series.metric = text(metric);
  series.instance = instance.empty() ? nullptr : text(instance);
  if (series.metric == nullptr || (!instance.empty() && series.instance == nullptr))
    return kNoSeries;
  series.target = target;
  series.scale = scale;
  series.silent = emit == Emit::once_moved;
  if (!free_.empty()) {
    const SeriesId id = free_.back();
    free_.pop_back();
    series_[id] = series;
    return id;
  }
  series_.push_back(series);
  free_.reserve(series_.capacity());  // remove() must not allocate
  return static_cast<SeriesId>(series_.size() - 1);
}

SeriesTable::Series* SeriesTable::find(SeriesId id) noexcept {
  return id < series_.size() && series_[id].metric != nullptr ? &series_[id] : nullptr;
}

void SeriesTable::remove(SeriesId id) noexcept {
  Series* series = find(id);
  if (series == nullptr) return;
  *series = Series{};
  free_.push_back(id);
}

void SeriesTable::begin(std::uint64_t now_ns, std::uint64_t last_ns,
                        std::uint64_t interval_ns) noexcept {
  now_ns_ = now_ns;
  last_ns_ = last_ns;
  const bool late = last_ns != 0 && now_ns > last_ns + interval_ns + interval_ns / 2;
  lateness_ = late ? kLate : 0;
}

bool SeriesTable::has_baseline(const Series& series) const noexcept {
  return series.time_ns != 0 && series.time_ns == last_ns_ && now_ns_ > last_ns_;
}

void SeriesTable::put(const Series& series, double value, std::uint32_t flags) {
  if (!std::isfinite(value)) return;
  values_.push_back({series.target, series.metric, series.instance, value, flags});
}

void SeriesTable::gauge(SeriesId id, double value, std::uint32_t flags) {
  const Series* series = find(id);
  if (series != nullptr) put(*series, value * series->scale, flags);
}

void SeriesTable::rate(SeriesId id, std::uint64_t counter) {
  Series* series = find(id);
  if (series == nullptr) return;
  const bool usable = has_baseline(*series) && counter >= series->part;
  const std::uint64_t grown = counter - series->part;
  if (counter != 0) series->silent = false;
  series->part = counter;
  series->time_ns = now_ns_;
  if (!usable || series->silent) return;
  const double seconds = static_cast<double>(now_ns_ - last_ns_) * 1e-9;
  put(*series, static_cast<double>(grown) / seconds * series->scale, lateness_);
}

void SeriesTable::baseline(SeriesId id, std::uint64_t counter) noexcept {
  Series* series = find(id);
  if (series == nullptr) return;
  series->part = counter;
  series->time_ns = last_ns_;
}

void SeriesTable::share(SeriesId id, std::uint64_t part, std::uint64_t whole) {
  Series* series = find(id);
  if (series == nullptr) return;
  const bool usable = has_baseline(*series) && part >= series->part && whole > series->whole;
  const double part_grown = static_cast<double>(part - series->part);
  const double whole_grown = static_cast<double>(whole - series->whole);
  if (part != 0) series->silent = false;
  series->part = part;
  series->whole = whole;
  series->time_ns = now_ns_;
  if (!usable || series->silent) return;
  put(*series, std::min(part_grown / whole_grown, 1.0) * series->scale, lateness_);
}

}  // namespace haiprof::sampler

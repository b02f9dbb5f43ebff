#include "drain/host_phases.h"

#include <algorithm>
#include <utility>

#include "drain/step_part_rows.h"
#include "nesting/nesting.h"

namespace haiprof::drain {

void HostPhases::add(const ring::RecordView& record, const ring::SpanPayload& span,
                     std::int64_t start, std::int64_t end) {
  if (span.category != static_cast<std::uint16_t>(ring::Category::phase) || end <= start) return;
  // What came before it on its lane may have been overwritten.
  if (resumed_ && lanes_.insert(record.lane).second && record.number > 0) {
    since_ = std::max(since_, end);
  }
  const auto text = record.text(span.name);
  phases_.push_back({start, end, text ? ring::kInline : span.name, std::string(text.value_or(""))});
  sorted_ = false;
  newest_end_ = std::max(newest_end_.value_or(end), end);
}

std::vector<HostPhases::Piece> HostPhases::within(std::int64_t low, std::int64_t high,
                                                  const std::vector<std::string>& strings) {
  if (!sorted_) {
    std::stable_sort(phases_.begin(), phases_.end(), [](const Phase& a, const Phase& b) {
      return a.start != b.start ? a.start < b.start : a.end > b.end;
    });
    sorted_ = true;
  }
  std::vector<std::int64_t> begun;
  std::vector<nesting::Piece> whole;
  std::vector<std::size_t> of;
  for (std::size_t i = 0; i < phases_.size() && phases_[i].start < high; ++i) {
    const Phase& phase = phases_[i];
    if (phase.end <= low) continue;
    whole.push_back({phase.start, phase.end, static_cast<std::int32_t>(begun.size())});
    begun.push_back(phase.start);
    of.push_back(i);
  }
  const std::vector<std::int64_t> from{low}, until{high};
  std::vector<Piece> found;
  for (const nesting::Piece& piece : nesting::share_out(std::move(whole), begun, {from, until})) {
    const Phase& phase = phases_[of[static_cast<std::size_t>(piece.row)]];
    found.push_back({piece.start, piece.end, text_in(strings, phase.name, phase.text)});
  }
  return found;
}

void HostPhases::forget_until(std::int64_t time) {
  std::erase_if(phases_, [&](const Phase& each) { return each.end <= time; });
}

void HostPhases::keep_at_most(std::size_t most) {
  if (phases_.size() <= most) return;
  const auto half = phases_.begin() + static_cast<std::ptrdiff_t>(phases_.size() / 2);
  std::nth_element(phases_.begin(), half, phases_.end(),
                   [](const Phase& a, const Phase& b) { return a.end < b.end; });
  since_ = std::max(since_, half->end);
  phases_.erase(phases_.begin(), half);
  sorted_ = false;
}

}  // namespace haiprof::drain

#include "sampler/rows.h"

namespace haiprof::sampler {

std::uint32_t Dictionary::index_of(std::string_view text) {
  const auto found = indices_.find(text);
  if (found != indices_.end()) return found->second;
  const auto index = static_cast<std::uint32_t>(texts_.size());
  const std::string& kept = texts_.emplace_back(text);
  indices_.emplace(kept, index);
  return index;
}

void Dictionary::renew() {
  indices_.clear();
  texts_.clear();
  ++renewed_;
}

void Rows::add(std::int64_t time_ns, const Value& value, std::string_view label) {
  push_instance(value.instance, label);
  time_.push_back(time_ns);
  metric_.push_back(metrics_.index_of(*value.metric));
  value_.push_back(value.value);
  flags_.push_back(value.flags);
}

void Rows::push_instance(const std::string* instance, std::string_view label) {
  const std::size_t row = instance_.size();
  if (row % 8 == 0) instance_bits_.push_back(0);
  if (instance == nullptr && label.empty()) {
    ++without_instance_;
    instance_.push_back(0);
    return;
  }
  std::string text(label);
  if (instance != nullptr) {
    if (!label.empty()) text += ' ';
    text += *instance;
  }
  instance_bits_.back() |= static_cast<std::uint8_t>(1U << (row % 8));
  instance_.push_back(instances_.index_of(text));
}

std::string_view Rows::last_instance() const noexcept {
  if (instance_.empty()) return {};
  const std::size_t row = instance_.size() - 1;
  if ((instance_bits_.back() >> (row % 8) & 1) == 0) return {};
  return instances_.texts()[instance_.back()];
}

void Rows::clear() {
  time_.clear();
  metric_.clear();
  instance_.clear();
  instance_bits_.clear();
  without_instance_ = 0;
  value_.clear();
  flags_.clear();
  if (metrics_.is_large()) metrics_.renew();
  if (instances_.is_large()) instances_.renew();
}

}  // namespace haiprof::sampler

// Samples on their way to a table: those of one target as columns, ready for Arrow.
//
// A text column has its own dictionary indices: only the texts that it uses, in the order of
// first use, so that a dictionary grows at its end. It begins anew, between two batches, once it is
// large. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sampler/series.h"

namespace haiprof::sampler {

class Dictionary {
 public:
  std::uint32_t index_of(std::string_view text);
  const std::deque<std::string>& texts() const noexcept { return texts_; }
  // How often it has begun anew.
  std::uint64_t renewed() const noexcept { return renewed_; }
  bool is_large() const noexcept { return texts_.size() >= kMostTexts; }
  void renew();

 private:
  static constexpr std::size_t kMostTexts = 1 << 13;

  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, std::uint32_t> indices_;
  std::uint64_t renewed_ = 0;
};

class Rows {
 public:
  // label: what the instances of these samples begin with; empty: nothing.
  void add(std::int64_t time_ns, const Value& value, std::string_view label = {});

  // Of the row that was added last; without data: it has none.
  std::string_view last_instance() const noexcept;

  // Forgets the rows, and texts once they are many.
  void clear();

  std::size_t size() const noexcept { return time_.size(); }
  const std::vector<std::int64_t>& time() const noexcept { return time_; }
  const std::vector<std::uint32_t>& metric() const noexcept { return metric_; }
  const std::vector<std::uint32_t>& instance() const noexcept { return instance_; }
  // Validity of instances as Arrow has it: one bit a row, least significant first.
  const std::vector<std::uint8_t>& instance_bits() const noexcept { return instance_bits_; }
  std::size_t without_instance() const noexcept { return without_instance_; }
  const std::vector<double>& value() const noexcept { return value_; }
  const std::vector<std::uint32_t>& flags() const noexcept { return flags_; }

  const Dictionary& metrics() const noexcept { return metrics_; }
  const Dictionary& instances() const noexcept { return instances_; }

 private:
  void push_instance(const std::string* instance, std::string_view label);

  std::vector<std::int64_t> time_;
  std::vector<std::uint32_t> metric_, instance_;
  std::vector<std::uint8_t> instance_bits_;
  std::size_t without_instance_ = 0;
  std::vector<double> value_;
  std::vector<std::uint32_t> flags_;
  Dictionary metrics_, instances_;
};

}  // namespace haiprof::sampler

// Samples summed up by the minute: what stays of a metric however long a run lasts.
//
// A minute of a series is over with its next sample in a later one, or two minutes later. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "sampler/rows.h"

namespace haiprof::sampler {

class Minutes {
 public:
  // instance: with no data, none. What is no number, or more than the hardware can do, is left out.
  void add(std::int64_t time_ns, std::string_view metric, std::string_view instance, double value,
           std::uint32_t flags);

  // Writes the rows of minutes that are not over: nothing more will come.
  void end();

  // Forgets the rows, and texts once they are many.
  void clear();

  std::size_t size() const noexcept { return time_.size(); }
  // When the minute began.
  const std::vector<std::int64_t>& time() const noexcept { return time_; }
  const std::vector<std::uint32_t>& metric() const noexcept { return metric_; }
  const std::vector<std::uint32_t>& instance() const noexcept { return instance_; }
  // Validity of instances as Arrow has it: one bit a row, least significant first.
  const std::vector<std::uint8_t>& instance_bits() const noexcept { return instance_bits_; }
  std::size_t without_instance() const noexcept { return without_instance_; }
  const std::vector<std::uint32_t>& count() const noexcept { return count_; }
  const std::vector<double>& least() const noexcept { return least_; }
  const std::vector<double>& mean() const noexcept { return mean_; }
  const std::vector<double>& greatest() const noexcept { return greatest_; }
  const std::vector<std::uint32_t>& flags() const noexcept { return flags_; }

  const Dictionary& metrics() const noexcept { return metrics_; }
  const Dictionary& instances() const noexcept { return instances_; }

 private:
  // Indices of metric and instance.
  using Key = std::pair<std::uint32_t, std::uint32_t>;
  struct Minute {
    std::int64_t begin;
    std::uint32_t count;
    std::uint32_t flags;
    double sum, least, greatest;
  };
  static constexpr std::uint32_t kNoInstance = 0xFFFFFFFFU;

  void write(const Key& key, const Minute& minute);
  void end_before(std::int64_t begin);
  void renew();

  std::vector<std::int64_t> time_;
  std::vector<std::uint32_t> metric_, instance_;
  std::vector<std::uint8_t> instance_bits_;
  std::size_t without_instance_ = 0;
  std::vector<std::uint32_t> count_, flags_;
  std::vector<double> least_, mean_, greatest_;
  Dictionary metrics_, instances_;

  std::map<Key, Minute> open_;
  std::int64_t newest_ = 0;
};

}  // namespace haiprof::sampler

// Copies a text that may go away while it is read: a fatal error ends CUPTI, whenever it comes, and
// the names of kernels with it. Whoever reads them by pointer then ends the job.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace haiprof::gpu {

// Not thread-safe. Allocates nothing.
class TextCopy {
 public:
  // The text at an address, cut at kLongest bytes; none where there is no memory any more. It is
  // valid until the next call.
  std::optional<std::string_view> at(const char* text) noexcept;

  static constexpr std::size_t kLongest = 16 * 1024;

 private:
  std::array<char, kLongest> copy_;
};

}  // namespace haiprof::gpu

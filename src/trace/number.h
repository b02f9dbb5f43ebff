// Numbers from decimal text, exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace haiprof::trace {

enum class Number : std::uint8_t { exact, rounded, too_large, none };

// The value times 10^decimals, rounded to the nearest (halves away from zero).
struct Decimal {
  Number how = Number::none;
  bool negative = false;
  std::uint64_t magnitude = 0;
};

Decimal decimal(std::string_view text, int decimals) noexcept;

// The same of what nearly all numbers of a trace are: exact, without a sign or an exponent, and so
// few digits that none can find no room. False: it may be another.
bool short_decimal(std::string_view text, int decimals, std::uint64_t& magnitude) noexcept;

// 0x and up to 16 hexadecimal digits.
std::optional<std::uint64_t> hexadecimal(std::string_view text) noexcept;

// Nothing when the text is not a number or is beyond a double.
std::optional<double> real(std::string_view text) noexcept;

// Whether the text stands for an unknown number: null, N/A, NaN, Infinity, ….
bool says_nothing(std::string_view text) noexcept;

}  // namespace haiprof::trace

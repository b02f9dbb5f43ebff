// One pass over the digits; powers of ten come from a table.
#include "trace/number.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace haiprof::trace {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kSafe = kMost / 10;  // can take any digit but a last one above
constexpr std::uint64_t kLastFigure = kMost % 10;
constexpr int kDigits = 19;    // the largest power of ten in 64 bits
constexpr int kFar = 100'000;  // an exponent that is as good as endless

constexpr std::array<std::uint64_t, kDigits + 1> kPowers = [] {
  std::array<std::uint64_t, kDigits + 1> powers{};
  std::uint64_t power = 1;
  for (std::uint64_t& p : powers) {
    p = power;
    power *= 10;
  }
  return powers;
}();

bool digit(char c) noexcept { return c >= '0' && c <= '9'; }

}  // namespace

bool short_decimal(std::string_view text, int decimals, std::uint64_t& magnitude) noexcept {
  constexpr std::size_t kShort = 18;
  if (text.size() > kShort) return false;
  const char* p = text.data();
  const char* const end = p + text.size();
  std::uint64_t value = 0;
  for (; p != end && digit(*p); ++p) value = value * 10 + static_cast<std::uint64_t>(*p - '0');
  if (p == text.data()) return false;
  int scale = decimals;
  if (p != end && *p == '.') {
    for (++p; p != end && digit(*p) && scale > 0; ++p, --scale) {
      value = value * 10 + static_cast<std::uint64_t>(*p - '0');
    }
  }
  if (p != end || value > kMost / kPowers[scale]) return false;
  magnitude = value * kPowers[scale];
  return true;
}

Decimal decimal(std::string_view text, int decimals) noexcept {
  const char* p = text.data();
  const char* const end = p + text.size();
  Decimal number;
  if (p != end && (*p == '-' || *p == '+')) number.negative = *p++ == '-';

  std::uint64_t value = 0;
  int beyond = -1;    // the first digit that found no room
  bool rest = false;  // another one that is not 0
  bool any = false;
  int exponent = decimals;
  const auto take = [&](char c) noexcept {
    any = true;
    const auto figure = static_cast<std::uint64_t>(c - '0');
    if (beyond < 0 && (value < kSafe || (value == kSafe && figure <= kLastFigure))) {
      value = value * 10 + figure;
      return true;
    }
    if (beyond < 0) {
      beyond = static_cast<int>(figure);
    } else if (figure != 0) {
      rest = true;
    }
    return false;
  };
  for (; p != end && digit(*p); ++p) {
    if (!take(*p)) exponent = std::min(exponent + 1, kFar);
  }
  if (p != end && *p == '.') {
    for (++p; p != end && digit(*p); ++p) {
      if (take(*p)) exponent = std::max(exponent - 1, -kFar);
    }
  }
  if (!any) return {};
  if (p != end && (*p == 'e' || *p == 'E')) {
    ++p;
    bool down = false;
    if (p != end && (*p == '-' || *p == '+')) down = *p++ == '-';
    if (p == end) return {};
    int written = 0;
    for (; p != end && digit(*p); ++p) written = std::min(written * 10 + (*p - '0'), kFar);
    exponent += down ? -written : written;
  }
  if (p != end) return {};

  number.how = beyond > 0 || rest ? Number::rounded : Number::exact;
  if (value == 0) return number;
  if (exponent > 0 ? beyond >= 0 || exponent > kDigits || value > kMost / kPowers[exponent]
                   : exponent == 0 && beyond >= 5 && value == kMost) {
    number.how = Number::too_large;
    return number;
  }
  if (exponent >= 0) {
    number.magnitude = value * kPowers[exponent] + (beyond >= 5 ? 1 : 0);
    return number;
  }
  if (exponent < -kDigits) {
    number.how = Number::rounded;
    return number;
  }
  const std::uint64_t unit = kPowers[-exponent];
  number.magnitude = value / unit;
  const std::uint64_t over = value % unit;
  if (over != 0) number.how = Number::rounded;
  if (over >= unit - over) ++number.magnitude;
  return number;
}

std::optional<std::uint64_t> hexadecimal(std::string_view text) noexcept {
  if (text.size() < 3 || text[0] != '0' || (text[1] != 'x' && text[1] != 'X')) return {};
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + 2, end, value, 16);
  if (error != std::errc{} || at != end) return {};
  return value;
}

std::optional<double> real(std::string_view text) noexcept {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || at != end || !std::isfinite(value)) return {};
  return value;
}

bool says_nothing(std::string_view text) noexcept {
  static constexpr std::array<std::string_view, 11> kWords = {
      "null", "N/A", "NaN", "nan", "-nan", "Infinity", "-Infinity", "inf", "-inf", "None", "-NaN"};
  return std::find(kWords.begin(), kWords.end(), text) != kWords.end();
}

}  // namespace haiprof::trace

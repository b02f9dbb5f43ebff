// Decimal text becomes exact numbers.
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "check.h"
#include "trace/number.h"

using haiprof::trace::Decimal;
using haiprof::trace::decimal;
using haiprof::trace::hexadecimal;
using haiprof::trace::Number;
using haiprof::trace::real;
using haiprof::trace::says_nothing;
using haiprof::trace::short_decimal;

namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

void is(std::string_view text, int decimals, Number how, std::uint64_t magnitude) {
  const Decimal read = decimal(text, decimals);
  CHECK_EQUAL(static_cast<int>(read.how), static_cast<int>(how));
  CHECK_EQUAL(read.magnitude, magnitude);
}

void digits_beyond_64_bits_are_rounded_or_too_large() {
  is("18446744073709551615", 0, Number::exact, kMost);
  is("18446744073709551616", 0, Number::too_large, 0);
  is("18446744073709551615.4", 0, Number::rounded, kMost);
  is("18446744073709551615.5", 0, Number::too_large, 0);
  is("1844674407370955161500e-2", 0, Number::exact, kMost);
  is("1844674407370955161500.00000", 0, Number::too_large, 0);
  is("1000000000000000.0005", 3, Number::rounded, 1000000000000000001);
  is("1000000000000000.00049999999999", 3, Number::rounded, 1000000000000000000);
  is("0.00000000000000000000000000000000012e33", 2, Number::exact, 12);
}

void exponents_move_the_point() {
  is("1e19", 0, Number::exact, 10000000000000000000U);
  is("2e19", 0, Number::too_large, 0);
  is("1E+3", 3, Number::exact, 1000000);
  is("12345e-3", 0, Number::rounded, 12);
  is("12500e-3", 0, Number::rounded, 13);
  is("5e-20", 0, Number::rounded, 0);
  is("18446744073709551615e-20", 0, Number::rounded, 0);
  is("1e999999999999999999999", 0, Number::too_large, 0);
  is("1e-999999999999999999999", 0, Number::rounded, 0);
  is("0e999999999999999999999", 0, Number::exact, 0);
}

void what_is_no_number_is_none() {
  for (const std::string_view text : {"", "-", ".", "e5", "1e", "1e+", "1x", " 1", "1 ", "0x10"}) {
    is(text, 0, Number::none, 0);
  }
  CHECK(decimal("-5", 0).negative);
  CHECK(!real("").has_value());
  CHECK(!real("nan").has_value());
  CHECK(!real("INF").has_value());
  CHECK(!real("+-5").has_value());
  CHECK(!real("1e999").has_value());
  CHECK_EQUAL(real("+1.5").value_or(0), 1.5);
  CHECK(!hexadecimal("0x").has_value());
  CHECK(!hexadecimal("0x10000000000000000").has_value());
  CHECK_EQUAL(hexadecimal("0xffffffffffffffff").value_or(0), kMost);
  CHECK(says_nothing("N/A"));
  CHECK(!says_nothing(""));
}

// Says whether it was taken for a short one, which must not make a difference.
bool is_short(std::string_view text, int decimals) {
  std::uint64_t magnitude = 0;
  if (!short_decimal(text, decimals, magnitude)) return false;
  const Decimal read = decimal(text, decimals);
  CHECK_EQUAL(static_cast<int>(read.how), static_cast<int>(Number::exact));
  CHECK(!read.negative);
  CHECK_EQUAL(magnitude, read.magnitude);
  return true;
}

void short_decimals_are_the_same_numbers() {
  constexpr std::string_view kCharacters = "019.-+e ";
  std::string text;
  const auto all = [&](const auto& self, int left) -> void {
    for (const int decimals : {0, 3}) is_short(text, decimals);
    if (left == 0) return;
    for (const char c : kCharacters) {
      text.push_back(c);
      self(self, left - 1);
      text.pop_back();
    }
  };
  all(all, 5);
  for (const std::string_view digits :
       {"999999999999999999", "123456789012345678", "18446744073709551615"}) {
    for (std::size_t bytes = 1; bytes <= digits.size(); ++bytes) {
      for (std::size_t point = 0; point <= bytes; ++point) {
        text = digits.substr(0, bytes);
        if (point < bytes) text.insert(point, ".");
        for (const int decimals : {0, 3, 19}) is_short(text, decimals);
      }
    }
  }
  CHECK(is_short("0", 3));
  CHECK(is_short("12345678901234567", 0));
  CHECK(is_short("1669783687464252", 3));
  CHECK(is_short("1669783687464.123", 3));
  CHECK(!is_short("166978368746425212", 3));  // 64 bits have no room for it
  CHECK(!is_short("1234567890123456789", 0));
  CHECK(!is_short("1.2345", 3));
}

}  // namespace

int main() {
  short_decimals_are_the_same_numbers();
  digits_beyond_64_bits_are_rounded_or_too_large();
  exponents_move_the_point();
  what_is_no_number_is_none();
  return haiprof::test::result();
}

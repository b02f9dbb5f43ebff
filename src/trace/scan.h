// Finds where the values of JSON text begin and end; nothing is decoded or stored.
//
// The text comes in pieces, so each function may find that it ends too early. What stands between
// brackets is only counted in and out of; text.h checks it more closely when it is kept.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace haiprof::trace {

// Values nested deeper than this are not kept.
inline constexpr int kDeepest = 64;

enum class Scan : std::uint8_t { whole, more, bad };

enum class Type : std::uint8_t { string, number, word, object, array };

// A value where it stands. Of a string, what is between the quotes.
struct Token {
  const char* begin = nullptr;
  const char* end = nullptr;
  Type type = Type::word;
  bool plain = false;  // of a string: ASCII without a backslash
  bool deep = false;   // nested deeper than kDeepest
};

namespace scan {

enum class Class : std::uint8_t { other, blank, quote, open, close, comma, colon };

inline constexpr std::array<Class, 256> kClasses = [] {
  std::array<Class, 256> classes{};
  for (const unsigned char c : {' ', '\n', '\r', '\t'}) classes[c] = Class::blank;
  for (const unsigned char c : {'[', '{'}) classes[c] = Class::open;
  for (const unsigned char c : {']', '}'}) classes[c] = Class::close;
  classes['"'] = Class::quote;
  classes[','] = Class::comma;
  classes[':'] = Class::colon;
  return classes;
}();

inline Class class_of(char c) noexcept { return kClasses[static_cast<unsigned char>(c)]; }

inline const char* blanks(const char* p, const char* end) noexcept {
  // Most often there is none, which takes no look at the table.
  while (p != end && static_cast<unsigned char>(*p) <= ' ' && class_of(*p) == Class::blank) ++p;
  return p;
}

// From behind the opening quote to behind the closing one.
inline Scan string(const char*& p, const char* end, Token& token) noexcept {
  token = {p, nullptr, Type::string, true, false};
#ifdef __SSE2__
  const __m128i quotes = _mm_set1_epi8('"');
  const __m128i backslashes = _mm_set1_epi8('\\');
  while (end - p >= 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const auto stops = static_cast<unsigned>(_mm_movemask_epi8(
        _mm_or_si128(_mm_cmpeq_epi8(bytes, quotes), _mm_cmpeq_epi8(bytes, backslashes))));
    const auto high = static_cast<unsigned>(_mm_movemask_epi8(bytes));
    if (stops == 0) {
      if (high != 0) token.plain = false;
      p += 16;
      continue;
    }
    const int at = std::countr_zero(stops);
    if ((high & ((1U << at) - 1)) != 0) token.plain = false;
    p += at;
    if (*p == '"') {
      token.end = p++;
      return Scan::whole;
    }
    token.plain = false;
    if (end - p < 2) return Scan::more;
    p += 2;
  }
#endif
  while (p != end) {
    const char c = *p;
    if (c == '"') {
      token.end = p++;
      return Scan::whole;
    }
    if (c == '\\') {
      token.plain = false;
      if (end - p < 2) return Scan::more;
      p += 2;
      continue;
    }
    if (static_cast<unsigned char>(c) >= 0x80) token.plain = false;
    ++p;
  }
  return Scan::more;
}

// From a bracket to behind the one that closes it.
inline Scan nested(const char*& p, const char* end, Token& token) noexcept {
  token = {p, nullptr, *p == '{' ? Type::object : Type::array, false, false};
  std::int64_t depth = 0;
  while (p != end) {
    switch (class_of(*p++)) {
      case Class::open:
        if (++depth > kDeepest) token.deep = true;
        break;
      case Class::close:
        if (--depth == 0) {
          token.end = p;
          return Scan::whole;
        }
        break;
      case Class::quote: {
        Token inner;
        if (string(p, end, inner) != Scan::whole) return Scan::more;
        break;
      }
      default:
        break;
    }
  }
  return Scan::more;
}

// A number, or a bare word: true, null, but also the N/A and NaN that some versions write.
inline Scan bare(const char*& p, const char* end, Token& token) noexcept {
  token = {p, nullptr, Type::word, false, false};
  while (p != end && class_of(*p) == Class::other) ++p;
  if (p == end) return Scan::more;
  if (p == token.begin) return Scan::bad;
  token.end = p;
  const char first = *token.begin;
  const char second = token.end - token.begin > 1 ? token.begin[1] : '\0';
  const bool digits = first >= '0' && first <= '9';
  const bool sign = (first == '-' || first == '+') && second >= '0' && second <= '9';
  if (digits || sign) token.type = Type::number;
  return Scan::whole;
}

inline Scan value(const char*& p, const char* end, Token& token) noexcept {
  if (p == end) return Scan::more;
  switch (class_of(*p)) {
    case Class::quote:
      ++p;
      return string(p, end, token);
    case Class::open:
      return nested(p, end, token);
    case Class::other:
      return bare(p, end, token);
    default:
      return Scan::bad;
  }
}

}  // namespace scan
}  // namespace haiprof::trace

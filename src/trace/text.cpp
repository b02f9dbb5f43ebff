// Decoding replaces as Python's "replace" does: each longest part that could begin a character.
#include "trace/text.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "trace/number.h"
#include "trace/scan.h"

namespace haiprof::trace {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

unsigned byte_at(const char* p) noexcept { return static_cast<unsigned char>(*p); }

bool continues(const char* p, unsigned low = 0x80, unsigned high = 0xBF) noexcept {
  return byte_at(p) >= low && byte_at(p) <= high;
}

// Takes one character that is not ASCII; false when it is malformed.
bool character(const char*& p, const char* end, std::string& out) {
  const char* const begin = p;
  const unsigned lead = byte_at(p++);
  int more = 0;
  unsigned low = 0x80;
  unsigned high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    more = 1;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    more = 2;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    more = 3;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  bool good = more > 0;
  for (int i = 0; good && i < more; ++i) {
    good = p != end && (i == 0 ? continues(p, low, high) : continues(p));
    if (good) ++p;
  }
  if (good) {
    out.append(begin, p);
  } else {
    out.append(kReplacement);
  }
  return good;
}

void put(std::uint32_t code, std::string& out) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (code >> 6)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (code >> 12)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | (code >> 18)));
    out.push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

// The four digits of \uXXXX at p, or -1.
int unit_at(const char* p, const char* end) noexcept {
  if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return -1;
  int value = 0;
  for (int i = 2; i < 6; ++i) {
    const char c = p[i];
    int digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else if (c >= 'A' && c <= 'F') {
      digit = c - 'A' + 10;
    } else {
      return -1;
    }
    value = value * 16 + digit;
  }
  return value;
}

// Takes \uXXXX, or two of them where they are one character.
bool unicode_escape(const char*& p, const char* end, std::string& out) {
  const int unit = unit_at(p, end);
  if (unit < 0) {
    out.push_back(*p++);
    return false;
  }
  p += 6;
  if (unit < 0xD800 || unit > 0xDFFF) {
    put(static_cast<std::uint32_t>(unit), out);
    return true;
  }
  const int second = unit < 0xDC00 ? unit_at(p, end) : -1;
  if (second < 0xDC00 || second > 0xDFFF) {
    out.append(kReplacement);
    return false;
  }
  p += 6;
  put(0x10000 + (static_cast<std::uint32_t>(unit - 0xD800) << 10) +
          static_cast<std::uint32_t>(second - 0xDC00),
      out);
  return true;
}

char short_escape(char c) noexcept {
  switch (c) {
    case '"':
    case '\\':
    case '/':
      return c;
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return '\0';
  }
}

// Appends a string as it stands, but such that it is valid JSON.
void copy_string(const Token& token, std::string& out) {
  const char* p = token.begin;
  while (p != token.end) {
    const char c = *p;
    if (static_cast<unsigned char>(c) >= 0x80) {
      character(p, token.end, out);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr std::string_view kHex = "0123456789abcdef";
      out.append("\\u00");
      out.push_back(kHex[byte_at(p) >> 4]);
      out.push_back(kHex[byte_at(p) & 15]);
      ++p;
    } else if (c != '\\') {
      out.push_back(c);
      ++p;
    } else if (token.end - p >= 2 && short_escape(p[1]) != '\0') {
      out.append(p, 2);
      p += 2;
    } else if (unit_at(p, token.end) >= 0) {
      out.append(p, 6);
      p += 6;
    } else {
      out.append("\\\\");
      ++p;
    }
  }
}

// Whether text is a number in JSON's own grammar.
bool json_number(std::string_view text) noexcept {
  const char* p = text.data();
  const char* const end = p + text.size();
  const auto digits = [&]() noexcept {
    const char* const begin = p;
    while (p != end && *p >= '0' && *p <= '9') ++p;
    return p - begin;
  };
  if (p != end && *p == '-') ++p;
  const bool zero = p != end && *p == '0';
  const auto whole = digits();
  if (whole == 0 || (zero && whole > 1)) return false;
  if (p != end && *p == '.') {
    ++p;
    if (digits() == 0) return false;
  }
  if (p != end && (*p == 'e' || *p == 'E')) {
    ++p;
    if (p != end && (*p == '-' || *p == '+')) ++p;
    if (digits() == 0) return false;
  }
  return p == end;
}

bool put_bare(std::string_view text, std::string& out) {
  if (text == "true" || text == "false" || json_number(text)) {
    out.append(text);
    return true;
  }
  out.append("null");
  return says_nothing(text);
}

// The tokens that may come next in a value.
enum class Want : std::uint8_t { value, first_value, key, first_key, colon, more, end };

bool compact_onto(std::string_view raw, std::string& out) {
  const char* p = raw.data();
  const char* const end = p + raw.size();
  std::array<char, kDeepest> open{};
  int depth = 0;
  Want want = Want::value;
  const auto after_value = [&]() noexcept { return depth == 0 ? Want::end : Want::more; };
  while ((p = scan::blanks(p, end)) != end) {
    const char c = *p;
    switch (scan::class_of(c)) {
      case scan::Class::open:
        if ((want != Want::value && want != Want::first_value) || depth == kDeepest) return false;
        open[static_cast<std::size_t>(depth++)] = c;
        out.push_back(c);
        want = c == '{' ? Want::first_key : Want::first_value;
        ++p;
        break;
      case scan::Class::close: {
        if (depth == 0) return false;
        const bool object = open[static_cast<std::size_t>(depth - 1)] == '{';
        const bool empty = want == (object ? Want::first_key : Want::first_value);
        if ((c == '}') != object || (!empty && want != Want::more)) return false;
        --depth;
        out.push_back(c);
        want = after_value();
        ++p;
        break;
      }
      case scan::Class::quote: {
        const bool key = want == Want::key || want == Want::first_key;
        if (!key && want != Want::value && want != Want::first_value) return false;
        Token token;
        ++p;
        if (scan::string(p, end, token) != Scan::whole) return false;
        out.push_back('"');
        copy_string(token, out);
        out.push_back('"');
        want = key ? Want::colon : after_value();
        break;
      }
      case scan::Class::comma:
        if (want != Want::more) return false;
        out.push_back(c);
        want = open[static_cast<std::size_t>(depth - 1)] == '{' ? Want::key : Want::value;
        ++p;
        break;
      case scan::Class::colon:
        if (want != Want::colon) return false;
        out.push_back(c);
        want = Want::value;
        ++p;
        break;
      case scan::Class::other: {
        if (want != Want::value && want != Want::first_value) return false;
        const char* const begin = p;
        while (p != end && scan::class_of(*p) == scan::Class::other) ++p;
        if (!put_bare({begin, static_cast<std::size_t>(p - begin)}, out)) return false;
        want = after_value();
        break;
      }
      case scan::Class::blank:
        break;
    }
  }
  return want == Want::end;
}

}  // namespace

bool decode(std::string_view raw, std::string& out) {
  const char* p = raw.data();
  const char* const end = p + raw.size();
  bool good = true;
  while (p != end) {
    const char c = *p;
    if (static_cast<unsigned char>(c) >= 0x80) {
      good &= character(p, end, out);
    } else if (c != '\\') {
      out.push_back(c);
      ++p;
    } else if (end - p >= 2 && p[1] == 'u') {
      good &= unicode_escape(p, end, out);
    } else if (const char meant = end - p >= 2 ? short_escape(p[1]) : '\0'; meant != '\0') {
      out.push_back(meant);
      p += 2;
    } else {
      // Paths of Windows, written as they are.
      out.push_back(c);
      ++p;
      good = false;
    }
  }
  return good;
}

bool compact(std::string_view raw, std::string& out) {
  const std::size_t before = out.size();
  if (compact_onto(raw, out)) return true;
  out.resize(before);
  return false;
}

}  // namespace haiprof::trace

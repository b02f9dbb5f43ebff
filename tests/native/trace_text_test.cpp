// What JSON strings say, values as JSON text, and texts by number.
#include <string>
#include <string_view>

#include "check.h"
#include "trace/strings.h"
#include "trace/text.h"

using haiprof::trace::compact;
using haiprof::trace::decode;
using haiprof::trace::Strings;

namespace {

void says(std::string_view raw, std::string_view meant, bool good = true) {
  std::string decoded;
  CHECK_EQUAL(decode(raw, decoded), good);
  CHECK_EQUAL(decoded, meant);
}

void becomes(std::string_view raw, std::string_view text) {
  std::string compacted = "kept";
  CHECK(compact(raw, compacted));
  CHECK_EQUAL(compacted, "kept" + std::string(text));
}

void is_refused(std::string_view raw) {
  std::string compacted = "kept";
  CHECK(!compact(raw, compacted));
  CHECK_EQUAL(compacted, "kept");
}

void strings_are_decoded() {
  says(R"(a\"\\\/\b\f\n\r\t)", "a\"\\/\b\f\n\r\t");
  says(R"(\u0041\u00e9\u20ac)", "A\xC3\xA9\xE2\x82\xAC");
  says(R"(\ud83d\uDE00)", "\xF0\x9F\x98\x80");
}

void what_is_no_character_is_replaced() {
  says(R"(\ud83dx)", "\xEF\xBF\xBDx", false);
  says(R"(\ude00)", "\xEF\xBF\xBD", false);
  says(R"(\ud83d\ud83d\ude00)", "\xEF\xBF\xBD\xF0\x9F\x98\x80", false);
  says("\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD", false);
  says("\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", false);
  says("\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", false);
  says("\xE2\x82", "\xEF\xBF\xBD", false);
  says("\xF0\x9F\x98x", "\xEF\xBF\xBDx", false);
}

void a_backslash_that_escapes_nothing_stays() {
  says(R"(C:\Users)", R"(C:\Users)", false);
  says(R"(\u12)", R"(\u12)", false);
  says(R"(\u12g4)", R"(\u12g4)", false);
  says("\\", "\\", false);
}

void values_lose_their_blanks_only() {
  becomes(R"( [ 1 , [ ] , { "a b" : "c d" , "e":-1.5e+3 } ] )",
          R"([1,[],{"a b":"c d","e":-1.5e+3}])");
  becomes("{}", "{}");
  becomes("[N/A,NaN, -Infinity,true,false,null]", "[null,null,null,true,false,null]");
  becomes("\"a\nb\x01\xFF\\q\"", "\"a\\u000ab\\u0001\xEF\xBF\xBD\\\\q\"");
}

void what_is_no_value_is_refused() {
  for (const std::string_view raw :
       {"",         "[",          "]",       "[1 2]", "[1,]", "{1:2}", "{\"a\"}",
        "{\"a\":}", "{\"a\":1,}", "[1}",     "1 2",   "[01]", "[1.]",  "[.5]",
        "[+1]",     "[1e]",       "[maybe]", "\"a",   ":",    ",",     "[,1]"}) {
    is_refused(raw);
  }
  std::string deep(64, '[');
  deep.append(64, ']');
  becomes(deep, deep);
  is_refused("[" + deep + "]");
}

void each_text_has_one_number() {
  Strings strings;
  constexpr std::uint32_t kMany = 50000;
  const std::string long_one(600000, 'x');
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < kMany; ++i) {
      // Of many lengths, and different only in the middle.
      const std::string text = std::string(i % 40, 'a') + std::to_string(i) + "the end of it";
      if (strings.intern(text) != i) CHECK_EQUAL(strings.intern(text), i);
    }
    CHECK_EQUAL(strings.intern(long_one), kMany);
    CHECK_EQUAL(strings.intern(""), kMany + 1);
    CHECK_EQUAL(strings.size(), kMany + 2);
  }
  CHECK(strings[kMany] == long_one);
  CHECK_EQUAL(strings[7], std::string(7, 'a') + "7the end of it");
  CHECK_EQUAL(strings[kMany + 1], "");
}

}  // namespace

int main() {
  strings_are_decoded();
  what_is_no_character_is_replaced();
  a_backslash_that_escapes_nothing_stays();
  values_lose_their_blanks_only();
  what_is_no_value_is_refused();
  each_text_has_one_number();
  return haiprof::test::result();
}

// Turns events into rows: chooses the group of each and converts its values.
#include <bit>
#include <limits>

#include "trace/number.h"
#include "trace/parser.h"
#include "trace/text.h"

namespace haiprof::trace {
namespace {

constexpr std::uint64_t kCommunication = bit(Member::collective) | bit(Member::elements_in) |
                                         bit(Member::elements_out) | bit(Member::group);

std::string_view view_of(const Token& token) noexcept {
  return {token.begin, static_cast<std::size_t>(token.end - token.begin)};
}

std::string lower(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lowered;
}

// Numbers are written as strings, too.
bool maybe_number(const Token& token) noexcept {
  return token.type == Type::number || token.type == Type::string;
}

bool says_nothing(const Token& token) noexcept {
  return (token.type == Type::word || token.type == Type::string) &&
         haiprof::trace::says_nothing(view_of(token));
}

constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kAll = ~std::uint64_t{0};

}  // namespace

void Parser::take_event(const char* begin) {
  const Token& arguments = event_[Member::arguments];
  if (event_.has(Member::arguments) && arguments.type != Type::object && !says_nothing(arguments)) {
    complain("args", "is not an object", arguments.begin, arguments.end);
  }
  if (!event_.has(Member::phase)) {
    complain("ph", "is missing", begin, begin + 1);
    return;
  }
  const Token& phase = event_[Member::phase];
  switch (phase.type == Type::string && phase.end - phase.begin == 1 ? *phase.begin : '\0') {
    case 'X':
      take_activity(begin);
      return;
    case 'i':
    case 'I':
    case 'R': {
      const Token& name = event_[Member::name];
      const bool memory =
          event_.has(Member::name) && name.type == Type::string && view_of(name) == "[memory]";
      put_row(memory ? Group::allocations : Group::instants, kAll, begin);
      return;
    }
    case 's':
    case 't':
    case 'f': {
      constexpr std::size_t kSideColumn = 5;
      if (!put_row(Group::flows, kAll, begin)) return;
      const char side = *phase.begin;
      Rows& flows = rows(Group::flows);
      flows.set_last(kSideColumn, std::uint32_t{side == 's' ? 0U : side == 't' ? 1U : 2U});
      return;
    }
    case 'C':
      take_counter(begin);
      return;
    case 'M':
      put_row(Group::metadata, kAll, begin);
      return;
    default:
      complain("ph", "is not understood", phase.begin, phase.end);
  }
}

void Parser::take_activity(const char* begin) {
  const Route to = route();
  if (to.group == Group::none) return;
  const std::uint64_t unwanted = to.arguments ? 0 : bit(Member::arguments);
  if (!put_row(to.group, ~unwanted, begin)) return;
  if (!event_.has(Member::duration)) complain("dur", "is missing", begin, begin + 1);
  if ((event_.members() & kCommunication) == 0) return;
  Rows& collectives = rows(Group::collectives);
  collectives.set(0, std::uint32_t{to.group == Group::activities});
  collectives.set(1, static_cast<std::uint32_t>(rows(to.group).rows() - 1));
  put(collectives, kAll);
  collectives.end_row();
}

// A row for each argument.
void Parser::take_counter(const char* begin) {
  if (!event_.has(Member::arguments) || event_[Member::arguments].type != Type::object) {
    complain("args", "is missing", begin, begin + 1);
    return;
  }
  constexpr std::size_t kInstanceColumn = 5;
  constexpr Field kValue{"", Kind::real, Member::arguments};
  const Token arguments = event_[Member::arguments];
  const char* p = arguments.begin + 1;
  const char* const end = arguments.end;
  for (;;) {
    p = scan::blanks(p, end);
    if (*p == ',') p = scan::blanks(p + 1, end);
    if (*p == '}') return;
    ++p;
    Token key;
    Token value;
    scan::string(p, end, key);
    p = scan::blanks(scan::blanks(p, end) + 1, end);
    scan::value(p, end, value);
    const std::optional<double> number = real_of(kValue, value);
    if (!number) continue;
    if (!put_row(Group::counters, kAll, begin)) return;
    Rows& counters = rows(Group::counters);
    counters.set_last(kInstanceColumn, text_of({"", Kind::text, Member::arguments}, key));
    counters.set_last(kInstanceColumn + 1, *number);
  }
}

// Adds the event as a row, unless it has no valid time.
bool Parser::put_row(Group group, std::uint64_t members, const char* begin) {
  Rows& into = rows(group);
  if ((into.members() & bit(Member::time)) != 0) {
    if (!event_.has(Member::time)) {
      complain("ts", "is missing", begin, begin + 1);
      return false;
    }
    const std::size_t column = into.column_of(Member::time);
    std::int64_t time = 0;
    if (!whole_of(into.fields()[column], event_[Member::time], time)) return false;
    into.set(column, time);
  }
  if ((into.members() & bit(Member::name)) != 0 && !event_.has(Member::name)) {
    complain("name", "is missing", begin, begin + 1);
  }
  put(into, members & ~bit(Member::time));
  into.end_row();
  return true;
}

Route Parser::route() {
  std::uint32_t code = kNoText;
  if (event_.has(Member::category)) {
    code = text_of({"", Kind::text, Member::category}, event_[Member::category]);
  }
  for (const auto& [route_code, to] : known_routes_) {
    if (route_code == code) return to;
  }
  auto route = routes_.find(code == kNoText ? std::string() : lower(strings_[code]));
  if (route == routes_.end()) route = routes_.find("*");
  if (route == routes_.end()) {
    const Token& blamed = event_[event_.has(Member::category) ? Member::category : Member::phase];
    complain("cat", event_.has(Member::category) ? "is not known" : "is missing", blamed.begin,
             blamed.end);
    return {};
  }
  // Few in any sane file; in another they must not be searched one by one.
  constexpr std::size_t kMostKnown = 64;
  if (known_routes_.size() < kMostKnown) known_routes_.emplace_back(code, route->second);
  return route->second;
}

void Parser::put(Rows& rows, std::uint64_t members) {
  std::uint64_t left = event_.members() & rows.members() & members;
  for (; left != 0; left &= left - 1) {
    const auto member = static_cast<Member>(std::countr_zero(left));
    put_value(rows, rows.column_of(member), event_[member]);
  }
}

void Parser::put_value(Rows& rows, std::size_t column, const Token& token) {
  const Field& field = rows.fields()[column];
  std::int64_t whole = 0;
  switch (field.kind) {
    case Kind::text:
    case Kind::label:
    case Kind::json:
      if (const std::uint32_t code = text_of(field, token); code != kNoText) {
        rows.set(column, code);
      }
      return;
    case Kind::count:
      if (whole_of(field, token, whole)) rows.set(column, static_cast<std::uint32_t>(whole));
      return;
    case Kind::real:
      if (const auto number = real_of(field, token)) rows.set(column, *number);
      return;
    case Kind::dimensions:
      put_dimensions(rows, column, token);
      return;
    default:
      if (whole_of(field, token, whole)) rows.set(column, whole);
  }
}

void Parser::put_dimensions(Rows& rows, std::size_t column, const Token& token) {
  if (says_nothing(token)) return;
  const Field& field = rows.fields()[column];
  if (token.type != Type::array) {
    complain(name_of(field.member), "is not a list", token.begin, token.end);
    return;
  }
  const char* p = token.begin + 1;
  std::size_t count = 0;
  for (; count < 3; ++count) {
    p = scan::blanks(p, token.end);
    Token each;
    if (scan::value(p, token.end, each) != Scan::whole) break;
    std::int64_t whole = 0;
    if (whole_of(field, each, whole)) {
      rows.set(column + count, static_cast<std::uint32_t>(whole));
    }
    p = scan::blanks(p, token.end);
    if (*p == ',') ++p;
  }
  if (count != 3 || p + 1 != token.end) {
    complain(name_of(field.member), "is not a list of three numbers", token.begin, token.end);
  }
}

std::uint32_t Parser::text_of(const Field& field, const Token& token) {
  if (token.type == Type::string) {
    if (token.plain) return strings_.intern(view_of(token));
    scratch_.clear();
    if (!decode(view_of(token), scratch_)) {
      complain(name_of(field.member), "is not valid UTF-8 or JSON text", token.begin, token.end);
    }
    return strings_.intern(scratch_);
  }
  if (token.type == Type::number && field.kind == Kind::label) {
    return strings_.intern(view_of(token));
  }
  if (says_nothing(token)) {
    if (field.member == Member::name) complain("name", "is missing", token.begin, token.end);
    return kNoText;
  }
  if (field.kind != Kind::json) {
    complain(name_of(field.member), "is not a string", token.begin, token.end);
    return kNoText;
  }
  scratch_.clear();
  if (token.deep || !compact(view_of(token), scratch_)) {
    complain(name_of(field.member), token.deep ? "is nested too deep" : "is not JSON", token.begin,
             token.end);
    return kNoText;
  }
  return strings_.intern(scratch_);
}

bool Parser::whole_of(const Field& field, const Token& token, std::int64_t& whole) {
  const auto refuse = [&](std::string_view reason) {
    complain(name_of(field.member), reason, token.begin, token.end);
    return false;
  };
  const std::uint64_t most = field.kind == Kind::count      ? kNoText - 1
                             : field.kind == Kind::identity ? kAll
                                                            : kLargest;
  const bool time = field.kind == Kind::time || field.kind == Kind::length;
  constexpr int kDecimalsOfMicroseconds = 3;
  const int decimals = time ? kDecimalsOfMicroseconds : 0;
  std::uint64_t magnitude = 0;
  if (token.type == Type::number && short_decimal(view_of(token), decimals, magnitude) &&
      magnitude <= most) {
    whole = static_cast<std::int64_t>(magnitude);
    return true;
  }
  if (says_nothing(token)) return time ? refuse("is missing") : false;
  if (!maybe_number(token)) return refuse("is not a number");
  Decimal read = decimal(view_of(token), decimals);
  if (read.how == Number::none) {
    const auto bits = time ? std::nullopt : hexadecimal(view_of(token));
    if (!bits) return refuse("is not a number");
    read = {Number::exact, false, *bits};
  }
  if (read.how == Number::rounded && !time) return refuse("is not a whole number");
  // How CUPTI writes that it is about no stream: -1, without its sign.
  if (field.kind == Kind::count && read.magnitude == kNoText) return false;
  if (read.how == Number::too_large || read.magnitude > most) return refuse("is too large");
  whole = static_cast<std::int64_t>(read.magnitude);
  if (!read.negative || read.magnitude == 0) return true;
  if (field.kind == Kind::number || field.kind == Kind::time) {
    whole = -whole;
    return true;
  }
  // How an id that is not there is written.
  if (field.kind != Kind::length && read.magnitude == 1) return false;
  return refuse("is negative");
}

std::optional<double> Parser::real_of(const Field& field, const Token& token) {
  if (says_nothing(token)) return std::nullopt;
  const std::optional<double> number = maybe_number(token) ? real(view_of(token)) : std::nullopt;
  if (!number) complain(name_of(field.member), "is not a number", token.begin, token.end);
  return number;
}

}  // namespace haiprof::trace

// The file's frame: items, damage, and items split between pieces. rows.cpp makes the rows.
#include "trace/parser.h"

#include <algorithm>

#include "trace/text.h"

namespace haiprof::trace {
namespace {

constexpr std::size_t kLargestItem = std::size_t{16} << 20;
constexpr std::size_t kLargestHeader = std::size_t{16} << 20;
constexpr std::size_t kFirstTry = 4096;
constexpr std::string_view kFile = "file";
constexpr std::string_view kEvents = "traceEvents";

}  // namespace

Parser::Parser(Routes routes) : routes_(std::move(routes)) {
  for (std::size_t group = 0; group < kGroups; ++group) {
    rows_.emplace_back(static_cast<Group>(group));
  }
}

void Parser::feed(std::string_view piece) {
  if (finished()) return;
  std::size_t used = 0;
  while (!pending_.empty() && used < piece.size()) {
    // All of it would be copied; what the item can need is enough.
    const std::size_t before = pending_.size();
    const std::size_t more = std::min(std::max(before, kFirstTry), piece.size() - used);
    pending_.append(piece, used, more);
    used += more;
    if (pending_.size() < retry_bytes_) continue;
    const std::size_t taken = consume(pending_);
    base_ += taken;
    if (taken >= before) {
      used -= pending_.size() - taken;
      pending_.clear();
    } else {
      pending_.erase(0, taken);
      retry_bytes_ = pending_.size() * 2;
    }
  }
  if (used == piece.size()) return;
  piece.remove_prefix(used);
  const std::size_t taken = consume(piece);
  base_ += taken;
  pending_.assign(piece, taken);
  retry_bytes_ = pending_.size() * 2;
}

void Parser::finish() {
  if (finished()) return;
  if (!pending_.empty()) {
    base_ += consume(pending_);
  }
  if (state_ == State::begin) {
    problems_.add(kFile, "is empty", 0, "");
  } else if (state_ != State::end && state_ != State::lost) {
    truncated_ = base_;
  } else if (in_object_ && !saw_events_) {
    problems_.add(kEvents, "is missing", 0, "");
  }
  state_ = State::finished;
  pending_ = {};
}

std::size_t Parser::consume(std::string_view view) {
  view_ = view.data();
  const char* p = view.data();
  const char* const end = p + view.size();
  for (;;) {
    if (step(p, end) == Scan::more) {
      if (static_cast<std::size_t>(end - p) <= kLargestItem) break;
      give_up(p, end);
    }
    if (p == end) break;
  }
  return static_cast<std::size_t>(p - view.data());
}

Scan Parser::step(const char*& p, const char* end) {
  switch (state_) {
    case State::begin:
      return step_begin(p, end);
    case State::first_member:
    case State::member:
    case State::after_member:
      return step_member(p, end);
    case State::value:
      return step_value(p, end);
    case State::first_event:
    case State::event:
    case State::after_event:
      return step_event(p, end);
    case State::damaged:
      return step_damaged(p, end);
    case State::too_large:
      return step_too_large(p, end);
    case State::end:
      p = scan::blanks(p, end);
      if (p != end) {
        stop("goes on behind its end", p, end);
      }
      return Scan::whole;
    case State::lost:
    case State::finished:
      p = end;
      return Scan::whole;
  }
  return Scan::bad;
}

Scan Parser::step_begin(const char*& p, const char* end) {
  p = scan::blanks(p, end);
  if (p == end) return Scan::whole;
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (*p == kMark[0] && offset_of(p) == 0) {
    if (end - p < 3) return Scan::more;
    if (std::string_view(p, 3) == kMark) {
      p += 3;
      return Scan::whole;
    }
  }
  if (*p == '{') {
    in_object_ = true;
    state_ = State::first_member;
    ++p;
  } else if (*p == '[') {
    state_ = State::first_event;
    ++p;
  } else {
    complain(kFile, "is neither a JSON object nor a list", p, end);
    state_ = State::lost;
  }
  return Scan::whole;
}

Scan Parser::step_member(const char*& p, const char* end) {
  p = scan::blanks(p, end);
  if (p == end) return Scan::whole;
  if (*p == '}') {
    ++p;
    state_ = State::end;
    return Scan::whole;
  }
  if (state_ == State::after_member && *p == ',') {
    ++p;
    state_ = State::member;
    return Scan::whole;
  }
  if (*p != '"' || state_ == State::after_member) {
    stop("is not JSON from here on", p, end);
    return Scan::bad;
  }
  const char* const begin = p++;
  Token key;
  const bool whole = scan::string(p, end, key) == Scan::whole;
  if (whole) p = scan::blanks(p, end);
  if (!whole || p == end) {
    p = begin;
    return Scan::more;
  }
  if (*p != ':') {
    stop("is not JSON from here on", begin, end);
    return Scan::bad;
  }
  ++p;
  member_.clear();
  decode({key.begin, static_cast<std::size_t>(key.end - key.begin)}, member_);
  state_ = State::value;
  return Scan::whole;
}

Scan Parser::step_value(const char*& p, const char* end) {
  p = scan::blanks(p, end);
  if (p == end) return Scan::whole;
  const bool events = member_ == kEvents;
  if (events && *p == '[') {
    if (saw_events_) complain(kEvents, "is there more than once", p, p);
    saw_events_ = true;
    state_ = State::first_event;
    ++p;
    return Scan::whole;
  }
  const char* const begin = p;
  Token token;
  const Scan scanned = scan::value(p, end, token);
  if (scanned == Scan::more) {
    p = begin;
    return Scan::more;
  }
  if (scanned == Scan::bad) {
    stop("is not JSON from here on", begin, end);
    return Scan::bad;
  }
  state_ = State::after_member;
  if (events) {
    complain(kEvents, "is not a list", begin, p);
    saw_events_ = true;
    return Scan::whole;
  }
  scratch_.clear();
  if (static_cast<std::size_t>(p - begin) > kLargestItem ||
      header_bytes_ + static_cast<std::size_t>(p - begin) > kLargestHeader) {
    complain("header", "is too large to be kept", begin, p);
  } else if (!compact({begin, static_cast<std::size_t>(p - begin)}, scratch_)) {
    complain("header", "is not JSON, or nested too deep", begin, p);
  } else {
    header_bytes_ += member_.size() + scratch_.size();
    header_[member_] = scratch_;
  }
  return Scan::whole;
}

Scan Parser::step_event(const char*& p, const char* end) {
  p = scan::blanks(p, end);
  if (p == end) return Scan::whole;
  const char* const begin = p;
  switch (*p) {
    case ']':
      ++p;
      state_ = in_object_ ? State::after_member : State::end;
      return Scan::whole;
    case ',':
      if (state_ != State::after_event) complain("event", "is missing", p, p);
      ++p;
      state_ = State::event;
      return Scan::whole;
    case '{': {
      const Scan scanned = event_.read(p, end);
      if (scanned == Scan::more) {
        p = begin;
        return Scan::more;
      }
      if (scanned == Scan::bad) {
        damage(p, end);
        return Scan::bad;
      }
      if (state_ == State::after_event) {
        complain("event", "has no comma before it", begin, begin);
      }
      state_ = State::after_event;
      if (static_cast<std::size_t>(p - begin) > kLargestItem) {
        complain("event", "is larger than 16 MiB", begin, p);
      } else {
        ++events_;
        take_event(begin);
      }
      return Scan::whole;
    }
    default: {
      if (state_ == State::after_event) {
        damage(p, end);
        return Scan::bad;
      }
      Token token;
      const Scan scanned = scan::value(p, end, token);
      if (scanned == Scan::more) {
        p = begin;
        return Scan::more;
      }
      if (scanned == Scan::bad) {
        damage(p, end);
        return Scan::bad;
      }
      complain("event", "is not an object", begin, p);
      state_ = State::after_event;
      return Scan::whole;
    }
  }
}

// Looks for what is between two events, "} , {", and a quote; or for the end of the list, which may
// turn out to be that of another within a damaged event.
Scan Parser::step_damaged(const char*& p, const char* end) {
  while (p != end) {
    if (*p != '}') {
      ++p;
      continue;
    }
    const char* at = scan::blanks(p + 1, end);
    if (at == end) return Scan::more;
    if (*at == ',') {
      at = scan::blanks(at + 1, end);
      if (at == end) return Scan::more;
      const char* const brace = at;
      if (*at == '{') {
        at = scan::blanks(at + 1, end);
        if (at == end) return Scan::more;
        if (*at == '"') {
          p = brace;
          state_ = State::event;
          return Scan::whole;
        }
      }
    } else if (*at == ']') {
      const char* const bracket = at;
      at = scan::blanks(at + 1, end);
      if (at == end) return Scan::more;
      if (*at == ',' && in_object_) {
        at = scan::blanks(at + 1, end);
        if (at == end) return Scan::more;
      } else if (*at != '}' || !in_object_) {
        at = nullptr;
      }
      if (at != nullptr && (*at == '"' || *at == '}')) {
        p = bracket;
        guessed_end_ = true;
        state_ = State::after_event;
        return Scan::whole;
      }
    }
    ++p;
  }
  return Scan::whole;
}

Scan Parser::step_too_large(const char*& p, const char* end) {
  for (; p != end; ++p) {
    const char c = *p;
    if (escaped_) {
      escaped_ = false;
    } else if (in_string_) {
      if (c == '\\') escaped_ = true;
      if (c == '"') in_string_ = false;
    } else {
      const scan::Class kind = scan::class_of(c);
      if (kind == scan::Class::quote) in_string_ = true;
      if (kind == scan::Class::open) ++depth_;
      const bool ends = kind == scan::Class::close || kind == scan::Class::comma;
      if (depth_ == 0 && ends) break;  // of a string or a word: the bracket is not its own
      if (kind == scan::Class::close && --depth_ == 0) {
        ++p;
        break;
      }
      continue;
    }
  }
  if (p != end) state_ = after_large_;
  return Scan::whole;
}

// An item that is larger than any can be.
void Parser::give_up(const char* p, const char* end) {
  switch (state_) {
    case State::value:
      complain("header", "is too large to be kept", p, end);
      after_large_ = State::after_member;
      break;
    case State::first_event:
    case State::event:
    case State::after_event:
      complain("event", "is larger than 16 MiB", p, end);
      after_large_ = State::after_event;
      break;
    case State::damaged:
      // Blanks behind a brace.
      state_ = State::lost;
      return;
    default:
      complain(kFile, "is not JSON from here on", p, end);
      state_ = State::lost;
      return;
  }
  state_ = State::too_large;
  depth_ = 0;
  in_string_ = false;
  escaped_ = false;
}

// The file's frame cannot be parsed from here on.
void Parser::stop(std::string_view reason, const char* p, const char* end) {
  if (guessed_end_) {
    guessed_end_ = false;
    state_ = State::damaged;
    return;
  }
  complain(kFile, reason, p, end);
  state_ = State::lost;
}

void Parser::damage(const char* p, const char* end) {
  complain("event", "is not JSON", p, end);
  guessed_end_ = false;
  state_ = State::damaged;
}

void Parser::complain(std::string_view field, std::string_view reason, const char* p,
                      const char* end) {
  problems_.add(field, reason, offset_of(p), {p, static_cast<std::size_t>(end - p)});
}

}  // namespace haiprof::trace

// Chrome trace files, as torch.profiler and others write them, in pieces of any size.
//
//   Pieces -> one item after the other (an event, a member of the file) -> Event -> rows
//
// An item is read as a whole: one that is cut by the end of a piece is kept until there is twice as
// much of it. So the work is linear in the file's size however it is cut, and the result does not
// depend on the cuts. Damage costs the event that it is in; reading resumes at the next event.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trace/columns.h"
#include "trace/event.h"
#include "trace/problems.h"
#include "trace/strings.h"

namespace haiprof::trace {

struct Route {
  Group group = Group::none;  // none: known, and not wanted
  bool arguments = false;     // the arguments are wanted as JSON text
};

// By category in lower case; "" is for events without one, "*" for those that are not here.
using Routes = std::map<std::string, Route, std::less<>>;

class Parser {
 public:
  explicit Parser(Routes routes);

  void feed(std::string_view piece);
  // Ends the input. Nothing can be fed afterwards.
  void finish();

  Rows& rows(Group group) noexcept { return rows_[static_cast<std::size_t>(group)]; }
  const Strings& strings() const noexcept { return strings_; }
  // The file's other members, as JSON text.
  const std::map<std::string, std::string>& header() const noexcept { return header_; }
  const Problems& problems() const noexcept { return problems_; }
  // Where the file was cut off, in bytes; known after finish().
  std::optional<std::uint64_t> truncated() const noexcept { return truncated_; }
  std::uint64_t events() const noexcept { return events_; }
  bool finished() const noexcept { return state_ == State::finished; }

 private:
  enum class State : std::uint8_t {
    begin,         // before anything
    first_member,  // behind the brace of the file's object
    member,        // behind a comma in it
    after_member,
    value,        // behind a member's name
    first_event,  // behind the bracket of the list
    event,        // behind a comma in it
    after_event,
    damaged,    // in the list: look for the next event
    too_large,  // in a value that nobody keeps
    end,        // behind the file's object or list
    lost,       // nothing more can be read
    finished,
  };

  // How many bytes of the view were taken.
  std::size_t consume(std::string_view view);
  // One item. more: p is where it begins, or what is left of it.
  Scan step(const char*& p, const char* end);
  Scan step_begin(const char*& p, const char* end);
  Scan step_member(const char*& p, const char* end);
  Scan step_value(const char*& p, const char* end);
  Scan step_event(const char*& p, const char* end);
  Scan step_damaged(const char*& p, const char* end);
  Scan step_too_large(const char*& p, const char* end);
  void give_up(const char* p, const char* end);
  void stop(std::string_view reason, const char* p, const char* end);
  void damage(const char* p, const char* end);

  void take_event(const char* begin);
  void take_activity(const char* begin);
  void take_counter(const char* begin);
  bool put_row(Group group, std::uint64_t members, const char* begin);
  Route route();
  void put(Rows& rows, std::uint64_t members);
  void put_value(Rows& rows, std::size_t column, const Token& token);
  void put_dimensions(Rows& rows, std::size_t column, const Token& token);
  std::uint32_t text_of(const Field& field, const Token& token);
  // False: there is none.
  bool whole_of(const Field& field, const Token& token, std::int64_t& whole);
  std::optional<double> real_of(const Field& field, const Token& token);

  void complain(std::string_view field, std::string_view reason, const char* p, const char* end);
  std::uint64_t offset_of(const char* p) const noexcept {
    return base_ + static_cast<std::uint64_t>(p - view_);
  }

  Routes routes_;
  std::vector<std::pair<std::uint32_t, Route>> known_routes_;  // by the category's code
  std::vector<Rows> rows_;
  Strings strings_;
  std::map<std::string, std::string> header_;
  std::size_t header_bytes_ = 0;
  Problems problems_;
  std::optional<std::uint64_t> truncated_;
  std::uint64_t events_ = 0;

  State state_ = State::begin;
  State after_large_ = State::begin;
  bool in_object_ = false;  // the file is an object, not a list
  bool saw_events_ = false;
  bool guessed_end_ = false;  // of the list, behind a damaged event
  std::string member_;        // the name behind which `value` is
  // Of a value that is too large: how deep it is, and whether in a string or behind a backslash.
  std::int64_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;

  std::uint64_t base_ = 0;       // of view_ in the file
  const char* view_ = nullptr;   // what is being consumed
  std::string pending_;          // the beginning of an item
  std::size_t retry_bytes_ = 0;  // bytes in pending_ before it is tried again

  Event event_;
  std::string scratch_;
};

}  // namespace haiprof::trace

// The phases of the host that are remembered: which ones, until when, and since when all of them.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "drain/host_phases.h"

namespace {

using namespace haiprof;
using drain::HostPhases;

const std::vector<std::string> kNames{"forward", "backward"};

void add(HostPhases& phases, std::uint32_t name, std::int64_t start, std::int64_t end,
         ring::Category category = ring::Category::phase) {
  ring::RecordView record{};
  ring::SpanPayload span{};
  span.name = name;
  span.category = static_cast<std::uint16_t>(category);
  phases.add(record, span, start, end);
}

std::string shown(HostPhases& phases, std::int64_t low, std::int64_t high) {
  std::string found;
  for (const HostPhases::Piece& piece : phases.within(low, high, kNames)) {
    found += std::string(piece.name) + " " + std::to_string(piece.start) + "-" +
             std::to_string(piece.end) + ";";
  }
  return found;
}

void an_instant_is_of_the_phase_that_started_last() {
  HostPhases phases;
  add(phases, 1, 30, 60);
  add(phases, 0, 10, 40);
  add(phases, 0, 45, 50);
  add(phases, 0, 90, 95, ring::Category::user);
  add(phases, 0, 70, 70);
  CHECK_EQUAL(shown(phases, 0, 100),
              std::string("forward 10-30;backward 30-45;forward 45-50;backward 50-60;"));
  CHECK_EQUAL(shown(phases, 48, 55), std::string("forward 48-50;backward 50-55;"));
  CHECK_EQUAL(shown(phases, 60, 100), std::string());
}

void a_phase_comes_when_it_ends() {
  HostPhases phases;
  CHECK(!phases.awaited(100));
  add(phases, 0, 10, 40);
  CHECK(phases.awaited(41));
  CHECK(!phases.awaited(40));
}

void what_is_not_asked_for_any_more_is_forgotten() {
  HostPhases phases;
  add(phases, 0, 10, 40);
  add(phases, 1, 40, 60);
  phases.forget_until(40);
  CHECK_EQUAL(shown(phases, 0, 100), std::string("backward 40-60;"));
  CHECK(phases.known_since(std::numeric_limits<std::int64_t>::min()));
}

void of_too_many_the_newer_half_is_kept() {
  HostPhases phases;
  for (std::int64_t n = 99; n >= 0; --n) add(phases, 0, 10 * n, 10 * n + 5);
  phases.keep_at_most(100);
  CHECK(phases.known_since(0));
  phases.keep_at_most(99);
  CHECK(!phases.known_since(504));
  CHECK(phases.known_since(505));
  CHECK_EQUAL(shown(phases, 0, 510), std::string("forward 500-505;"));
  CHECK_EQUAL(shown(phases, 980, 1000), std::string("forward 980-985;forward 990-995;"));
}

}  // namespace

int main() {
  an_instant_is_of_the_phase_that_started_last();
  a_phase_comes_when_it_ends();
  what_is_not_asked_for_any_more_is_forgotten();
  of_too_many_the_newer_half_is_kept();
  return haiprof::test::result();
}

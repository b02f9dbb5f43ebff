// What goes wrong in loops: exceptions, endings that are not seen, attaching in the middle, depth.
#include <random>

#include "check.h"
#include "phase_script.h"

using haiprof::test::Script;

namespace {

const char* const kIteration = "D( D) F( F) . B( B) O( O)";
const char* const kWhole = " backward=1 dataloader=1 forward=3 optimizer=1\n";

// The step without its number and bounds.
std::string content(Script& s, int step) {
  const std::string line = s.steps(step, step);
  return line.substr(line.find(')') + 1);
}

void a_forward_that_raises_leaves_no_trace() {
  Script s;
  s.run(2, kIteration).run("D( D) F( F)").run(2, kIteration);
  CHECK_EQUAL(s.count(), 4U);
  CHECK_EQUAL(content(s, 3), kWhole);
  CHECK(s.disjoint());
}

void a_forward_whose_end_is_not_seen_is_dropped() {
  Script s;
  s.run(2, kIteration).run("D( D) F( .").run(3, kIteration);
  CHECK(s.disjoint());
  CHECK(s.count() >= 3U);
}

void a_backward_that_raises_still_counts_its_time() {
  Script s;
  s.run(2, kIteration).run("D( D) F( F) B( F( B!").run(2, kIteration);
  CHECK_EQUAL(s.count(), 4U);
  CHECK_EQUAL(content(s, 3), kWhole);
}

void an_optimizer_that_raises_is_no_update() {
  Script s;
  s.run(2, kIteration).run("D( D) F( F) B( B) O( . O!").run(3, kIteration);
  CHECK_EQUAL(content(s, -1), kWhole);
  CHECK_EQUAL(s.count(), 5U);
}

void an_optimizer_whose_end_is_not_seen_ends_with_the_call_around_it() {
  Script s;
  s.run(2, kIteration).run("D( D) F( F) B( B) S( O( S!").run(3, kIteration);
  CHECK_EQUAL(content(s, -1), kWhole);
}

void a_scaler_that_raises_is_no_update() {
  Script s;
  s.run(2, kIteration).run("D( D) F( F) B( B) S( O( S!").run(2, kIteration);
  CHECK_EQUAL(s.count(), 4U);
}

void a_loader_that_raises_begins_no_step() {
  Script s;
  s.run(2, kIteration).run("D( D!").run(2, kIteration);
  CHECK_EQUAL(s.count(), 4U);
  CHECK_EQUAL(s.steps(1, 1).substr(0, s.steps(1, 1).find(' ', 3)), "1 [9,20)");
}

void endings_without_beginnings_are_ignored() {
  Script s;
  s.run("F) O) F)").run(3, kIteration).run("O)").run(2, kIteration);
  CHECK_EQUAL(s.count(), 5U);
}

void tokens_from_before_a_finish_are_worthless() {
  Script s;
  s.run("D( D) F( F)");
  const auto stale = s.machine().open(haiprof::phase::Kind::backward, 2000, 0, true);
  s.machine().finish();
  const auto fresh = s.machine().open(haiprof::phase::Kind::backward, 2001, 0, true);
  CHECK(s.machine().in_backward());
  s.machine().close(stale, 2002, haiprof::phase::End::done);
  CHECK(s.machine().in_backward());
  s.machine().close(fresh, 2003, haiprof::phase::End::done);
  CHECK(!s.machine().in_backward());
}

void steps_count_from_zero_after_a_finish_and_the_leader_is_remembered() {
  Script s;
  s.run(3, kIteration);
  s.machine().finish();
  CHECK_EQUAL(s.machine().current_step(), haiprof::ring::kNone);
  s.run("D( D)");
  CHECK_EQUAL(s.machine().current_step(), 0U);
}

void a_loop_broken_off_does_not_lead_after_a_finish() {
  Script s;
  s.run("Ia( Ia)").run(3, "Da( Da) F( F) B( B) O( O)");
  s.machine().finish();
  s.run("Ib( Ib)").run(20, "Db( Db) F( F) B( B) O( O)");
  CHECK_EQUAL(s.count(), 3U + 20U);
}

void a_loop_without_a_loader_leads_at_once_after_a_finish() {
  Script s;
  s.run(3, "Fa( Fa) B( B) Oa( Oa)");
  s.machine().finish();
  s.run(20, "Fb( Fb) B( B) Ob( Ob)");
  s.machine().finish();
  s.run("I( I)").run(3, kIteration);
  s.machine().finish();
  s.run(20, "Fc( Fc) B( B) Oc( Oc)");
  CHECK_EQUAL(s.count(), 3U + 20U + 3U + 20U);
}

void a_reset_forgets_everything() {
  Script s;
  s.run(3, kIteration).run("D( D) F(");
  s.machine().reset();
  CHECK_EQUAL(s.machine().current_step(), haiprof::ring::kNone);
  CHECK_EQUAL(s.machine().completed(), 0U);
  s.run("F)").run(2, kIteration);
  CHECK_EQUAL(s.machine().completed(), 1U);
}

void an_incomplete_last_step_is_not_written() {
  Script s;
  s.run(2, kIteration).run("D( D) F( F) B( B)");
  CHECK_EQUAL(s.count(), 2U);
}

void calls_deeper_than_the_stack_stay_balanced() {
  Script s;
  std::string down;
  std::string up;
  for (int i = 0; i < 20; ++i) {
    down += "F( B( ";
    up += "B) F) ";
  }
  s.run(2, kIteration).run(down + up).run(2, kIteration);
  CHECK_EQUAL(content(s, -1), kWhole);
}

// Any order of tokens at all: nothing crashes, phases never overlap, steps follow each other.
void random_tokens_make_no_nonsense() {
  const char* const words[] = {"D(", "D)", "D$", "D!", "I(",  "I)",  "F(",  "F)",  "f(", "f)",
                               "C(", "C)", "c(", "c)", "B(",  "B)",  "O(",  "O)",  "S(", "S)",
                               "Z(", "Z)", "H(", "H)", "Fz(", "Da(", "Oz(", "Oz)", "|",  "&"};
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Script s;
    int open = 0;
    for (int i = 0; i < 400; ++i) {
      const std::string word = words[random() % std::size(words)];
      const bool user = word == "|";
      if (user && random() % 50 != 0) continue;
      const bool tokened = std::string("DIBSZH").find(word[0]) != std::string::npos;
      if (tokened && word.back() == '(') ++open;
      if (tokened && word.back() != '(' && open-- <= 0) {
        open = 0;
        continue;
      }
      s.run(word);
    }
    CHECK(s.disjoint());
    CHECK(s.in_order());
  }
}

}  // namespace

int main() {
  a_forward_that_raises_leaves_no_trace();
  a_forward_whose_end_is_not_seen_is_dropped();
  a_backward_that_raises_still_counts_its_time();
  an_optimizer_that_raises_is_no_update();
  an_optimizer_whose_end_is_not_seen_ends_with_the_call_around_it();
  a_scaler_that_raises_is_no_update();
  a_loader_that_raises_begins_no_step();
  endings_without_beginnings_are_ignored();
  tokens_from_before_a_finish_are_worthless();
  steps_count_from_zero_after_a_finish_and_the_leader_is_remembered();
  a_loop_broken_off_does_not_lead_after_a_finish();
  a_loop_without_a_loader_leads_at_once_after_a_finish();
  a_reset_forgets_everything();
  an_incomplete_last_step_is_not_written();
  calls_deeper_than_the_stack_stay_balanced();
  random_tokens_make_no_nonsense();
  return haiprof::test::result();
}

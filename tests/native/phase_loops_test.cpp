// The loops people write, as token sequences: how many steps, where they begin, what is in them.
#include "check.h"
#include "phase_script.h"

using haiprof::test::Script;

namespace {

const char* const kIteration = "D( D) F( F) . B( B) O( O)";

void plain_loop_is_one_step_a_batch() {
  Script s;
  s.run("I( I)").run(3, kIteration).run("D( D$ .");
  CHECK_EQUAL(s.steps(),
              "0 [0,11) backward=1 dataloader=2 forward=3 optimizer=1\n"
              "1 [11,20) backward=1 dataloader=1 forward=3 optimizer=1\n"
              "2 [20,30) backward=1 dataloader=2 forward=3 optimizer=1\n");
  CHECK(s.disjoint());
}

void second_epoch_begins_with_the_loaders_start_up() {
  Script s;
  s.run(2, "I( I) D( D) F( F) B( B) O( O) D( D) F( F) B( B) O( O) D( D$");
  CHECK_EQUAL(s.steps(2, 2), "2 [20,30) backward=1 dataloader=2 forward=2 optimizer=1\n");
  CHECK_EQUAL(s.count(), 4U);
}

void evaluation_at_the_end_of_an_epoch_belongs_to_the_step_before() {
  Script s;
  s.run("Iat( Iat) Da( Da) F( F) B( B) O( O) Da( Da$");
  s.run("Iv( Iv) Dv( Dv) f( f) Dv( Dv) f( f) Dv( Dv$ . .");
  s.run("Ia( Ia) Da( Da) F( F) B( B) O( O) Da( Da$");
  CHECK_EQUAL(s.steps(),
              "0 [0,26) backward=1 dataloader=3 eval=2 eval_dataloader=4 forward=2 optimizer=1\n"
              "1 [26,37) backward=1 dataloader=3 forward=2 optimizer=1\n");
  CHECK(s.disjoint());
}

void evaluation_of_the_training_data_is_no_step() {
  Script s;
  s.run("I( I)").run(2, kIteration).run("D( D$ i( i) d( d) f( f) d( d) f( f) d( d$");
  s.run("I( I)").run(2, kIteration).run("D( D$");
  CHECK_EQUAL(s.count(), 4U);
  CHECK_EQUAL(s.steps(1, 1),
              "1 [11,34) backward=1 dataloader=2 eval=2 eval_dataloader=4 forward=3 optimizer=1\n");
}

void accumulation_is_one_step_with_several_passes() {
  Script s;
  const char* micro = "D( D) F( F) B( B) ";
  for (int i = 0; i < 3; ++i) s.run(4, micro).run("O( O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [26,52) backward=4 dataloader=4 forward=8 optimizer=1\n");
  CHECK_EQUAL(s.count(), 3U);
}

void a_gan_is_one_step_a_batch() {
  Script s;
  s.run(3, "D( D) Fd( Fd) f( f) Fd( Fd) B( B) Od( Od) Fg( Fg) Fd( Fd) B( B) Og( Og)");
  CHECK_EQUAL(s.count(), 3U);
  CHECK_EQUAL(s.steps(1, 1), "1 [20,40) backward=2 dataloader=1 eval=1 forward=9 optimizer=2\n");
}

void a_gan_without_a_loader_is_one_step_a_round() {
  Script s;
  s.run(4, "Fd( Fd) B( B) Od( Od) Fg( Fg) Fd( Fd) B( B) Og( Og)");
  // The first step ends where the leading network comes round first, in the middle of round one.
  CHECK_EQUAL(s.count(), 5U);
  CHECK_EQUAL(s.steps(2, 2), "2 [22,36) backward=2 forward=5 optimizer=2\n");
}

void a_gan_with_many_critic_steps_is_one_step_a_batch() {
  Script s;
  for (int i = 0; i < 3; ++i) {
    s.run("Da( Da)").run(5, "Fd( Fd) B( B) Od( Od)").run("Fg( Fg) B( B) Og( Og)");
  }
  CHECK_EQUAL(s.count(), 3U);
}

void a_closure_holds_forward_and_backward() {
  Script s;
  s.run(2, "D( D) O( . F( F) . B( B) F( F) . B( B) . O)");
  CHECK_EQUAL(s.steps(0, 0), "0 [0,16) backward=2 dataloader=1 forward=6 optimizer=5\n");
  CHECK(s.disjoint());
  CHECK_EQUAL(s.count(), 2U);
}

void a_closure_without_a_loader_counts_optimizer_steps() {
  Script s;
  s.run(3, "O( F( F) B( B) F( F) B( B) O)");
  CHECK_EQUAL(s.count(), 3U);
}

void a_closure_may_fetch_the_batch() {
  Script s;
  s.run(3, "O( D( D) F( F) B( B) O)");
  CHECK_EQUAL(s.count(), 3U);
  CHECK_EQUAL(s.steps(1, 1), "1 [9,17) backward=1 dataloader=1 forward=2 optimizer=3\n");
}

void checkpointed_modules_are_recomputed_inside_backward() {
  Script s;
  s.run(2, "D( D) F( F) B( F( F) B( F( F) B) B) O( O)");
  CHECK_EQUAL(s.steps(0, 0),
              "0 [0,14) backward=7 dataloader=1 forward=2 optimizer=1 recompute=2\n");
}

void an_optimizer_inside_backward_is_an_update() {
  Script s;
  s.run(3, "D( D) F( F) B( Oa( Oa) Ob( Ob) B)");
  CHECK_EQUAL(s.count(), 3U);
  CHECK_EQUAL(s.steps(1, 1), "1 [10,20) backward=5 dataloader=1 forward=2\n");
}

void an_optimizer_on_the_engines_thread_is_an_update() {
  Script s;
  s.run(3, "D( D) F( F) B( & B)");
  CHECK_EQUAL(s.count(), 3U);
}

void a_scaler_counts_also_when_it_skips() {
  Script s;
  s.run("D( D) F( F) B( B) S( O( O) S)")
      .run("D( D) F( F) B( B) S( . . S)")
      .run("D( D) F( F) B( B)");
  CHECK_EQUAL(s.steps(),
              "0 [0,10) backward=1 dataloader=1 forward=2 optimizer=3\n"
              "1 [10,20) backward=1 dataloader=1 forward=2 optimizer=3\n"
              "2 backward=1 dataloader=1 forward=2\n");
}

void a_loop_that_fetches_ahead_keeps_its_last_step() {
  Script s;
  s.run("I( I) D( D)").run(3, "D( D) F( F) B( B) O( O)").run("D( D$ F( F) B( B) O( O)");
  s.run("I( I) D( D)").run(3, "D( D) F( F) B( B) O( O)").run("D( D$ F( F) B( B) O( O)");
  CHECK_EQUAL(s.count(), 8U);
  CHECK_EQUAL(s.steps(3, 3), "3 [28,36) backward=1 dataloader=1 forward=2 optimizer=1\n");
  CHECK_EQUAL(s.steps(4, 4), "4 [36,48) backward=1 dataloader=3 forward=2 optimizer=1\n");
}

void batches_fetched_together_are_one_step() {
  Script s;
  s.run("I( I) D( D)").run(3, "D( D) D( D) F( F) B( B) F( F) B( B) O( O)");
  s.run("D( D$ F( F) B( B) O( O)");
  CHECK_EQUAL(s.count(), 4U);
}

void two_loaders_in_turn_are_one_step() {
  Script s;
  s.run("Ia( Ia) Ib( Ib)").run(3, "Da( Da) Db( Db) F( F) B( B) O( O)").run("Da( Da$");
  CHECK_EQUAL(s.count(), 3U);
  CHECK_EQUAL(s.steps(1, 1), "1 [14,24) backward=1 dataloader=2 forward=2 optimizer=1\n");
}

void a_batch_that_is_only_looked_at_begins_no_step() {
  Script s;
  s.run("Iv( Iv) Dv( Dv) . . .").run("I( I)").run(2, kIteration);
  CHECK_EQUAL(s.steps(),
              "0 [7,18) backward=1 dataloader=2 forward=3 optimizer=1\n"
              "1 [18,26) backward=1 dataloader=1 forward=3 optimizer=1\n"
              "- dataloader=2\n");
}

void a_teacher_before_the_model_does_not_make_evaluation() {
  Script s;
  s.run("I( I)").run(3, "D( D) ft( ft) F( F) B( B) O( O)");
  CHECK_EQUAL(s.steps(),
              "0 [0,12) backward=1 dataloader=2 eval=1 forward=2 optimizer=1\n"
              "1 [12,22) backward=1 dataloader=1 eval=1 forward=2 optimizer=1\n"
              "2 [22,31) backward=1 dataloader=1 eval=1 forward=2 optimizer=1\n");
}

void evaluation_before_training_lies_outside_steps() {
  Script s;
  s.run("Iv( Iv) Dv( Dv) f( f) Dv( Dv) f( f) Dv( Dv$ I( I)").run(2, kIteration);
  CHECK_EQUAL(s.steps(),
              "0 [12,23) backward=1 dataloader=2 forward=3 optimizer=1\n"
              "1 [23,31) backward=1 dataloader=1 forward=3 optimizer=1\n"
              "- eval=2 eval_dataloader=4\n");
}

void a_trial_call_before_the_loop_is_no_step() {
  Script s;
  s.run("F( F) . . I( I)").run(2, kIteration);
  CHECK_EQUAL(s.steps(),
              "0 [4,15) backward=1 dataloader=2 forward=3 optimizer=1\n"
              "1 [15,23) backward=1 dataloader=1 forward=3 optimizer=1\n"
              "- forward=1\n");
}

void without_a_loader_the_module_leads() {
  Script s;
  s.run(3, "F( F) . B( B) O( O) .");
  CHECK_EQUAL(s.steps(1, 1), "1 [8,16) backward=1 forward=3 optimizer=1\n");
  CHECK_EQUAL(s.count(), 3U);
}

void without_modules_forward_begins_at_the_batch() {
  Script s;
  s.run("I( I)").run(3, "D( D) . . B( B) O( O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [10,18) backward=1 dataloader=1 forward=3 optimizer=1\n");
  CHECK_EQUAL(s.count(), 3U);
}

void with_backward_only_it_leads() {
  Script s;
  s.run(3, ". . B( B) O( O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [8,14) backward=1 optimizer=1\n");
}

void a_gradient_inside_a_module_splits_its_forward() {
  Script s;
  s.run(3, "D( D) F( . B( B) . F) . B( B) O( O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [13,26) backward=2 dataloader=1 forward=6 optimizer=1\n");
  CHECK(s.disjoint());
}

void forward_without_backward_ends_at_the_last_module() {
  Script s;
  s.run("D( D) F( F) . . . D( D) F( F) B( B) O( O) D( D)");
  CHECK_EQUAL(s.steps(0, 0), "0 [0,15) backward=1 dataloader=2 forward=3 optimizer=1\n");
}

void a_batch_fetched_between_forward_and_backward_splits_forward() {
  Script s;
  s.run("I( I) D( D)").run(3, "F( F) . D( D) . B( B) O( O)");
  CHECK(s.disjoint());
  CHECK_EQUAL(s.count(), 3U);
  CHECK_EQUAL(s.steps(1, 1), "1 [17,27) backward=1 dataloader=1 forward=5 optimizer=1\n");
}

void a_loader_created_anew_each_epoch_leads_again() {
  Script s;
  s.run("Ia1( Ia1)").run(3, "Da1( Da1) F( F) B( B) O( O)");  // broken off, not exhausted
  s.run("Ib1( Ib1)").run(3, "Db1( Db1) F( F) B( B) O( O)").run("Db1( Db1$");
  s.run("Ic2( Ic2)").run(3, "Dc2( Dc2) F( F) B( B) O( O)").run("Dc2( Dc2$");
  CHECK_EQUAL(s.count(), 9U);
}

void a_leader_that_never_comes_back_is_replaced() {
  Script s;
  s.run(4, "Da( Da) F( F) B( B) O( O)").run(80, "Db( Db) F( F) B( B) O( O)");
  CHECK_EQUAL(s.count(), 4U + 80U - 63U);
}

void a_second_loop_without_a_loader_is_found_after_sixteen_updates() {
  Script s;
  s.run(4, "Fa( Fa) B( B) Oa( Oa)").run(40, "Fb( Fb) B( B) Ob( Ob)");
  CHECK_EQUAL(s.count(), 4U + 40U - 16U);
}

void twenty_optimizers_in_turn_are_one_step_a_round() {
  Script s;
  std::string all = "F( F) B( B)";
  for (char key = 'a'; key < 'a' + 20; ++key) all += std::string(" O") + key + "( O" + key + ")";
  s.run(5, all);
  CHECK_EQUAL(s.count(), 5U);
  CHECK_EQUAL(s.steps(2, 2), "2 [88,132) backward=1 forward=2 optimizer=20\n");
}

void a_compiled_function_is_forward() {
  Script s;
  s.run(3, "D( D) C( F( F) C) B( B) O( O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [10,20) backward=1 dataloader=1 forward=4 optimizer=1\n");
  CHECK_EQUAL(s.count(), 3U);
}

void a_compiled_function_without_gradients_is_evaluation() {
  Script s;
  s.run(3, "D( D) c( c) F( F) B( B) O( O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [10,20) backward=1 dataloader=1 eval=1 forward=2 optimizer=1\n");
}

void a_compiled_function_of_the_optimizer_is_the_optimizers() {
  Script s;
  s.run(3, "D( D) F( F) B( B) O( c( f( f) c) . c( c) O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [15,30) backward=1 dataloader=1 forward=2 optimizer=8\n");
}

void a_compiled_function_of_a_custom_backward_is_backward() {
  Script s;
  s.run(3, "D( D) F( F) B( c( c) B) O( O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [10,20) backward=3 dataloader=1 forward=2 optimizer=1\n");
}

void a_compiled_function_in_a_closure_is_forward() {
  Script s;
  s.run(3, "D( D) O( C( C) B( B) c( c) O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [10,20) backward=1 dataloader=1 forward=2 optimizer=4\n");
}

void a_compiled_checkpoint_is_recomputed() {
  Script s;
  s.run(3, "D( D) F( F) B( C( C) B) O( O)");
  CHECK_EQUAL(s.steps(1, 1),
              "1 [10,20) backward=3 dataloader=1 forward=2 optimizer=1 recompute=1\n");
}

void an_optimizer_that_is_not_seen_is_guessed() {
  Script s;
  s.run(100, "D( D) F( F) B( B) .");
  CHECK(s.count() >= 30U);
}

void a_seen_optimizer_ends_the_guessing() {
  Script s;
  for (int i = 0; i < 3; ++i) s.run(100, "D( D) F( F) B( B)").run("O( O)");
  CHECK_EQUAL(s.steps(-1, -1).substr(s.steps(-1, -1).find(' ') + 1).find("backward=100") !=
                  std::string::npos,
              true);
}

void inference_over_a_loader_is_a_step_a_batch() {
  Script s;
  s.run("i( i)").run(100, "d( d) f( f) .");
  CHECK_EQUAL(s.count(), 0U);
  CHECK(s.inferences() >= 48U);
  CHECK_EQUAL(s.steps(-2, -2).substr(s.steps(-2, -2).find(')') + 1), " dataloader=1 forward=1\n");
}

void inference_without_a_loader_is_a_step_a_call() {
  Script s;
  s.run(100, "f( f) .");
  CHECK_EQUAL(s.inferences(), 51U);
  CHECK_EQUAL(s.count(), 0U);
}

void inference_with_gradients_is_a_step_a_batch() {
  Script s;
  s.run("I( I)").run(100, "D( D) F( F) .");
  CHECK_EQUAL(s.count(), 0U);
  CHECK_EQUAL(s.inferences(), 51U);
  CHECK_EQUAL(s.steps(-2, -2).substr(s.steps(-2, -2).find(')') + 1), " dataloader=1 forward=1\n");
  CHECK(s.disjoint());
}

void inference_with_gradients_without_a_loader_is_a_step_a_call() {
  Script s;
  s.run(100, "F( F) .");
  CHECK_EQUAL(s.count(), 0U);
  CHECK_EQUAL(s.inferences(), 51U);
}

// What was evaluated before, however, a training has its steps, from 0, and they are whole.
void training_after_inference_counts_from_zero() {
  const char* const evaluations[] = {"f( f)",
                                     "F( F)",
                                     "D( D) f( f)",
                                     "d( d) f( f)",
                                     "D( D) F( F)",
                                     "D( D) D( D) f( f)",
                                     "Dv( Dv) f( f) f( f)"};
  for (const char* evaluation : evaluations) {
    for (const int times : {50, 60, 200}) {
      for (const char* end : {"", "D( D$", "Iv( Iv"}) {
        Script s;
        s.run(times, evaluation).run(end).run("I( I)").run(3, kIteration);
        CHECK_EQUAL(s.count(), 3U);
        CHECK(s.in_order());
        CHECK(s.disjoint());
        const std::string first = s.steps(0, 0);
        CHECK(s.inferences() >= 1U);
        for (int step = 1; step < 3; ++step) {
          const std::string line = s.steps(step, step);
          CHECK_EQUAL(line.substr(line.find(')') + 1),
                      " backward=1 dataloader=1 forward=3 optimizer=1\n");
        }
      }
    }
  }
}

void the_first_step_after_inference_is_whole() {
  for (const char* evaluation : {"f( f)", "D( D) f( f)", "F( F)"}) {
    Script s;
    s.run(60, evaluation).run("D( D$ I( I)").run(2, kIteration);
    const std::string line = s.steps(0, 0);
    CHECK_EQUAL(line.substr(line.find(')') + 1, line.find('\n') - line.find(')')),
                " backward=1 dataloader=2 forward=3 optimizer=1\n");
  }
}

void training_without_a_loader_after_inference_counts_from_zero() {
  for (const char* evaluation : {"f( f)", "F( F)"}) {
    Script s;
    s.run(60, evaluation).run(3, "F( F) . B( B) O( O)");
    CHECK_EQUAL(s.count(), 3U);
    CHECK_EQUAL(s.steps(1, 1).substr(s.steps(1, 1).find(')') + 1),
                " backward=1 forward=3 optimizer=1\n");
    CHECK(s.disjoint());
  }
}

void a_rollout_before_each_training_step_is_inference_only_the_first_time() {
  Script s;
  s.run(60, "f( f)").run("F( F) B( B) O( O)").run(2, "f( f) f( f) F( F) B( B) O( O)");
  CHECK_EQUAL(s.count(), 3U);
  CHECK_EQUAL(s.inferences(), 11U);
  CHECK_EQUAL(s.steps(1, 1).substr(s.steps(1, 1).find(')') + 1),
              " backward=1 eval=2 forward=2 optimizer=1\n");
}

void a_target_network_in_the_first_step_is_evaluation() {
  Script s;
  s.run(60, "f( f)").run(2, "F( F) f( f) B( B) O( O)");
  CHECK_EQUAL(s.count(), 2U);
  CHECK_EQUAL(s.inferences(), 11U);
  CHECK(s.steps(0, 0).find("backward=1 eval=1 forward=3 optimizer=1") != std::string::npos);
}

void several_modules_in_the_first_step_are_its_forward() {
  Script s;
  s.run(60, "f( f)").run(3, "Fa( Fa) Fb( Fb) Fc( Fc) B( B) O( O)");
  CHECK_EQUAL(s.count(), 3U);
  CHECK_EQUAL(s.inferences(), 11U);
}

void a_batch_fetched_ahead_after_inference_is_the_first_steps() {
  Script s;
  s.run(60, "D( D) f( f)").run("D( D$ I( I) D( D)").run(3, "F( F) D( D) B( B) O( O)");
  CHECK_EQUAL(s.count(), 3U);
  CHECK(s.in_order());
  CHECK(s.disjoint());
}

void the_number_says_which_kind_of_step_it_is_while_it_lasts() {
  constexpr std::uint32_t inference = haiprof::ring::kInference;
  Script s;
  s.run(51, "D( D) f( f)");
  CHECK_EQUAL(s.machine().current_step(), inference | 1U);
  s.run("D( D)");
  CHECK_EQUAL(s.machine().current_step(), inference | 2U);
  s.run("F(");
  CHECK_EQUAL(s.machine().current_step(), 0U);
  s.run("F) B( B)");
  CHECK_EQUAL(s.machine().current_step(), 0U);
}

void the_users_boundary_after_inference_counts_from_zero() {
  Script s;
  s.run(60, "f( f)").run("|").run(3, "f( f) |");
  CHECK_EQUAL(s.count(), 3U);
  CHECK_EQUAL(s.inferences(), 11U);
  CHECK(s.in_order());
}

void the_users_boundary_wins() {
  Script s;
  s.run("D( D) F( F) B( B) O( O) |").run(3, "D( D) F( F) B( B) D( D) F( F) B( B) O( O) O( O) |");
  CHECK_EQUAL(s.count(), 4U);
  CHECK_EQUAL(s.steps(1, 1), "1 [8,25) backward=2 dataloader=2 forward=4 optimizer=2\n");
}

void the_users_boundary_alone_makes_steps() {
  Script s;
  s.run(4, ". . |");
  CHECK_EQUAL(s.steps(), "0 [2,5)\n1 [5,8)\n2 [8,11)\n");
}

void gradients_zeroed_before_backward_are_the_optimizers() {
  Script s;
  s.run(3, "D( D) F( F) . Z( . Z) . B( B) O( O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [13,26) backward=1 dataloader=1 forward=5 optimizer=3\n");
  CHECK(s.disjoint());
}

void gradients_zeroed_elsewhere_are_the_optimizers_and_no_update() {
  Script s;
  s.run(3, "D( D) Z( Z) F( F) B( B) D( D) F( F) B( B) O( O) Z( Z) .");
  CHECK_EQUAL(s.count(), 3U);
  CHECK_EQUAL(s.steps(1, 1), "1 [19,38) backward=2 dataloader=2 forward=4 optimizer=3\n");
}

void gradients_zeroed_in_a_closure_are_the_optimizers() {
  Script s;
  s.run(3, "D( D) O( Z( Z) F( F) Z( Z) B( B) O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [12,24) backward=1 dataloader=1 forward=3 optimizer=5\n");
  CHECK(s.disjoint());
}

void gradients_zeroed_inside_backward_are_backward() {
  Script s;
  s.run(3, "D( D) F( F) B( O( O) Z( Z) B)");
  CHECK_EQUAL(s.steps(1, 1), "1 [10,20) backward=5 dataloader=1 forward=2\n");
}

void gradients_zeroed_without_modules_divide_forward() {
  Script s;
  s.run("I( I)").run(3, "D( D) . Z( Z) . B( B) O( O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [12,22) backward=1 dataloader=1 forward=4 optimizer=2\n");
  CHECK(s.disjoint());
}

void a_deep_trace_that_ends_inside_the_optimizer_is_not_the_optimizers() {
  Script s;
  s.run(2, "D( D) F( F) B( B) O( . H( . . H) . O)");
  CHECK_EQUAL(s.steps(0, 0),
              "0 [0,14) backward=1 dataloader=1 deep_trace=3 forward=2 optimizer=4\n");
  CHECK_EQUAL(s.count(), 2U);
  CHECK(s.disjoint());
}

void a_deep_trace_that_ends_inside_forward_is_not_forward() {
  Script s;
  s.run(2, "D( D) F( . H( . H) . F) B( B) O( O)");
  CHECK_EQUAL(s.steps(0, 0),
              "0 [0,13) backward=1 dataloader=1 deep_trace=2 forward=5 optimizer=1\n");
  CHECK(s.disjoint());
}

void a_data_set_that_calls_modules_is_loading() {
  Script s;
  s.run(3, "D( F( F) f( f) B( B) D) F( F) B( B) O( O)");
  CHECK_EQUAL(s.steps(1, 1), "1 [14,28) backward=1 dataloader=7 forward=2 optimizer=1\n");
}

}  // namespace

int main() {
  plain_loop_is_one_step_a_batch();
  second_epoch_begins_with_the_loaders_start_up();
  evaluation_at_the_end_of_an_epoch_belongs_to_the_step_before();
  evaluation_of_the_training_data_is_no_step();
  accumulation_is_one_step_with_several_passes();
  a_gan_is_one_step_a_batch();
  a_gan_without_a_loader_is_one_step_a_round();
  a_gan_with_many_critic_steps_is_one_step_a_batch();
  a_closure_holds_forward_and_backward();
  a_closure_without_a_loader_counts_optimizer_steps();
  a_closure_may_fetch_the_batch();
  checkpointed_modules_are_recomputed_inside_backward();
  an_optimizer_inside_backward_is_an_update();
  an_optimizer_on_the_engines_thread_is_an_update();
  a_scaler_counts_also_when_it_skips();
  a_loop_that_fetches_ahead_keeps_its_last_step();
  batches_fetched_together_are_one_step();
  two_loaders_in_turn_are_one_step();
  a_batch_that_is_only_looked_at_begins_no_step();
  a_teacher_before_the_model_does_not_make_evaluation();
  evaluation_before_training_lies_outside_steps();
  a_trial_call_before_the_loop_is_no_step();
  without_a_loader_the_module_leads();
  without_modules_forward_begins_at_the_batch();
  with_backward_only_it_leads();
  a_gradient_inside_a_module_splits_its_forward();
  forward_without_backward_ends_at_the_last_module();
  a_batch_fetched_between_forward_and_backward_splits_forward();
  a_loader_created_anew_each_epoch_leads_again();
  a_leader_that_never_comes_back_is_replaced();
  a_second_loop_without_a_loader_is_found_after_sixteen_updates();
  twenty_optimizers_in_turn_are_one_step_a_round();
  a_compiled_function_is_forward();
  a_compiled_function_without_gradients_is_evaluation();
  a_compiled_function_of_the_optimizer_is_the_optimizers();
  a_compiled_function_of_a_custom_backward_is_backward();
  a_compiled_function_in_a_closure_is_forward();
  a_compiled_checkpoint_is_recomputed();
  an_optimizer_that_is_not_seen_is_guessed();
  a_seen_optimizer_ends_the_guessing();
  inference_over_a_loader_is_a_step_a_batch();
  inference_without_a_loader_is_a_step_a_call();
  inference_with_gradients_is_a_step_a_batch();
  inference_with_gradients_without_a_loader_is_a_step_a_call();
  training_after_inference_counts_from_zero();
  the_first_step_after_inference_is_whole();
  training_without_a_loader_after_inference_counts_from_zero();
  a_rollout_before_each_training_step_is_inference_only_the_first_time();
  a_target_network_in_the_first_step_is_evaluation();
  several_modules_in_the_first_step_are_its_forward();
  a_batch_fetched_ahead_after_inference_is_the_first_steps();
  the_number_says_which_kind_of_step_it_is_while_it_lasts();
  the_users_boundary_after_inference_counts_from_zero();
  the_users_boundary_wins();
  the_users_boundary_alone_makes_steps();
  gradients_zeroed_before_backward_are_the_optimizers();
  gradients_zeroed_elsewhere_are_the_optimizers_and_no_update();
  gradients_zeroed_in_a_closure_are_the_optimizers();
  gradients_zeroed_inside_backward_are_backward();
  gradients_zeroed_without_modules_divide_forward();
  a_deep_trace_that_ends_inside_the_optimizer_is_not_the_optimizers();
  a_deep_trace_that_ends_inside_forward_is_not_forward();
  a_data_set_that_calls_modules_is_loading();
  return haiprof::test::result();
}

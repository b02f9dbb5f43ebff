// The machine while the process only infers: its steps, and how the first step of a training that
// follows is distinguished from them.
//
//   D( D) f( f)  D( D) f( f)  D( D) F( F)  B(          D( D) F( F)  D( D) F( F) …
//   ├─ infers ──┤├─ infers ──┤├──── step 0 …           ├─ infers ──┤├─ infers?
//
// A call with gradients may be the first of the training, so that it and the batch before it are in
// doubt until a backward pass or another call follows.
#include <algorithm>

#include "phase/machine.h"

namespace haiprof::phase {
namespace {

// This many outermost module calls without any backward pass are inference.
constexpr std::uint32_t kInferenceCalls = 50;

}  // namespace

void Machine::note_call_without_backward(bool gradients) noexcept {
  if (trained_ || inference_ || !outermost()) return;
  // After calls without gradients, this may be the training that begins.
  if (gradients && !infers_with_gradients_) calls_without_backward_ = 0;
  infers_with_gradients_ = infers_with_gradients_ || gradients;
  if (++calls_without_backward_ < kInferenceCalls) return;
  settle_forward();
  release(true);
  inference_ = true;
  lead_ = Lead::none;
  if (!manual_) step_open_ = false;
}

// While in doubt, it is what seems more likely: other records of the process carry it already.
std::uint32_t Machine::current_step() const noexcept {
  const bool next = doubt_.from != 0 && doubt_.begins_inference;
  if (doubt_.calls > 0 && !infers_with_gradients_) return number_;
  if (!step_open_ && !next) return ring::kNone;
  if (!step_infers_ && !next) return number_;
  return ring::kInference | (inference_number_ + (next && step_open_ ? 1 : 0));
}

void Machine::infer(Frame& frame) noexcept {
  frame.role = Role::inference;
  if (!frame.gradients) loaders_.called_without_gradients();
  if (manual_ || !outermost()) return;
  const bool fetched = pending_count_ > doubt_.pending;
  const bool enough = infers_with_gradients_ || doubt_.calls == kInferenceCalls;
  if (doubt_.calls > 0 && (fetched || enough)) decide_inference();
  if (doubt_.from == 0) {
    doubt_.from = pending_count_ > 0 ? pending_[0].start : frame.start;
    doubt_.begins_inference = lead_ != Lead::loader || lead_ended_;
    if (doubt_.begins_inference) lead_ = Lead::module;
  }
  doubt_.pending = pending_count_;
  if (frame.gradients) {
    if (doubt_.calls == 0) doubt_.key = frame.key;
    frame.role = Role::forward;
  } else if (doubt_.calls == 0) {
    decide_inference();
    return;
  } else {
    frame.role = Role::evaluation;
  }
  ++doubt_.calls;
}

void Machine::infer_batch(const Frame& frame, std::uint64_t now) noexcept {
  if (frame.gradients) loaders_.batch(frame.key);
  if (!in_loop() || manual_) {
    release(false);
    emit(Name::dataloader, frame.start, now);
    return;
  }
  batch_ready_ = now;
  hold(Pending::What::batch, frame.key, frame.start, now);
  const bool leads_inference = leads(frame.key) || loader_may_lead();
  if (leads_inference) {
    lead_ = Lead::loader;
    lead_key_ = frame.key;
    lead_ended_ = false;
  }
  if (doubt_.calls > 0) return;
  if (doubt_.from == 0) doubt_.from = pending_[0].start;
  doubt_.begins_inference = doubt_.begins_inference || leads_inference;
  doubt_.pending = pending_count_;
  if (!frame.gradients) decide_inference();
}

// What was in doubt was no training.
void Machine::decide_inference() noexcept {
  if (doubt_.from == 0) return;
  const Doubt was = doubt_;
  doubt_ = {};
  infers_with_gradients_ = infers_with_gradients_ || was.calls > 0;
  if (was.begins_inference) boundary(was.from);
  envelope_.renumber(current_step());
  settle_forward();
  release(std::min(was.pending, pending_count_), false);
  if (!holds(Pending::What::batch)) return;
  doubt_.from = pending_[0].start;
  doubt_.begins_inference = true;
}

// A backward pass or an update: what is in doubt is a part of the first step.
void Machine::leave_inference() noexcept {
  trained_ = true;
  if (!inference_) return;
  const Doubt was = doubt_;
  doubt_ = {};
  inference_ = false;
  if (manual_) return;
  if (step_open_) end_step(was.from != 0 ? was.from : last_);
  lead_ = Lead::none;
  if (was.calls == 0) return;
  training_seen();
  if (lead_ == Lead::none) lead(Lead::module, was.key, was.from);
  step_start_ = was.from;
  forward_in_step_ = true;
  envelope_.renumber(current_step());
}

}  // namespace haiprof::phase

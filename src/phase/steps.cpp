// Finds the bounds of steps, and emits the spans.
#include "phase/machine.h"

namespace haiprof::phase {
namespace {

// A leader that did not come round in this many updates will not come: it is looked for anew. A
// loader gets more, because an inner loop may well step often on one batch.
constexpr std::uint32_t kLoaderPatience = 64;
constexpr std::uint32_t kPatience = 16;
// This many rounds with a backward pass and never an update: the optimizer is not torch's, and a
// backward pass must do.
constexpr std::uint32_t kCyclesWithoutUpdate = 64;

}  // namespace

// A module call with gradients or a backward pass: the batches in hand are training batches.
void Machine::training_seen() noexcept {
  if (in_loop() && !manual_) {
    for (std::size_t i = 0; i < pending_count_; ++i) {
      const Pending pending = pending_[i];
      if (pending.what == Pending::What::end) {
        boundary(pending.start);
        break;
      }
      if (pending.what == Pending::What::batch && loader_may_lead()) {
        // The first batch of the run leads: of two loaders read in turn, the one read first.
        lead(Lead::loader, pending.key, pending_[0].start);
        for (std::size_t j = i; j < pending_count_; ++j) {
          ahead_ += pending_[j].what == Pending::What::batch && pending_[j].key == pending.key;
        }
        break;
      }
    }
  }
  loaders_.trained();
  release(false);
}

void Machine::count_update(std::uint64_t optimizer) noexcept {
  update_seen_ = true;
  updates_invisible_ = false;
  ++updates_;
  if (lead_optimizer_ == 0) lead_optimizer_ = optimizer;
  if (optimizer == lead_optimizer_ || optimizer == kAnyOptimizer) {
    ++lead_updates_;
    other_optimizer_ = 0;
    other_updates_ = 0;
  } else {
    // Only one is counted: a loop may step many optimizers in turn.
    if (other_optimizer_ == 0) other_optimizer_ = optimizer;
    if (optimizer == other_optimizer_) ++other_updates_;
  }
  const bool stalled = lead_ == Lead::loader
                           ? updates_ >= kLoaderPatience
                           : lead_updates_ >= kPatience || other_updates_ >= kPatience;
  if (!stalled) return;
  lead_ = Lead::none;
  lead_optimizer_ = optimizer;
  other_optimizer_ = 0;
  other_updates_ = 0;
}

bool Machine::may_end() const noexcept {
  if (manual_ || !step_open_) return false;
  if (updates_invisible_) return backwards_ > 0;
  // Without a loader, two networks in turn are distinguished by whose optimizer stepped.
  return lead_ == Lead::loader || lead_ == Lead::none ? updates_ > 0 : lead_updates_ > 0;
}

bool Machine::loader_may_lead() const noexcept {
  if (lead_ == Lead::none || lead_ended_) return true;
  return lead_ != Lead::loader && (inference_ || completed_ == 0);
}

void Machine::lead(Lead kind, std::uint64_t key, std::uint64_t from) noexcept {
  const bool due = may_end();
  lead_ = kind;
  lead_key_ = key;
  lead_ended_ = false;
  ahead_ = 0;
  cycles_without_update_ = 0;
  if (!step_open_) {
    open_step(from);
  } else if (due) {
    boundary(from);
  } else if (completed_ == 0 && backwards_ == 0) {
    step_start_ = from;  // what came before was a trial run, not a step
  }
}

void Machine::leader_recurs(std::uint64_t at) noexcept {
  if (!step_open_) {
    open_step(at);
  } else if (may_end()) {
    boundary(at);
  } else if (backwards_ > 0 && !update_seen_ && ++cycles_without_update_ >= kCyclesWithoutUpdate) {
    updates_invisible_ = true;
    boundary(at);
  }
}

void Machine::boundary(std::uint64_t at) noexcept {
  if (step_open_) end_step(at);
  open_step(at);
}

void Machine::end_step(std::uint64_t at) noexcept {
  step_open_ = false;
  if (step_infers_) {
    emit(Name::inference_step, step_start_, at, ring::kInference | inference_number_);
    ++inference_number_;
    ++inferred_;
  } else {
    emit(Name::step, step_start_, at, number_);
    ++number_;
    ++completed_;
  }
}

void Machine::open_step(std::uint64_t at) noexcept {
  step_open_ = true;
  step_infers_ = inference_ && !manual_;
  step_start_ = at;
  updates_ = lead_updates_ = backwards_ = cycles_without_update_ = 0;
  forward_in_step_ = false;
}

void Machine::mark(std::uint64_t now) noexcept {
  decide_inference();
  doubt_ = {};
  if (!manual_) {
    manual_ = true;
    lead_ = Lead::none;
  }
  release(false);
  const bool in_module = !outermost() && top()->role == Role::forward;
  if (in_module || !envelope_.active()) {
    interrupt(now, false);
    boundary(now);
    resume(now);
  } else {
    settle_forward();
    boundary(now);
  }
  last_ = now;
}

void Machine::close_out() noexcept {
  decide_inference();
  doubt_ = {};
  settle_forward();
  release(false);
  const bool whole =
      manual_ ? last_ > step_start_ && (backwards_ > 0 || updates_ > 0 || forward_in_step_)
              : step_infers_ || updates_ > 0 || (updates_invisible_ && backwards_ > 0);
  if (step_open_ && whole) end_step(last_);
  step_open_ = false;
  updates_ = lead_updates_ = backwards_ = 0;
  depth_ = 0;
  ++epoch_;
  lost_forward_ = lost_optimizer_ = backward_depth_ = 0;
  ahead_ = 0;
  batch_ready_ = 0;
  forward_in_step_ = stepped_in_backward_ = false;
}

void Machine::finish() noexcept {
  close_out();
  number_ = inference_number_ = 0;
  manual_ = false;
  // The loop may have been broken off and another be recorded next. A loader that comes back leads
  // at once, because it is known to feed training.
  lead_ = Lead::none;
  lead_optimizer_ = other_optimizer_ = 0;
  other_updates_ = 0;
}

void Machine::hand_over() noexcept { close_out(); }

void Machine::emit(Name name, std::uint64_t start, std::uint64_t end) noexcept {
  emit(name, start, end, current_step());
}

void Machine::emit(Name name, std::uint64_t start, std::uint64_t end, std::uint32_t step) noexcept {
  // An optimizer's pieces are emitted as they end, so whatever was emitted before is not theirs,
  // also where an exception has hidden the end of a call inside.
  if (name == Name::optimizer && start < latest_end_) start = latest_end_;
  if (end <= start) return;
  const bool step_itself = name == Name::step || name == Name::inference_step;
  if (!step_itself && end > latest_end_) latest_end_ = end;
  // A module's first call may be a trial run before the loop; a backward pass makes a step of it.
  const bool trial = lead_ == Lead::module && completed_ == 0 && backwards_ == 0 && !inference_;
  const bool before = step == number_ && end <= step_start_;
  if (!step_itself && (trial || before) && !manual_) step = ring::kNone;
  sink_.take(sink_.context, Span{start, end, name, step});
}

void Machine::hold(Pending::What what, std::uint64_t key, std::uint64_t start,
                   std::uint64_t end) noexcept {
  if (pending_count_ == pending_.size()) {
    emit(pending_[0].what == Pending::What::evaluation ? Name::eval : Name::dataloader,
         pending_[0].start, pending_[0].end);
    for (std::size_t i = 1; i < pending_count_; ++i) pending_[i - 1] = pending_[i];
    --pending_count_;
    if (doubt_.pending > 0) --doubt_.pending;
  }
  if (end > latest_end_) latest_end_ = end;
  pending_[pending_count_++] = Pending{what, key, start, end};
}

bool Machine::holds(Pending::What what) const noexcept {
  for (std::size_t i = 0; i < pending_count_; ++i) {
    if (pending_[i].what == what) return true;
  }
  return false;
}

// evaluation: loaders that are not known yet turned out to feed evaluation.
void Machine::release(std::size_t first, bool evaluation) noexcept {
  for (std::size_t i = 0; i < first; ++i) {
    const Pending& pending = pending_[i];
    const Use purpose = use(pending.key);
    const bool eval_fetch =
        !inference_ && (purpose == Use::evaluation || (purpose == Use::unknown && evaluation));
    const Name name = pending.what == Pending::What::evaluation ? Name::eval
                      : eval_fetch                              ? Name::eval_dataloader
                                                                : Name::dataloader;
    emit(name, pending.start, pending.end);
  }
  for (std::size_t i = first; i < pending_count_; ++i) pending_[i - first] = pending_[i];
  pending_count_ -= first;
}

}  // namespace haiprof::phase

// The stack of open calls: which tokens count, and what each does when it closes.
#include "phase/machine.h"

namespace haiprof::phase {
namespace {

bool is_call(Kind kind) noexcept { return kind == Kind::forward || kind == Kind::compiled; }

}  // namespace

Token Machine::open(Kind kind, std::uint64_t now, std::uint64_t key, bool gradients,
                    std::uint32_t calls) noexcept {
  if (depth_ == kDepth) {
    if (is_call(kind)) ++lost_forward_;
    if (kind == Kind::optimizer) ++lost_optimizer_;
    return 0;
  }
  Frame frame{kind, Role::silent, Inside::nothing, gradients, calls, key, now, now};
  opened(frame);
  frames_[depth_++] = frame;
  return epoch_ << 8 | static_cast<Token>(depth_);
}

void Machine::close(Token token, std::uint64_t now, End end, std::uint64_t key) noexcept {
  const std::size_t depth = token & 0xFF;
  if (depth == 0 || token >> 8 != (epoch_ & 0xFFFFFF) || depth > depth_) return;
  close_at(depth - 1, now, end, key);
}

void Machine::close_forward(std::uint64_t now) noexcept {
  if (lost_forward_ > 0) {
    --lost_forward_;
    return;
  }
  const std::size_t index = innermost(false);
  if (index < depth_) close_at(index, now, End::done, 0);
}

bool Machine::close_optimizer(std::uint64_t now, End end, std::uint32_t& calls) noexcept {
  if (lost_optimizer_ > 0) {
    --lost_optimizer_;
    return false;
  }
  const std::size_t index = innermost(true);
  if (index >= depth_) return false;
  calls = frames_[index].calls;
  close_at(index, now, end, 0);
  return true;
}

// The call of a kind that carries no token which can have ended. Others of such a kind above it may
// have lost their ends; a call with a token is still running, and so is what is below it.
std::size_t Machine::innermost(bool optimizer) const noexcept {
  for (std::size_t i = depth_; i-- > 0;) {
    const Kind kind = frames_[i].kind;
    if (optimizer ? kind == Kind::optimizer : is_call(kind)) return i;
    if (kind != Kind::optimizer && !is_call(kind)) break;
  }
  return kDepth;
}

bool Machine::in_backward_since(std::uint64_t then) const noexcept {
  for (std::size_t i = 0; i < depth_; ++i) {
    if (frames_[i].inside == Inside::backward) return frames_[i].start <= then;
  }
  return false;
}

void Machine::close_at(std::size_t index, std::uint64_t now, End end, std::uint64_t key) noexcept {
  for (std::size_t i = index + 1; i < depth_; ++i) {
    if (frames_[i].inside == Inside::backward) --backward_depth_;
  }
  bool left_open = false;
  while (depth_ > index + 1) {
    const Frame& inner = frames_[--depth_];
    if (inner.role == Role::silent) continue;
    frames_[index].piece = inner.start;
    left_open = true;
  }
  if (left_open) settle_forward();
  Frame frame = frames_[index];
  if (key != 0) frame.key = key;
  depth_ = index;
  closed(frame, now, end);
  last_ = now;
}

void Machine::opened(Frame& frame) noexcept {
  const Inside around = outermost() ? Inside::normal : frames_[depth_ - 1].inside;
  if (around == Inside::nothing) return;
  // A compiled function that takes no gradients is a part of the optimizer (Muon's, say) or of the
  // custom backward that calls it. With gradients it is a closure's forward, or a recomputation.
  if (frame.kind == Kind::compiled && !frame.gradients && around != Inside::normal) return;
  if (around == Inside::backward) {
    switch (frame.kind) {
      case Kind::forward:
      case Kind::compiled:
        frame.role = Role::recompute;
        return;
      case Kind::backward:  // a re-entrant checkpoint
        ++backward_depth_;
        frame.inside = Inside::backward;
        return;
      case Kind::optimizer:
      case Kind::scaler:
        frame.role = Role::update_in_backward;
        return;
      default:
        return;
    }
  }
  if (is_call(frame.kind) && !outermost() && top()->role == Role::forward) {
    frame.inside = around;  // a part of the call around it
    return;
  }
  switch (frame.kind) {
    case Kind::iterate:
    case Kind::fetch:
      return open_fetch(frame);
    case Kind::forward:
    case Kind::compiled:
      return open_forward(frame);
    case Kind::backward:
      return open_backward(frame);
    case Kind::optimizer:
    case Kind::scaler:
      frame.inside = Inside::updating;
      if (around != Inside::updating) open_update(frame);
      return;
    case Kind::zero:
    case Kind::own:
      return open_aside(frame);
  }
}

void Machine::closed(const Frame& frame, std::uint64_t now, End end) noexcept {
  if (frame.inside == Inside::backward) --backward_depth_;
  switch (frame.role) {
    case Role::silent:
      return;
    case Role::iterate:
      close_iterate(frame, now);
      break;
    case Role::fetch:
      close_fetch(frame, now, end);
      break;
    case Role::forward:
      envelope_.module_returned(now);
      return;
    case Role::inference:
      emit(Name::forward, frame.start, now);
      return;
    case Role::evaluation:
      // Before the first step a teacher's call looks like evaluation, too.
      if (!step_open_ && pending_count_ > 0) {
        hold(Pending::What::evaluation, frame.key, frame.start, now);
      } else {
        emit(Name::eval, frame.start, now);
      }
      break;
    case Role::recompute:
      emit(Name::recompute, frame.start, now);
      return;
    case Role::update_in_backward:
      if (end != End::raised) stepped_in_backward_ = true;
      return;
    case Role::zero:
    case Role::own:
      if (batch_ready_ != 0) {
        if (aside_from_ <= batch_ready_) aside_from_ = frame.start;
        aside_until_ = now;
      }
      emit(frame.role == Role::zero ? Name::optimizer : Name::deep_trace, frame.start, now);
      break;
    case Role::backward:
      emit(Name::backward, frame.start, now);
      if (stepped_in_backward_) count_update(kAnyOptimizer);
      stepped_in_backward_ = false;
      break;
    case Role::update: {
      const std::uint64_t forward_end = envelope_.settle(forward_emitter());
      emit(Name::optimizer, forward_end != 0 ? forward_end : frame.piece, now);
      release(false);
      batch_ready_ = 0;
      if (end != End::raised) count_update(frame.key);
      break;
    }
  }
  resume(now);
}

void Machine::open_fetch(Frame& frame) noexcept {
  frame.role = frame.kind == Kind::iterate ? Role::iterate : Role::fetch;
  loaders_.next_fetch();
  // A new iterator ends the use of a batch that was only looked at; what evaluation left behind and
  // the end of a loader are settled by whatever is fetched next.
  bool settled = frame.kind == Kind::iterate && holds(Pending::What::batch);
  for (std::size_t i = 0; i < pending_count_; ++i) {
    const Pending& pending = pending_[i];
    settled = settled || pending.what == Pending::What::end ||
              pending.what == Pending::What::evaluation ||
              (pending.what == Pending::What::batch && use(pending.key) != Use::unknown);
  }
  if (settled && !inference_) release(false);
  batch_ready_ = 0;
  interrupt(frame.start, true);
}

void Machine::open_forward(Frame& frame) noexcept {
  note_call_without_backward(frame.gradients);
  batch_ready_ = 0;
  if (inference_) {
    infer(frame);
  } else if (!frame.gradients) {
    if (!holds(Pending::What::batch)) release(false);
    frame.role = Role::evaluation;
    loaders_.called_without_gradients();
  } else {
    frame.role = Role::forward;
    training_seen();
  }
  if (frame.role == Role::inference) return;
  if (frame.role == Role::evaluation) {
    interrupt(frame.start, false);
    return;
  }
  frame.inside = outermost() ? Inside::normal : top()->inside;
  if (outermost() && !manual_ && !inference_) {
    if (lead_ == Lead::module && lead_key_ == frame.key) {
      if (may_end()) settle_forward();
      leader_recurs(frame.start);
    } else if (lead_ == Lead::none || (lead_ < Lead::module && completed_ == 0)) {
      lead(Lead::module, frame.key, frame.start);
    }
  }
  forward_in_step_ = true;
  if (envelope_.active()) {
    envelope_.module_called(frame.start, current_step(), forward_emitter());
    return;
  }
  interrupt(frame.start, false);
  envelope_.begin(frame.start, current_step());
}

void Machine::open_backward(Frame& frame) noexcept {
  frame.role = Role::backward;
  frame.inside = Inside::backward;
  ++backward_depth_;
  leave_inference();
  training_seen();
  if (outermost() && !manual_) {
    if (lead_ == Lead::backward) {
      leader_recurs(frame.start);
    } else if (lead_ == Lead::none || (lead_ < Lead::backward && completed_ == 0)) {
      lead(Lead::backward, 0, frame.start);
    }
  }
  ++backwards_;
  if (ahead_ > 0) --ahead_;
  if (envelope_.active()) {
    envelope_.close(frame.start, forward_emitter());
  } else {
    if (outermost() && batch_ready_ != 0) {
      const bool divided = aside_from_ > batch_ready_;
      if (divided) emit(Name::forward, batch_ready_, aside_from_);
      emit(Name::forward, divided ? aside_until_ : batch_ready_, frame.start);
    }
    interrupt(frame.start, false);
  }
  batch_ready_ = 0;
}

void Machine::open_update(Frame& frame) noexcept {
  frame.role = Role::update;
  leave_inference();
  if (outermost() && !manual_) {
    if (lead_ == Lead::optimizer && lead_key_ == frame.key) {
      leader_recurs(frame.start);
    } else if (lead_ == Lead::none) {
      lead(Lead::optimizer, frame.key, frame.start);
    }
  }
  if (!outermost() && top()->role == Role::forward) {
    interrupt(frame.start, false);
  } else {
    settle_forward();
  }
  batch_ready_ = 0;
}

// What runs in the middle of a phase and is none of it.
void Machine::open_aside(Frame& frame) noexcept {
  const bool own = frame.kind == Kind::own;
  // The optimizer's own, where nothing else of the step runs inside it.
  if (!own && !envelope_.active() && update_around() != nullptr) return;
  frame.role = own ? Role::own : Role::zero;
  interrupt(frame.start, false);
}

void Machine::close_iterate(const Frame& frame, std::uint64_t now) noexcept {
  if (leads(frame.key)) {
    ahead_ = 0;
  } else if (lead_ == Lead::loader && same_dataset(frame.key, lead_key_)) {
    lead_ended_ = true;
  }
  if (frame.gradients || inference_) {
    hold(Pending::What::iterate, frame.key, frame.start, now);
  } else {
    emit(Name::eval_dataloader, frame.start, now);
  }
}

void Machine::close_fetch(const Frame& frame, std::uint64_t now, End end) noexcept {
  if (end == End::done) return close_batch(frame, now);
  // Whoever infers with gradients has come to the end of the data.
  if (end == End::exhausted && infers_with_gradients_ && doubt_.calls > 0) decide_inference();
  if (doubt_.from != 0) {
    if (end == End::exhausted && leads(frame.key)) lead_ended_ = true;
    return hold(Pending::What::iterate, frame.key, frame.start, now);
  }
  release(false);
  if (end == End::exhausted && leads(frame.key)) {
    lead_ended_ = true;
    // A loop that fetches ahead still has a batch in hand: the next forward decides.
    if (in_loop() && ahead_ > 0 && may_end()) {
      return hold(Pending::What::end, frame.key, frame.start, now);
    }
  }
  emit(feeds_evaluation(frame) ? Name::eval_dataloader : Name::dataloader, frame.start, now);
}

void Machine::close_batch(const Frame& frame, std::uint64_t now) noexcept {
  if (inference_) return infer_batch(frame, now);
  if (feeds_evaluation(frame)) {
    release(true);
    emit(Name::eval_dataloader, frame.start, now);
    // Without gradients even the training loader may be read for evaluation: that teaches nothing.
    if (frame.gradients) loaders_.batch(frame.key);
    return;
  }
  const Use purpose = use(frame.key);
  if (in_loop() && !manual_) {
    // The start-up of the loaders belongs to the step whose first batch follows it directly.
    bool follows_iterate = pending_count_ > 0;
    for (std::size_t i = 0; i < pending_count_; ++i) {
      follows_iterate = follows_iterate && pending_[i].what == Pending::What::iterate;
    }
    const std::uint64_t from = follows_iterate ? pending_[0].start : frame.start;
    if (leads(frame.key)) {
      lead_ended_ = false;
      leader_recurs(from);
    } else if (loader_may_lead() && purpose == Use::training) {
      lead(Lead::loader, frame.key, from);
    }
  }
  if (leads(frame.key)) ++ahead_;
  loaders_.batch(frame.key);
  batch_ready_ = in_loop() ? now : 0;
  if (purpose == Use::unknown) {
    hold(Pending::What::batch, frame.key, frame.start, now);
    return;
  }
  release(false);
  emit(Name::dataloader, frame.start, now);
}

// Whatever feeds the leader's steps is training data, even where a batch is only evaluated.
Use Machine::use(std::uint64_t key) const noexcept {
  return leads(key) ? Use::training : loaders_.use(key);
}

bool Machine::feeds_evaluation(const Frame& frame) const noexcept {
  return !inference_ && (!frame.gradients || use(frame.key) == Use::evaluation);
}

void Machine::interrupt(std::uint64_t now, bool fetch) noexcept {
  if (envelope_.active()) {
    const bool in_module = !outermost() && top()->role == Role::forward;
    envelope_.interrupt(now, in_module, fetch, forward_emitter());
  } else if (const Frame* update = update_around()) {
    emit(Name::optimizer, update->piece, now);
  }
}

void Machine::resume(std::uint64_t now) noexcept {
  if (envelope_.active()) {
    envelope_.resume(now, current_step());
  } else if (Frame* update = update_around()) {
    update->piece = now;
  } else if (!outermost() && top()->role == Role::forward) {
    // A gradient was taken inside a module (forces, penalties): the module goes on.
    envelope_.begin(now, current_step());
  }
}

void Machine::settle_forward() noexcept {
  const std::uint64_t last = envelope_.settle(forward_emitter());
  Frame* const update = update_around();
  if (last != 0 && update != nullptr) update->piece = last;
}

// The optimizer step whose own time runs now; one inside another is a part of it.
Machine::Frame* Machine::update_around() noexcept {
  for (std::size_t i = depth_; i-- > 0 && frames_[i].inside == Inside::updating;) {
    if (frames_[i].role == Role::update) return &frames_[i];
    if (frames_[i].role == Role::forward) return nullptr;
  }
  return nullptr;
}

}  // namespace haiprof::phase

// The forward phase: from the first module call to the backward pass, without what ran in between.
//
//   F(  F)  loss  F(  F)  B(            F(  F)  D(  D)  B(            F(  F)  logging  D(
//   ├────── forward ──────┤             ├─ forward ┤    ├┤            ├────┤
//
// Whether the time after a module's return belongs to the forward pass is known only when the
// backward pass begins (it does: that is the loss) or something else does (it does not). So the
// pieces since the last module call are kept until then.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace haiprof::phase {

class Envelope {
 public:
  bool active() const noexcept { return state_ != State::idle; }
  bool interrupted() const noexcept { return state_ == State::interrupted; }

  void begin(std::uint64_t now, std::uint32_t step) noexcept {
    state_ = State::running;
    fetched_ = false;
    count_ = 0;
    now_ = {now, now, now, step};
  }

  // What was kept belongs to this step.
  void renumber(std::uint32_t step) noexcept {
    now_.step = step;
    for (std::size_t i = 0; i < count_; ++i) kept_[i].step = step;
  }

  void module_returned(std::uint64_t now) noexcept {
    if (state_ == State::running) now_.sure = now;
  }

  // Another token opens. in_module: a module call is still open around it.
  template <typename Emit>
  void interrupt(std::uint64_t now, bool in_module, bool fetch, Emit&& emit) noexcept {
    if (state_ != State::running) return;
    if (in_module) now_.sure = now;
    now_.end = now;
    if (count_ == kept_.size()) {
      emit(kept_[0].start, kept_[0].sure, kept_[0].step);
      for (std::size_t i = 1; i < count_; ++i) kept_[i - 1] = kept_[i];
      --count_;
    }
    kept_[count_++] = now_;
    fetched_ = fetched_ || fetch;
    state_ = State::interrupted;
  }

  void resume(std::uint64_t now, std::uint32_t step) noexcept {
    if (state_ != State::interrupted) return;
    now_ = {now, now, now, step};
    state_ = State::running;
  }

  // A module call opens: what lies between two module calls is forward, unless a batch was fetched
  // in between; then it is the next forward that begins.
  template <typename Emit>
  void module_called(std::uint64_t now, std::uint32_t step, Emit&& emit) noexcept {
    if (state_ == State::running && !fetched_) {
      for (std::size_t i = 0; i < count_; ++i) emit(kept_[i].start, kept_[i].end, kept_[i].step);
      count_ = 0;
      return;
    }
    settle(emit);
    begin(now, step);
  }

  // The backward pass begins: everything up to here was forward.
  template <typename Emit>
  void close(std::uint64_t now, Emit&& emit) noexcept {
    if (state_ == State::running) {
      for (std::size_t i = 0; i < count_; ++i) emit(kept_[i].start, kept_[i].end, kept_[i].step);
      emit(now_.start, now, now_.step);
      state_ = State::idle;
      return;
    }
    settle(emit);
  }

  // No backward pass comes: forward ended with the last module's return, which is returned.
  template <typename Emit>
  std::uint64_t settle(Emit&& emit) noexcept {
    std::uint64_t last = 0;
    if (state_ == State::idle) return last;
    for (std::size_t i = 0; i < count_; ++i) {
      emit(kept_[i].start, kept_[i].sure, kept_[i].step);
      last = kept_[i].sure;
    }
    if (state_ == State::running) {
      emit(now_.start, now_.sure, now_.step);
      last = now_.sure;
    }
    state_ = State::idle;
    return last;
  }

  void drop() noexcept { state_ = State::idle; }

 private:
  enum class State : std::uint8_t { idle, running, interrupted };
  struct Piece {
    std::uint64_t start;
    std::uint64_t sure;  // forward for certain up to here
    std::uint64_t end;
    std::uint32_t step;
  };

  State state_ = State::idle;
  bool fetched_ = false;
  std::size_t count_ = 0;
  Piece now_{};
  std::array<Piece, 4> kept_{};
};

}  // namespace haiprof::phase

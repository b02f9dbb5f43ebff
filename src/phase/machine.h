// The step machine: turns the tokens of one thread into steps and phases.
//
//   D( D)  F( F)  B( B)  O( O)  D( D)  F( …
//   ├─────────── step 0 ───────────┤├── step 1 …
//
// A step ends when its leader comes round again and an optimizer has stepped in between. The leader
// is the loader whose batches are trained on; without one, the first module called with gradients;
// without that, the backward pass. docs/phases.md has the whole rule and what it cannot see.
//
// It knows no thread, no clock and no Python, allocates nothing and cannot fail. A call that ended
// without a closing token (an exception) is dropped when the call around it closes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "phase/envelope.h"
#include "phase/loaders.h"
#include "phase/span.h"

namespace haiprof::phase {

// Returned by open(), passed to close(); 0 when nothing was opened.
using Token = std::uint32_t;

class Machine {
 public:
  explicit Machine(Sink sink) noexcept : sink_(sink) {}

  // key: the loader, module or optimizer. gradients: whether they are enabled.
  // calls: the caller's count of open module calls, kept for close_optimizer().
  Token open(Kind kind, std::uint64_t now, std::uint64_t key, bool gradients,
             std::uint32_t calls = 0) noexcept;
  // key: of a loader, which is known only now when its iterator was made by the call.
  void close(Token token, std::uint64_t now, End end, std::uint64_t key = 0) noexcept;

  // For calls that are seen through callbacks and carry no token: the innermost one ends. The first
  // is for modules and compiled functions.
  void close_forward(std::uint64_t now) noexcept;
  // False when no such call is open; else calls is what open() was given.
  bool close_optimizer(std::uint64_t now, End end, std::uint32_t& calls) noexcept;

  // An optimizer stepped on another thread while this one is in its backward pass.
  void stepped_in_backward() noexcept { stepped_in_backward_ = true; }

  // A loop that was left early dropped its iterator: the next loader may take over.
  void drop_loader(std::uint64_t key) noexcept {
    if (leads(key)) lead_ended_ = true;
  }

  // The user's own step boundary. From the first one on, no other ends a step.
  void mark(std::uint64_t now) noexcept;

  // Emits what is still open and whole. The next token begins at step 0 again; what was learned
  // about leader and loaders stays.
  void finish() noexcept;

  // Like finish(), but counts on: another thread takes over.
  void hand_over() noexcept;

  void reset() noexcept {
    const std::uint32_t epoch = epoch_;
    *this = Machine(sink_);
    epoch_ = epoch + 1;
  }

  // With ring::kInference in an inference step.
  std::uint32_t current_step() const noexcept;
  // False while a loader leads the training: then no key of a module is looked at.
  bool wants_modules() const noexcept { return lead_ != Lead::loader || inference_; }
  bool in_forward() const noexcept { return envelope_.active(); }
  bool in_backward() const noexcept { return backward_depth_ != 0; }
  // Whether the backward pass that runs now was running at that time already.
  bool in_backward_since(std::uint64_t then) const noexcept;
  // Steps of either kind that have ended.
  std::uint64_t completed() const noexcept { return completed_ + inferred_; }

 private:
  // The effect of a frame when it closes.
  enum class Role : std::uint8_t {
    silent,
    iterate,
    fetch,
    forward,
    inference,
    evaluation,
    recompute,
    backward,
    update,
    update_in_backward,
    zero,
    own,
  };
  // How tokens inside a frame are taken.
  enum class Inside : std::uint8_t { normal, updating, backward, nothing };

  struct Frame {
    Kind kind;
    Role role;
    Inside inside;
    bool gradients;
    std::uint32_t calls;
    std::uint64_t key;
    std::uint64_t start;
    std::uint64_t piece;  // where the optimizer's present piece began
  };

  // In rising order: a better one replaces a worse one until a step is complete.
  enum class Lead : std::uint8_t { none, optimizer, backward, module, loader };

  // A span of which the next token decides what it was.
  struct Pending {
    enum class What : std::uint8_t { iterate, batch, end, evaluation } what;
    std::uint64_t key;
    std::uint64_t start;
    std::uint64_t end;
  };

  // Calls in inference mode which may turn out to be the first of the training: a backward pass
  // makes them a part of step 0, the next call an inference step.
  struct Doubt {
    std::uint64_t from = 0;         // where that step would begin; 0: there is no doubt
    std::uint64_t key = 0;          // the first module called with gradients
    std::size_t pending = 0;        // how many of pending_ belong to it
    std::uint32_t calls = 0;        // outermost ones, since the first with gradients
    bool begins_inference = false;  // else what was inferred goes on
  };

  std::size_t innermost(bool optimizer) const noexcept;
  void opened(Frame& frame) noexcept;
  void closed(const Frame& frame, std::uint64_t now, End end) noexcept;
  void close_at(std::size_t index, std::uint64_t now, End end, std::uint64_t key) noexcept;

  void open_fetch(Frame& frame) noexcept;
  void open_forward(Frame& frame) noexcept;
  void open_backward(Frame& frame) noexcept;
  void open_update(Frame& frame) noexcept;
  void open_aside(Frame& frame) noexcept;
  void close_iterate(const Frame& frame, std::uint64_t now) noexcept;
  void close_fetch(const Frame& frame, std::uint64_t now, End end) noexcept;
  void close_batch(const Frame& frame, std::uint64_t now) noexcept;

  // Splitting what runs around a token.
  void interrupt(std::uint64_t now, bool fetch) noexcept;
  void resume(std::uint64_t now) noexcept;
  void settle_forward() noexcept;
  Frame* update_around() noexcept;

  // Steps.
  void training_seen() noexcept;
  void count_update(std::uint64_t optimizer) noexcept;
  bool may_end() const noexcept;
  bool loader_may_lead() const noexcept;
  void lead(Lead kind, std::uint64_t key, std::uint64_t from) noexcept;
  void leader_recurs(std::uint64_t at) noexcept;
  void boundary(std::uint64_t at) noexcept;
  void open_step(std::uint64_t at) noexcept;
  void close_out() noexcept;
  void end_step(std::uint64_t at) noexcept;

  // Inference.
  void note_call_without_backward(bool gradients) noexcept;
  void infer(Frame& frame) noexcept;
  void infer_batch(const Frame& frame, std::uint64_t now) noexcept;
  void decide_inference() noexcept;
  void leave_inference() noexcept;

  // Spans.
  void emit(Name name, std::uint64_t start, std::uint64_t end) noexcept;
  void emit(Name name, std::uint64_t start, std::uint64_t end, std::uint32_t step) noexcept;
  auto forward_emitter() noexcept {
    return [this](std::uint64_t start, std::uint64_t end, std::uint32_t step) noexcept {
      emit(Name::forward, start, end, step);
    };
  }
  void hold(Pending::What what, std::uint64_t key, std::uint64_t start, std::uint64_t end) noexcept;
  bool holds(Pending::What what) const noexcept;
  void release(bool evaluation) noexcept { release(pending_count_, evaluation); }
  void release(std::size_t first, bool evaluation) noexcept;

  Use use(std::uint64_t key) const noexcept;
  bool feeds_evaluation(const Frame& frame) const noexcept;
  bool leads(std::uint64_t loader) const noexcept {
    return lead_ == Lead::loader && lead_key_ == loader;
  }

  bool outermost() const noexcept { return depth_ == 0; }
  // Nothing but optimizer steps around: a closure may hold the whole body of the loop.
  bool in_loop() const noexcept {
    for (std::size_t i = 0; i < depth_; ++i) {
      if (frames_[i].inside != Inside::updating) return false;
    }
    return true;
  }
  Frame* top() noexcept { return depth_ == 0 ? nullptr : &frames_[depth_ - 1]; }

  static constexpr std::size_t kDepth = 32;
  static constexpr std::uint64_t kAnyOptimizer = ~0ULL;

  Sink sink_;
  std::array<Frame, kDepth> frames_{};
  std::size_t depth_ = 0;
  std::uint32_t epoch_ = 1;  // makes tokens from before a finish() or reset() worthless
  std::uint32_t lost_forward_ = 0;
  std::uint32_t lost_optimizer_ = 0;
  std::uint32_t backward_depth_ = 0;

  Envelope envelope_;
  Loaders loaders_;
  std::array<Pending, 8> pending_{};
  std::size_t pending_count_ = 0;
  std::uint64_t batch_ready_ = 0;  // end of the newest training fetch, until something used it
  std::uint64_t aside_from_ = 0;   // since then: what ran in between and is no forward
  std::uint64_t aside_until_ = 0;
  std::uint64_t latest_end_ = 0;  // the latest end of a phase that was emitted or kept back
  std::uint64_t last_ = 0;        // the newest closing token

  Lead lead_ = Lead::none;
  std::uint64_t lead_key_ = 0;
  bool lead_ended_ = false;  // its loader is exhausted or replaced: another may take over
  std::uint32_t ahead_ = 0;  // the leader's batches that no backward pass has used yet
  std::uint64_t lead_optimizer_ = 0;
  // Since the lead optimizer stepped: the first other one that did, and how often.
  std::uint64_t other_optimizer_ = 0;
  std::uint32_t other_updates_ = 0;

  bool manual_ = false;
  bool inference_ = false;
  bool trained_ = false;  // a backward pass or an update was seen
  bool update_seen_ = false;
  bool updates_invisible_ = false;
  std::uint32_t calls_without_backward_ = 0;
  bool infers_with_gradients_ = false;  // so far as it is known
  Doubt doubt_;
  std::uint32_t cycles_without_update_ = 0;

  bool step_open_ = false;
  bool step_infers_ = false;
  std::uint32_t number_ = 0;  // of the step that trains, or of the next one
  std::uint32_t inference_number_ = 0;
  std::uint64_t step_start_ = 0;
  std::uint32_t updates_ = 0;
  std::uint32_t lead_updates_ = 0;
  std::uint32_t backwards_ = 0;
  bool forward_in_step_ = false;
  bool stepped_in_backward_ = false;
  std::uint64_t completed_ = 0;  // steps that trained
  std::uint64_t inferred_ = 0;
};

}  // namespace haiprof::phase

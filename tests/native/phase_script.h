// Runs the step machine on a loop written as text, and returns its steps as text.
//
// A script is a row of words, one unit of time apart:
//
//   I D     DataLoader.__iter__, next()        F C     call of a module, of a compiled function
//   i d     the same without gradients         f c     the same without gradients
//   B O S   backward, Optimizer.step, GradScaler.step      Z  Optimizer.zero_grad
//   H       haiprof's own work
//
//   followed by a key (one letter, optional; of a loader "a1" is loader a of data set 1) and by
//   (  the call opens    )  it returns    $  it ends in StopIteration    !  it raises
//
//   |   the user's own step boundary      .  nothing happens      &  an optimizer elsewhere
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "phase/machine.h"

namespace haiprof::test {

class Script {
 public:
  Script() : machine_(phase::Sink{&Script::take, this}) {}

  Script& run(const std::string& words) {
    std::istringstream in(words);
    for (std::string word; in >> word; ++now_) play(word);
    return *this;
  }

  Script& run(int times, const std::string& words) {
    for (int i = 0; i < times; ++i) run(words);
    return *this;
  }

  // One line a step: "0 [0,9) backward=1 dataloader=1 …". Inference steps follow as "i0", …; spans
  // outside any step come last, as "-".
  // first, last: the steps to return, counted from 0; negative from the end.
  std::string steps(int first = 0, int last = -1) {
    machine_.finish();
    std::map<std::uint32_t, std::map<std::string, std::uint64_t>> sums;
    std::map<std::uint32_t, std::string> bounds;
    for (const phase::Span& span : spans_) {
      if (is_step(span)) {
        std::ostringstream text;
        text << "[" << span.start - kOrigin << "," << span.end - kOrigin << ")";
        bounds[span.step] = text.str();
        sums[span.step];
      } else {
        sums[span.step][phase::kNames[static_cast<std::size_t>(span.name)]] +=
            span.end - span.start;
      }
    }
    std::vector<std::string> lines;
    std::string outside;
    for (const auto& [step, names] : sums) {
      std::ostringstream line;
      if (step == ring::kNone) {
        line << "-";
      } else {
        line << (step & ring::kInference ? "i" : "") << (step & ~ring::kInference);
      }
      if (bounds.contains(step)) line << " " << bounds[step];
      for (const auto& [name, sum] : names) line << " " << name << "=" << sum;
      if (step == ring::kNone) {
        outside = line.str();
      } else {
        lines.push_back(line.str());
      }
    }
    const int count = static_cast<int>(lines.size());
    if (first < 0) first += count;
    if (last < 0) last += count;
    std::string selected;
    for (int i = std::max(first, 0); i <= last && i < count; ++i)
      selected += lines[static_cast<std::size_t>(i)] + "\n";
    if (!outside.empty() && first == 0) selected += outside + "\n";
    return selected;
  }

  // The number of whole steps of the training, or of inference.
  std::size_t count(phase::Name name = phase::Name::step) {
    machine_.finish();
    return static_cast<std::size_t>(std::count_if(
        spans_.begin(), spans_.end(), [name](const auto& s) { return s.name == name; }));
  }
  std::size_t inferences() { return count(phase::Name::inference_step); }

  // Steps count up by one and may touch but never overlap.
  bool in_order() {
    machine_.finish();
    std::uint32_t number = 0;
    std::uint32_t inference = ring::kInference;
    std::uint64_t end = 0;
    for (const phase::Span& s : spans_) {
      if (!is_step(s)) continue;
      std::uint32_t& expected = s.name == phase::Name::step ? number : inference;
      if (s.step != expected || s.start < end || s.end <= s.start) return false;
      ++expected;
      end = s.end;
    }
    return true;
  }

  // Phases of one thread may touch but never overlap; its recompute lies inside backward.
  bool disjoint() {
    machine_.finish();
    std::vector<std::pair<std::uint64_t, std::uint64_t>> all;
    for (const phase::Span& s : spans_) {
      if (!is_step(s) && s.name != phase::Name::recompute) {
        all.emplace_back(s.start, s.end);
      }
    }
    std::sort(all.begin(), all.end());
    for (std::size_t i = 1; i < all.size(); ++i) {
      if (all[i].first < all[i - 1].second) return false;
    }
    return true;
  }

  phase::Machine& machine() { return machine_; }

 private:
  static constexpr std::uint64_t kOrigin = 1000;

  static bool is_step(const phase::Span& span) {
    return span.name == phase::Name::step || span.name == phase::Name::inference_step;
  }

  static void take(void* self, const phase::Span& span) noexcept {
    static_cast<Script*>(self)->spans_.push_back(span);
  }

  void play(const std::string& word) {
    const std::uint64_t now = kOrigin + now_;
    const char what = word[0];
    if (what == '.') return;
    if (what == '|') return machine_.mark(now);
    if (what == '&') return machine_.stepped_in_backward();
    const char how = word.back();
    const std::string name = word.substr(1, word.size() - 2);
    const bool is_loader = std::string("IiDd").find(what) != std::string::npos;
    const std::uint64_t letter = name.empty() ? 'x' : static_cast<unsigned char>(name[0]);
    const std::uint64_t key =
        is_loader ? phase::loader_key(
                        letter, name.size() > 1 ? static_cast<unsigned char>(name[1]) : letter)
                  : letter;
    const bool gradients = what >= 'A' && what <= 'Z';
    const phase::Kind kind = kind_of(what);
    const bool is_call = kind == phase::Kind::forward || kind == phase::Kind::compiled;
    if (how == '(') {
      const phase::Token token =
          machine_.open(kind, now, kind == phase::Kind::iterate ? 0 : key, gradients);
      if (!is_call && kind != phase::Kind::optimizer) {
        tokens_.push_back(token);
      }
      return;
    }
    if (is_call) return machine_.close_forward(now);
    if (kind == phase::Kind::optimizer) {
      std::uint32_t calls = 0;
      machine_.close_optimizer(now, how == '!' ? phase::End::raised : phase::End::done, calls);
      return;
    }
    const phase::Token token = tokens_.back();
    tokens_.pop_back();
    const auto end = how == ')'   ? phase::End::done
                     : how == '$' ? phase::End::exhausted
                                  : phase::End::raised;
    machine_.close(token, now, end, key);
  }

  static phase::Kind kind_of(char what) {
    switch (what) {
      case 'I':
      case 'i':
        return phase::Kind::iterate;
      case 'D':
      case 'd':
        return phase::Kind::fetch;
      case 'C':
      case 'c':
        return phase::Kind::compiled;
      case 'B':
        return phase::Kind::backward;
      case 'O':
        return phase::Kind::optimizer;
      case 'S':
        return phase::Kind::scaler;
      case 'Z':
        return phase::Kind::zero;
      case 'H':
        return phase::Kind::own;
      default:
        return phase::Kind::forward;
    }
  }

  phase::Machine machine_;
  std::vector<phase::Span> spans_;
  std::vector<phase::Token> tokens_;
  std::uint64_t now_ = 0;
};

}  // namespace haiprof::test

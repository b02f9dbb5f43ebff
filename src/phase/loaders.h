// What the machine has learned about each data loader: does it feed training or evaluation?
//
// A batch that is followed by a module call with gradients (or by a backward pass) feeds training.
// A batch that saw only calls without gradients before the next fetch feeds evaluation; the fetch
// is waited for because a teacher or a frozen encoder may run before the model does.
#pragma once

#include <array>
#include <cstdint>

namespace haiprof::phase {

enum class Use : std::uint8_t { unknown, training, evaluation };

class Loaders {
 public:
  Use use(std::uint64_t key) const noexcept {
    for (const Entry& entry : entries_) {
      if (entry.key == key) return entry.use;
    }
    return Use::unknown;
  }

  void batch(std::uint64_t key) noexcept {
    Entry& entry = of(key);
    entry.fresh = true;
    entry.tried = false;
  }

  void called_without_gradients() noexcept {
    for (Entry& entry : entries_) entry.tried = entry.tried || entry.fresh;
  }

  void trained() noexcept {
    for (Entry& entry : entries_) {
      if (entry.fresh) entry.use = Use::training;
      entry.fresh = entry.tried = false;
    }
  }

  void next_fetch() noexcept {
    for (Entry& entry : entries_) {
      if (!entry.tried) continue;
      entry.use = Use::evaluation;
      entry.fresh = entry.tried = false;
    }
  }

 private:
  struct Entry {
    std::uint64_t key = 0;
    std::uint64_t met = 0;
    Use use = Use::unknown;
    bool fresh = false;  // its last batch was not used for training yet
    bool tried = false;  // … but a module was called without gradients
  };

  Entry& of(std::uint64_t key) noexcept {
    Entry* oldest = entries_.data();
    for (Entry& entry : entries_) {
      if (entry.key == key && entry.met != 0) {
        entry.met = ++clock_;
        return entry;
      }
      if (entry.met < oldest->met) oldest = &entry;
    }
    *oldest = Entry{};
    oldest->key = key;
    oldest->met = ++clock_;
    return *oldest;
  }

  std::array<Entry, 16> entries_{};
  std::uint64_t clock_ = 0;
};

}  // namespace haiprof::phase

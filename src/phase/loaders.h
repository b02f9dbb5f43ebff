// The machine's knowledge about each data loader: does it feed training or evaluation?
//
// A batch that is followed by a module call with gradients (or by a backward pass) feeds training.
// A batch that saw only calls without gradients before the next fetch feeds evaluation; the fetch
// is waited for because a teacher or a frozen encoder may run before the model does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace haiprof::phase {

enum class Use : std::uint8_t { unknown, training, evaluation };

// A job has two or three loaders and asks at every token, so the entries are split: the keys, which
// are searched, lie together; the rest is one bit each.
class Loaders {
 public:
  Use use(std::uint64_t key) const noexcept {
    for (std::size_t i = 0; i < count_; ++i) {
      if (keys_[i] != key) continue;
      return training_ >> i & 1     ? Use::training
             : evaluation_ >> i & 1 ? Use::evaluation
                                    : Use::unknown;
    }
    return Use::unknown;
  }

  void batch(std::uint64_t key) noexcept {
    const std::uint32_t bit = 1u << place(key);
    fresh_ |= bit;
    tried_ &= ~bit;
  }

  void called_without_gradients() noexcept { tried_ |= fresh_; }

  void trained() noexcept {
    training_ |= fresh_;
    evaluation_ &= ~fresh_;
    fresh_ = tried_ = 0;
  }

  void next_fetch() noexcept {
    evaluation_ |= tried_;
    training_ &= ~tried_;
    fresh_ &= ~tried_;
    tried_ = 0;
  }

 private:
  static constexpr std::size_t kMost = 16;

  // Makes room by forgetting the loader that was met first.
  std::size_t place(std::uint64_t key) noexcept {
    for (std::size_t i = 0; i < count_; ++i) {
      if (keys_[i] == key) return i;
    }
    const std::size_t i = count_ < kMost ? count_++ : next_++ % kMost;
    const std::uint32_t others = ~(1u << i);
    training_ &= others;
    evaluation_ &= others;
    fresh_ &= others;
    tried_ &= others;
    keys_[i] = key;
    return i;
  }

  std::uint32_t training_ = 0;
  std::uint32_t evaluation_ = 0;
  std::uint32_t fresh_ = 0;  // their last batch was not used for training yet
  std::uint32_t tried_ = 0;  // … but a module was called without gradients
  std::size_t count_ = 0;
  std::size_t next_ = 0;
  std::array<std::uint64_t, kMost> keys_{};
};

}  // namespace haiprof::phase

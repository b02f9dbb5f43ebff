#include "nccl/communicators.h"

#include <algorithm>
#include <cstring>

namespace haiprof::nccl {
namespace {

std::uint32_t number_or_none(int number) noexcept {
  return number < 0 ? ring::kNone : static_cast<std::uint32_t>(number);
}

}  // namespace

void Communicator::is(std::uint64_t number, const char* name, int nodes, int ranks,
                      int rank) noexcept {
  for (char& digit : digits_) {
    digit = "0123456789abcdef"[number >> 60];
    number <<= 4;
  }
  name_bytes_ = name == nullptr ? 0 : static_cast<std::uint32_t>(strnlen(name, sizeof name_));
  std::copy_n(name, name_bytes_, name_);
  nodes_ = number_or_none(nodes);
  ranks_ = number_or_none(ranks);
  rank_ = number_or_none(rank);
  text_.forget();
  name_text_.forget();
}

Communicator* Communicators::take() noexcept {
  const auto found =
      std::find_if(all_.begin(), all_.end(), [](Communicator& each) { return each.take(); });
  return found == all_.end() ? nullptr : &*found;
}

}  // namespace haiprof::nccl

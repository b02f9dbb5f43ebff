#include "mutation.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace haiprof::fuzz {
namespace {

// Numbers at which arithmetic goes wrong.
std::uint64_t odd_number(std::mt19937_64& dice) {
  const std::uint64_t power = std::uint64_t{1} << (dice() % 64);
  switch (dice() % 5) {
    case 0:
      return power;
    case 1:
      return power - 1;
    case 2:
      return std::uint64_t{0} - power;
    case 3:
      return dice() % 256;
    default:
      return dice();
  }
}

void put_number(std::string& input, std::size_t at, std::mt19937_64& dice) {
  const std::size_t width = std::size_t{1} << (dice() % 4);
  at = at / width * width;
  if (at + width > input.size()) return;
  std::uint64_t number = 0;
  if (dice() % 3 == 0) {
    std::memcpy(&number, input.data() + at, width);
    number += dice() % 33 - 16;
  } else {
    number = odd_number(dice);
  }
  std::memcpy(input.data() + at, &number, width);
}

void change(std::string& input, const std::string& other, std::size_t dense,
            std::mt19937_64& dice) {
  if (input.empty()) return;
  const bool near = dense != 0 && dice() % 2 == 0;
  const std::size_t at = dice() % (near ? std::min(dense, input.size()) : input.size());
  switch (dice() % 16) {
    case 0:
      input.resize(at);
      break;
    case 1:
      input.erase(at, 1 + dice() % 64);
      break;
    case 2:
      input.insert(at, other.substr(dice() % std::max<std::size_t>(other.size(), 1), 64));
      break;
    case 3:
      input.replace(at, 64, input.substr(dice() % input.size(), 64));
      break;
    case 4:
      input.append(1 + dice() % 4096, static_cast<char>(dice()));
      break;
    case 5:
    case 6:
      input[at] = static_cast<char>(input[at] ^ (1 << (dice() % 8)));
      break;
    default:
      put_number(input, at, dice);
  }
}

}  // namespace

void mutate(std::string& input, const std::string& other, std::size_t dense,
            std::mt19937_64& dice) {
  for (auto times = 1 + dice() % 4; times > 0; --times) change(input, other, dense, dice);
}

}  // namespace haiprof::fuzz

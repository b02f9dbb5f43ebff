// A str object of another process.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace haiprof::stacks {

// Of so many characters, of one, two or four bytes each, as CPython keeps them; as UTF-8.
std::string utf8_of(std::span<const std::uint8_t> characters, unsigned kind);

}  // namespace haiprof::stacks

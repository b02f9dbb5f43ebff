// NCCL's words for functions and element types, as the ring's numbers.
#pragma once

#include <cstdint>
#include <string_view>

#include "ring/layout.h"

namespace haiprof::nccl {

// Operation::other for one that is not known here.
ring::Operation operation_of(std::string_view function) noexcept;
// Whether it has a root.
bool is_rooted(ring::Operation operation) noexcept;
// kNoType for one that is not known here; NCCL itself has no word for uint8.
std::uint8_t type_of(std::string_view type) noexcept;

}  // namespace haiprof::nccl

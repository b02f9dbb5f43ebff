// The line of an instruction, from the table in its code object.
#pragma once

#include <cstdint>
#include <span>

#include "ring/python_layout.h"

namespace haiprof::stacks {

// offset: bytes from the first instruction; -1 or less: none has begun, which is the first line.
// 0: the instruction has no line, or the table ends before it.
int line_of(ring::PythonLines kind, std::span<const std::uint8_t> table, int first_line,
            std::int64_t offset) noexcept;

}  // namespace haiprof::stacks

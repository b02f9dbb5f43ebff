// Random changes of an input. The same numbers on every machine.
#pragma once

#include <cstddef>
#include <random>
#include <string>

namespace haiprof::fuzz {

// Changes it in one to four places. dense: see entry.h.
void mutate(std::string& input, const std::string& other, std::size_t dense, std::mt19937_64& dice);

}  // namespace haiprof::fuzz

// The interface of each fuzzed part: libFuzzer's entry point, and inputs to start from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

namespace haiprof::fuzz {

// Made by the code that writes such inputs: the corpus is always of this version.
std::vector<std::string> seeds();

// Half of all changes are made within this many bytes at the beginning.
std::size_t dense_bytes();

}  // namespace haiprof::fuzz

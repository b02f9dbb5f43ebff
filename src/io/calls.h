// The functions that stand in for others: each calls the real one with the same arguments, leaves
// errno as that did, and counts what has been submitted.
#pragma once

#include <vector>

#include "interpose/interposer.h"

namespace haiprof::io {

// The functions of one library: they are replaced together, once it is there.
struct Library {
  // The function by which an object is recognized as this library.
  const char* mark;
  // Learns where the real ones are; returns what to replace.
  std::vector<interpose::Replacement> (*take)();
};

inline constexpr std::size_t kLibraries = 5;
extern const Library libraries[kLibraries];

// Called before each dlsym() of the job.
extern void (*on_lookup)() noexcept;

}  // namespace haiprof::io

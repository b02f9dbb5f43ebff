// Counters that haiprof-perfd opens for a process that lacks the right.
#pragma once

#include <memory>
#include <string>

#include "perf/opener.h"

namespace haiprof::perf {

// Asks the helper that listens at `socket`, from the first open() on. An open() that gets no answer
// ends after a second; those of the next seconds then say the same at once. What is passed on is
// taken only from root, from the own user or from the owner of the socket's folder, and only if it
// is counters. Opened::error is EACCES where the helper could not be asked or refused to serve us.
std::unique_ptr<Opener> make_perfd_opener(const std::string& socket);

}  // namespace haiprof::perf

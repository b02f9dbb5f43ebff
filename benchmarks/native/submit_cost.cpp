// The cost of counting submitted reads for the thread that submits, beside the call without us.
//
//   submit_cost RING LIBRARY FILE
//
// LIBRARY is the tests' libio_user_lazy.so: functions of ours are put into the slots of others, not
// of the program that we are part of. Prints one JSON object with nanoseconds per call, medians
// and quartiles over interleaved rounds: of 4 KiB from the page cache, which is as cheap as a
// submission can be, alone and 16 at once; and of a system call that is none of a submission.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "io/submitted.h"
#include "ring/counters.h"
#include "ring/writer.h"
#include "rounds.h"

using namespace haiprof;

namespace {

struct Load {
  const char* name;
  const char* way;
  int batch;
};
constexpr Load kLoads[] = {{"libaio", "libaio", 1},
                           {"libaio_16", "libaio", 16},
                           {"io_uring", "uring", 1},
                           {"io_uring_16", "uring", 16},
                           {"syscall", "syscall", 1}};
constexpr int kRounds = 60, kCalls = 300;

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 || !ring::open(argv[1], ring::kMinRingBytes, {}).ok()) return 2;
  void* const library = dlopen(argv[2], RTLD_NOW);
  using Call = double (*)(const char*, const char*, int, int);
  const auto call =
      library != nullptr ? reinterpret_cast<Call>(dlsym(library, "call_ns")) : nullptr;
  if (call == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  std::printf("{");
  for (const Load& load : kLoads) {
    benchmark::Rounds bare, counted;
    for (int round = 0; round < kRounds; ++round) {
      io::leave_submitted();
      bare.push_back(call(load.way, argv[3], kCalls, load.batch));
      if (!io::count_submitted().empty()) return 1;
      counted.push_back(call(load.way, argv[3], kCalls, load.batch));
    }
    if (bare.front() < 0) {
      std::fprintf(stderr, "%s: %s\n", load.name, std::strerror(static_cast<int>(-bare.front())));
      return 1;
    }
    benchmark::print((std::string(load.name) + "_bare_ns").c_str(), bare);
    benchmark::print((std::string(load.name) + "_ns").c_str(), counted);
  }
  const ring::Counter* const counters = ring::counters.load();
  std::printf("\"bytes\": %llu}\n",
              static_cast<unsigned long long>(counters[0].value.load() + counters[2].value.load()));
  ring::close();
}

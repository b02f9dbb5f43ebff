// Runs an entry point on mutated seeds where there is no libFuzzer. Built with sanitizers, which
// end it at the first fault; a run of more than five seconds ends it, too. The input is then kept.
//
//   X_fuzz [--seed N] [--first N] [--runs N] [--seconds N]   until one of both is reached
//   X_fuzz --corpus DIR                                      writes the seeds, for libFuzzer
//   X_fuzz FILE...                                           runs these inputs
#include <sanitizer/common_interface_defs.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "entry.h"
#include "mutation.h"

// A failed check of an entry point is a fault like those that the sanitizers find. Their libraries
// find only what is not hidden.
#define SEEN extern "C" __attribute__((visibility("default")))
SEEN const char* __asan_default_options() { return "handle_abort=1"; }
SEEN const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

namespace {

using namespace haiprof;
using Clock = std::chrono::steady_clock;

constexpr auto kLongest = std::chrono::seconds(5);

struct Settings {
  std::uint64_t seed = 1;
  std::uint64_t first = 0;
  std::uint64_t runs = ~std::uint64_t{0};
  double seconds = 1e9;
};

std::string input;  // of the run in progress
std::atomic<std::uint64_t> run{0};
std::atomic<Clock::rep> begun{0};

void keep_input() {
  const std::string path = "fuzz-failure-" + std::to_string(run.load());
  std::ofstream(path, std::ios::binary) << input;
  std::fprintf(stderr, "run %llu failed; its input is in %s\n",
               static_cast<unsigned long long>(run.load()), path.c_str());
}

void watch() {
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const Clock::time_point since{Clock::duration(begun.load())};
    if (Clock::now() - since <= kLongest) continue;
    std::fprintf(stderr, "it hangs\n");
    keep_input();
    std::_Exit(1);
  }
}

void run_one() {
  begun.store(Clock::now().time_since_epoch().count());
  // A block of its own: what is read beyond it is seen.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

int loop(const Settings& settings) {
  const std::vector<std::string> seeds = fuzz::seeds();
  const auto until = Clock::now() + std::chrono::duration<double>(settings.seconds);
  std::uint64_t n = settings.first;
  for (; n - settings.first < settings.runs && Clock::now() < until; ++n) {
    std::mt19937_64 dice(settings.seed * 0x9E3779B97F4A7C15U + n);
    input = seeds[n % seeds.size()];
    if (n >= seeds.size()) {
      fuzz::mutate(input, seeds[dice() % seeds.size()], fuzz::dense_bytes(), dice);
    }
    run.store(n);
    run_one();
  }
  std::printf("%llu runs\n", static_cast<unsigned long long>(n - settings.first));
  return 0;
}

int write_corpus(const std::string& folder) {
  int n = 0;
  for (const std::string& seed : fuzz::seeds()) {
    std::ofstream(folder + "/seed-" + std::to_string(n++), std::ios::binary) << seed;
  }
  return 0;
}

int run_files(int count, char** names) {
  for (int i = 0; i < count; ++i) {
    std::ifstream file(names[i], std::ios::binary);
    input.assign(std::istreambuf_iterator<char>(file), {});
    run_one();
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  Settings settings;
  begun.store(Clock::now().time_since_epoch().count());
  __sanitizer_set_death_callback(keep_input);
  std::thread(watch).detach();
  int i = 1;
  for (; i + 1 < count && std::strncmp(arguments[i], "--", 2) == 0; i += 2) {
    const std::string name = arguments[i];
    const char* const value = arguments[i + 1];
    if (name == "--corpus") return write_corpus(value);
    if (name == "--seed") settings.seed = std::strtoull(value, nullptr, 10);
    if (name == "--first") settings.first = std::strtoull(value, nullptr, 10);
    if (name == "--runs") settings.runs = std::strtoull(value, nullptr, 10);
    if (name == "--seconds") settings.seconds = std::strtod(value, nullptr);
  }
  return i < count ? run_files(count - i, arguments + i) : loop(settings);
}

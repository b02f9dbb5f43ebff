// A job that communicates through the stand-in for NCCL, recorded into a ring.
//
//   nccl_job NCCL PLUGIN RING TRUTH TURNS THREADS OPERATIONS PER_SECOND [restart]
//
// restart: meanwhile the ring is closed and opened anew, again and again; the last one stays.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

void* library(const char* path) {
  void* const found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (found != nullptr) return found;
  std::fprintf(stderr, "%s\n", dlerror());
  std::exit(2);
}

template <typename Function>
Function* function(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

int main(int count, char** words) {
  if (count < 9) return 2;
  void* const nccl = library(words[1]);
  void* const plugin = library(words[2]);
  auto* const open_ring = function<int(const char*, unsigned long)>(plugin, "open_ring");
  auto* const close_ring = function<void()>(plugin, "close_ring");
  auto* const run = function<int(const char*, int, int, int, double)>(nccl, "fake_nccl_run");
  const auto open = [&](const std::string& path) {
    unlink(path.c_str());
    if (open_ring(path.c_str(), 64UL << 20) != 0) std::exit(3);
  };
  open(words[3]);
  std::atomic<bool> ended{false};
  std::thread restarts([&] {
    while (count > 9 && !ended) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      close_ring();
      open(words[3]);
    }
  });
  const int failed = run(words[4], std::atoi(words[5]), std::atoi(words[6]), std::atoi(words[7]),
                         std::atof(words[8]));
  ended = true;
  restarts.join();
  close_ring();
  std::printf("%d\n", function<int()>(plugin, "version_asked")());
  return failed;
}

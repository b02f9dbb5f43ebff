// A job that launches kernels on a GPU that is not there, recorded by the collector.
//
//   gpu_job RING KERNELS THREADS [fatal]
//
// fatal: CUPTI ends on its own while they launch.
// Prints one JSON object: why it was refused, or what was counted.
#include <dlfcn.h>

#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gpu/collector.h"
#include "in_use.h"
#include "ring/writer.h"

using namespace haiprof;

int main(int argc, char** argv) {
  if (argc < 4 || !ring::open(argv[1], ring::kDefaultRingBytes, {}).ok()) return 2;
  test::use_gpu();
  const gpu::Refusal refusal = gpu::start_collecting("", {gpu::Mode::all, 0, 60, {}});
  if (!refusal.ok()) {
    std::printf("{\"reason\": \"%s\", \"mend\": \"%s\", \"collecting\": %s}\n",
                refusal.reason.c_str(), refusal.fix.c_str(), gpu::tracing() ? "true" : "false");
    gpu::stop_collecting(10);
    return 0;
  }
  using Launch = void (*)(const char*, std::uint64_t);
  void* const library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD);
  const auto launch = reinterpret_cast<Launch>(dlsym(library, "fake_launch"));
  if (launch == nullptr) return 1;
  const auto begin = reinterpret_cast<std::uint32_t (*)(const char*)>(dlsym(library, "fake_begin"));
  const auto end = reinterpret_cast<void (*)(std::uint32_t)>(dlsym(library, "fake_end"));
  const auto dirty = reinterpret_cast<std::uint64_t (*)()>(dlsym(library, "fake_dirty"));
  const auto shared = reinterpret_cast<std::uint64_t (*)()>(dlsym(library, "fake_shared"));
  const std::uint64_t kernels = std::strtoull(argv[2], nullptr, 10);
  const bool fatal = argc > 4;
  std::vector<std::thread> threads;
  std::barrier together(std::atoi(argv[3]));
  for (int i = 0; i < std::atoi(argv[3]); ++i) {
    threads.emplace_back([=, &together] {
      const char* const name = i % 2 == 0 ? "even" : "odd";
      together.arrive_and_wait();
      // Until it has ended, no flush returns the buffer: each thread holds one of its own. With
      // `fatal`, flushes must find records while the threads launch.
      const std::uint32_t first = fatal ? 0 : begin(name);
      launch(name, fatal ? kernels : kernels - 1);
      together.arrive_and_wait();
      if (!fatal) end(first);
    });
  }
  if (fatal) {
    // Something has been recorded by then, however slow the sanitizer and the machine are.
    for (int waited = 0; gpu::counts().kernels == 0 && waited < 1000; ++waited) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    reinterpret_cast<void (*)()>(dlsym(library, "fake_fatal"))();
  }
  for (std::thread& thread : threads) thread.join();
  const bool flushed = gpu::flush_collected(10);
  const gpu::Counts early = gpu::counts();
  launch("late", 10);
  gpu::stop_collecting(10);
  launch("after the end", 10);
  const gpu::Counts counted = gpu::counts();
  std::printf(
      "{\"flushed\": %s, \"kernels_when_flushed\": %llu, \"kernels\": %llu, "
      "\"dropped\": %llu, \"dirty\": %llu, \"shared\": %llu, \"damaged\": %llu, \"thread_ns\": "
      "%llu, "
      "\"collecting\": %s, \"version\": %u}\n",
      flushed ? "true" : "false", static_cast<unsigned long long>(early.kernels),
      static_cast<unsigned long long>(counted.kernels),
      static_cast<unsigned long long>(counted.dropped), static_cast<unsigned long long>(dirty()),
      static_cast<unsigned long long>(shared()), static_cast<unsigned long long>(counted.damaged),
      static_cast<unsigned long long>(gpu::thread_ns()), gpu::collecting() ? "true" : "false",
      gpu::library_version());
  ring::close();
}

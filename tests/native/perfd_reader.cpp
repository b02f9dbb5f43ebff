// Reads counters for the tests of haiprof-perfd, as its commands on standard input say:
//
//   open TYPE CPU CONFIG...   one line: "opened", or "refused ERRNO SECONDS REASON | FIX"
//   read                      one line: "ERRNO", then count, enabled and running of each counter
//
// perfd_reader SOCKET asks the helper there; perfd_reader alone opens them itself.
#include <chrono>
#include <cstdint>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "perf/open_group.h"
#include "perf/perfd_client.h"

using namespace haiprof;

namespace {

class OwnOpener final : public perf::Opener {
 public:
  perf::Opened open(std::span<const perf::Event> events, int cpu) override {
    std::vector<base::UniqueFd> fds;
    const int error = perf::open_group(events, cpu, fds);
    if (error != 0) return {nullptr, error, "perf_event_open", {}};
    return {std::make_unique<perf::FdGroup>(std::move(fds)), 0, {}, {}};
  }
};

}  // namespace

int main(int count, char** arguments) {
  std::unique_ptr<perf::Opener> opener = std::make_unique<OwnOpener>();
  if (count > 1) opener = perf::make_perfd_opener(arguments[1]);
  perf::Opened opened;
  std::vector<perf::Reading> readings;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "open") {
      std::uint32_t type = 0;
      int cpu = 0;
      words >> type >> cpu;
      std::vector<perf::Event> events;
      for (std::uint64_t config = 0; words >> config;) events.push_back({type, config, 0, 0});
      const auto began = std::chrono::steady_clock::now();
      opened = opener->open(events, cpu);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      readings.resize(events.size());
      if (opened.group != nullptr) {
        std::cout << "opened" << std::endl;
      } else {
        std::cout << "refused " << opened.error << ' ' << took.count() << ' ' << opened.reason
                  << " | " << opened.fix << std::endl;
      }
    } else if (command == "read" && opened.group != nullptr) {
      std::cout << opened.group->read(readings);
      for (const perf::Reading& reading : readings) {
        std::cout << ' ' << reading.count << ' ' << reading.enabled_ns << ' ' << reading.running_ns;
      }
      std::cout << std::endl;
    } else {
      std::cout << "unknown" << std::endl;
    }
  }
}

#include "host/counted.h"

#include <algorithm>
#include <utility>

namespace haiprof::host {

using sampler::SeriesTable;
using sampler::State;
using sampler::Status;

CountedSource::Process& CountedSource::process_of(pid_t pid) {
  const auto at = std::find_if(processes_.begin(), processes_.end(),
                               [&](const Process& process) { return process.pid == pid; });
  if (at != processes_.end()) return *at;
  processes_.push_back({pid, false, {}});
  return processes_.back();
}

bool CountedSource::add(pid_t pid, const std::string& path, bool whole) {
  const auto same = std::find_if(rings_.begin(), rings_.end(),
                                 [&](const Ring& ring) { return ring.path == path; });
  Ring added{pid, path, {}, {}};
  if (same != rings_.end() || !added.reader.open(path)) return false;
  added.counted.resize(added.reader.size());
  for (std::size_t i = 0; i < added.counted.size() && !whole; ++i) {
    added.counted[i] = added.reader.value(i).value_or(0);
  }
  process_of(pid);
  rings_.push_back(std::move(added));
  return true;
}

bool CountedSource::remove(const std::string& path) {
  const auto at = std::find_if(rings_.begin(), rings_.end(),
                               [&](const Ring& ring) { return ring.path == path; });
  if (at == rings_.end()) return false;
  take(*at);
  rings_.erase(at);
  return true;
}

void CountedSource::unwatch(pid_t pid, SeriesTable& table) noexcept {
  std::erase_if(rings_, [&](const Ring& ring) { return ring.pid == pid; });
  std::erase_if(processes_, [&](const Process& process) {
    if (process.pid != pid) return false;
    for (const Sum& sum : process.sums) table.remove(sum.id);
    return true;
  });
}

void CountedSource::take(Ring& ring) {
  Process& process = process_of(ring.pid);
  for (std::size_t i = 0; i < ring.counted.size(); ++i) {
    const std::uint64_t now = ring.reader.value(i).value_or(ring.counted[i]);
    const std::uint64_t grown = now - std::exchange(ring.counted[i], now);
    const std::string_view metric = ring.reader.metric(i), instance = ring.reader.instance(i);
    if (grown == 0 || metric.empty()) continue;
    auto at = std::find_if(process.sums.begin(), process.sums.end(), [&](const Sum& sum) {
      return sum.metric == metric && sum.instance == instance;
    });
    if (at == process.sums.end()) {
      process.sums.push_back({std::string(metric), std::string(instance), 0, sampler::kNoSeries});
      at = process.sums.end() - 1;
    }
    at->value += grown;
  }
}

Status CountedSource::read(SeriesTable& table) {
  for (Ring& ring : rings_) take(ring);
  for (Process& process : processes_) {
    for (Sum& sum : process.sums) {
      if (sum.id == sampler::kNoSeries) {
        sum.id = table.add(sum.metric, sum.instance, process.pid);
        // All of it is new since the reading before; of a process that is read for the first time
        // it counts at the next.
        if (process.begun) table.baseline(sum.id, 0);
      }
      table.rate(sum.id, process.begun ? sum.value : 0);
    }
    process.begun = true;
  }
  return {};
}

std::vector<sampler::Part> CountedSource::describe(const Status& status) const {
  Status state = status;
  if (state.ok() && rings_.empty()) {
    state = {State::absent, "no process with a ring is watched",
             "start a job under haiprof, with hooks"};
  }
  return {{std::string(kName),
           state,
           {"io.submitted_read.bytes_per_s", "io.submitted_write.bytes_per_s"}}};
}

}  // namespace haiprof::host

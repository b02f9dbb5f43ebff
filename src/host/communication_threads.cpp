#include "host/communication_threads.h"

#include <dirent.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "host/scan.h"

namespace haiprof::host {

namespace {

// gloo_tcp_loop, pt_gloo_runloop, NCCL Progress 0, NCCL Service 0.
constexpr std::string_view kNames[] = {"gloo_", "pt_gloo_", "NCCL "};

bool communicates(std::string_view name) noexcept {
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](std::string_view one) { return name.starts_with(one); });
}

}  // namespace

bool CommunicationThreads::update(const std::string& folder, std::uint64_t threads,
                                  Buffer& buffer) {
  if (threads != listed_of_) {
    list(folder + "/task", buffer);
    listed_of_ = threads;
  }
  std::uint64_t longest = 0;
  bool any = false;
  for (One& one : those_) {
    std::uint64_t ran = 0;
    std::uint64_t waited = 0;
    if (one.schedstat.read(buffer) != 0) {
      listed_of_ = 0;
      continue;
    }
    std::string_view text = buffer.text();
    if (!next_number(text, ran) || !next_number(text, waited) || ran == 0) continue;
    any = true;
    if (one.counted) longest = std::max(longest, waited - std::min(waited, one.waited_ns));
    one.waited_ns = waited;
    one.counted = true;
  }
  waited_ns_ += longest;
  return any;
}

void CommunicationThreads::list(const std::string& folder, Buffer& buffer) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
  if (directory == nullptr) return;
  std::vector<One> before = std::exchange(those_, {});
  while (const dirent* entry = readdir(directory.get())) {
    std::uint64_t tid = 0;
    if (those_.size() >= kMost) return;
    if (!to_number(entry->d_name, tid) || tid == 0 || tid > (1u << 22)) continue;
    const auto known = std::find_if(before.begin(), before.end(), [&](const One& one) {
      return one.tid == static_cast<pid_t>(tid);
    });
    if (known != before.end()) {
      those_.push_back(std::move(*known));
      continue;
    }
    const std::string thread = folder + "/" + entry->d_name;
    if (File name(thread + "/comm"); name.read(buffer) != 0 || !communicates(buffer.text())) {
      continue;
    }
    those_.push_back({static_cast<pid_t>(tid), File(thread + "/schedstat")});
  }
}

}  // namespace haiprof::host

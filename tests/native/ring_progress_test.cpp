// How far communication has come: what a reader sees, of a closed ring too; groups that come and
// go; threads that write while rings are opened and closed; a forked child; and forged headers.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "collectives/groups.h"
#include "mapped_ring.h"
#include "ring/progress.h"
#include "ring/reader.h"
#include "ring/writer.h"

namespace {

using namespace haiprof;
using collectives::Group;
using ring::Operation;

std::string path_of(const char* name) {
  const std::string path =
      "/dev/shm/haiprof-progress-" + std::to_string(getpid()) + "-" + name + ".ring";
  unlink(path.c_str());
  return path;
}

ring::ProgressCopy read(const std::string& path) {
  ring::Reader reader;
  if (!reader.open(path).ok()) return {};
  return reader.progress();
}

void a_reader_sees_the_newest() {
  const std::string path = path_of("newest");
  CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
  Group group("data", 4, 0);
  group.progress()->operation.store(static_cast<std::uint8_t>(Operation::all_reduce));
  group.progress()->asked.store(7);
  {
    const ring::BlockedHere blocked(99, ring::index_of(group.progress()), 7, ring::kNone,
                                    Operation::all_reduce, 5);
    const ring::ProgressCopy copy = read(path);
    CHECK_EQUAL(copy.groups.size(), 1U);
    CHECK_EQUAL(copy.groups[0].name, std::string("data"));
    CHECK_EQUAL(copy.groups[0].size, 4U);
    CHECK_EQUAL(copy.groups[0].asked, 7U);
    CHECK_EQUAL(copy.blocked.size(), 1U);
    CHECK_EQUAL(copy.blocked[0].thread, 99U);
    CHECK_EQUAL(copy.blocked[0].group, 0U);
  }
  CHECK_EQUAL(read(path).blocked.size(), 0U);
  ring::close();
  // Who was killed cannot close it, and has it all the same; so has who closed it.
  CHECK_EQUAL(read(path).groups.size(), 1U);
  unlink(path.c_str());
  CHECK(group.progress() == nullptr);
}

void groups_come_and_go() {
  const std::string path = path_of("many");
  CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
  for (int n = 0; n < 1000; ++n) {
    Group group("group " + std::to_string(n), 2, 0);
    CHECK(group.progress() != nullptr);
    group.leave_progress();
  }
  std::vector<std::unique_ptr<Group>> all;
  for (std::size_t n = 0; n < ring::kGroups + 5; ++n) {
    all.push_back(std::make_unique<Group>(std::string(200, 'x'), 2, 0));
    CHECK_EQUAL(all.back()->progress() != nullptr, n < ring::kGroups);
  }
  const ring::ProgressCopy copy = read(path);
  CHECK_EQUAL(copy.groups.size(), ring::kGroups);
  CHECK_EQUAL(copy.groups[0].name.size(), 63U);
  CHECK_EQUAL(ring::index_of(all.back()->progress()), ring::kNone);
  ring::close();
  unlink(path.c_str());
}

void a_forked_child_leaves_its_parents_alone() {
  const std::string path = path_of("fork");
  CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
  Group group("data", 2, 0);
  group.progress()->asked.store(3);
  const pid_t child = fork();
  if (child == 0) {
    if (group.progress() != nullptr) _exit(1);
    const ring::BlockedHere nowhere(1, 0, 1, ring::kNone, Operation::barrier, 1);
    _exit(read(path).blocked.empty() ? 0 : 2);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK_EQUAL(WEXITSTATUS(status), 0);
  CHECK_EQUAL(read(path).groups[0].asked, 3U);
  ring::close();
  unlink(path.c_str());
}

void threads_write_while_rings_come_and_go() {
  std::atomic<bool> over{false};
  Group group("data", 2, 0);
  std::vector<std::thread> threads;
  for (std::uint32_t n = 1; n <= 3; ++n) {
    threads.emplace_back([&, n] {
      while (!over.load()) {
        ring::GroupProgress* const to = group.progress();
        if (to != nullptr) to->asked.fetch_add(1);
        const ring::BlockedHere blocked(n, ring::index_of(to), n, ring::kNone, Operation::send, n);
      }
    });
  }
  const std::string path = path_of("threads");
  for (int n = 0; n < 50; ++n) {
    CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
    const ring::ProgressCopy copy = read(path);
    CHECK(copy.blocked.size() <= 3);
    ring::close();
    unlink(path.c_str());
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
}

void a_forged_header_leads_nowhere() {
  const std::string path = path_of("forged");
  CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
  Group group("data", 2, 0);
  CHECK(group.progress() != nullptr);
  {
    test::MappedRing mapped(path);
    const ring::SuperBlock& s = mapped.super();
    const std::uint64_t offset = s.progress_offset;
    const std::uint32_t stride = s.group_stride, count = s.group_count;
    for (const std::uint64_t wrong : {UINT64_MAX, std::uint64_t{mapped.bytes()}, UINT64_MAX - 99}) {
      mapped.super().progress_offset = wrong;
      CHECK_EQUAL(read(path).groups.size(), 0U);
    }
    mapped.super().progress_offset = offset;
    for (const std::uint32_t wrong : {0U, 1U, 0xFFFFFFFFU}) {
      mapped.super().group_stride = wrong;
      CHECK_EQUAL(read(path).groups.size(), 0U);
      mapped.super().group_stride = stride;
      mapped.super().blocked_stride = wrong;
      CHECK_EQUAL(read(path).blocked.size(), 0U);
      mapped.super().blocked_stride = sizeof(ring::Blocked);
    }
    mapped.super().group_count = 0xFFFFFFFFU;
    CHECK_EQUAL(read(path).groups.size(), 0U);
    mapped.super().group_count = count;
    auto* const all = reinterpret_cast<ring::Progress*>(mapped.at(offset));
    std::fill(all->groups[0].name, all->groups[0].name + sizeof all->groups[0].name, 'y');
    all->blocked[0].thread = 1;
    all->blocked[0].group = 12345;
    const ring::ProgressCopy copy = read(path);
    CHECK_EQUAL(copy.groups[0].name, std::string(64, 'y'));
    CHECK_EQUAL(copy.blocked[0].group, ring::kNone);
  }
  ring::close();
  unlink(path.c_str());
}

}  // namespace

int main() {
  a_reader_sees_the_newest();
  groups_come_and_go();
  a_forked_child_leaves_its_parents_alone();
  threads_write_while_rings_come_and_go();
  a_forged_header_leads_nowhere();
  return test::result();
}

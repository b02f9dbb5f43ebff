// Groups by the address of their backend, and the numbers of what they do.
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "collectives/groups.h"
#include "ring/writer.h"

using namespace haiprof;
using collectives::Group;
using collectives::Groups;

namespace {

void a_backend_has_the_group_that_it_was_last_given() {
  const auto groups = std::make_unique<Groups>();
  Group first("0", 4, 0), second("1", 2, 0);
  int backend = 0, other = 0;
  CHECK(groups->of(&backend) == nullptr);
  CHECK(groups->add(&backend, &first));
  CHECK(groups->of(&backend) == &first);
  CHECK(groups->of(&other) == nullptr);
  groups->remove(&backend);
  groups->remove(&other);
  CHECK(groups->of(&backend) == nullptr);
  CHECK(groups->add(&backend, &second));  // another one at the same address
  CHECK(groups->of(&backend) == &second);
}

void many_come_and_go_until_there_is_no_room() {
  const auto groups = std::make_unique<Groups>();
  Group group("0", 2, 0);
  std::vector<char> addresses(1 << 16);
  std::size_t kept = 0;
  for (char& address : addresses) kept += groups->add(&address, &group) ? 1 : 0;
  CHECK(kept >= 2048);
  CHECK(kept <= 4096);
  std::size_t found = 0;
  for (char& address : addresses) found += groups->of(&address) == &group ? 1 : 0;
  CHECK_EQUAL(found, kept);
}

void numbers_count_from_one_for_each_pair_and_direction() {
  Group group("0", 3, 7);
  CHECK_EQUAL(group.next_collective(), 8U);
  CHECK_EQUAL(group.next_collective(), 9U);
  CHECK_EQUAL(group.next_sent(2), 1U);
  CHECK_EQUAL(group.next_sent(2), 2U);
  CHECK_EQUAL(group.next_sent(1), 1U);
  CHECK_EQUAL(group.next_received(2), 1U);
  CHECK_EQUAL(group.next_sent(3), 0U);  // no such rank
  CHECK_EQUAL(group.next_received(ring::kNone), 0U);
  Group huge("1", 1U << 20, 0);
  CHECK_EQUAL(huge.next_sent(0), 0U);
}

void the_name_is_that_of_the_ring_that_is_open() {
  Group group("data parallel", 2, 0);
  CHECK_EQUAL(group.text(), ring::kNone);
  const std::string path = "/dev/shm/haiprof-groups-" + std::to_string(getpid()) + ".ring";
  for (const char* before : {"", "another text"}) {
    unlink(path.c_str());
    CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
    if (*before != '\0') ring::intern(before);
    const std::uint32_t id = group.text();
    CHECK_EQUAL(id, ring::intern("data parallel"));
    CHECK_EQUAL(group.text(), id);
    ring::close();
  }
  unlink(path.c_str());
}

void threads_count_together() {
  const auto groups = std::make_unique<Groups>();
  Group group("0", 2, 0);
  std::vector<char> addresses(64);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int n = 0; n < 2000; ++n) {
        group.next_collective();
        char& mine = addresses[static_cast<std::size_t>(t * 16 + n % 16)];
        groups->add(&mine, &group);
        if (groups->of(&mine) != &group) ++wrong;
        groups->remove(&mine);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(wrong.load(), 0);
  CHECK_EQUAL(group.next_collective(), 8001U);
}

}  // namespace

int main() {
  a_backend_has_the_group_that_it_was_last_given();
  many_come_and_go_until_there_is_no_room();
  numbers_count_from_one_for_each_pair_and_direction();
  the_name_is_that_of_the_ring_that_is_open();
  threads_count_together();
  return haiprof::test::result();
}

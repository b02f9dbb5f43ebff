// Places in another memory, here our own, that are read together: what is there is read, however
// little of what lies beside it is.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"
#include "stacks/remote.h"

using haiprof::stacks::Remote;

namespace {

constexpr std::size_t kPage = 4096;

// Three pages, of which the middle one is not there.
struct Pages {
  std::uint8_t* begin = static_cast<std::uint8_t*>(
      mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

  Pages() {
    for (std::size_t i = 0; i < 3 * kPage; ++i) begin[i] = static_cast<std::uint8_t>(i / 16);
    munmap(begin + kPage, kPage);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    munmap(begin, kPage);
    munmap(begin + 2 * kPage, kPage);
  }

  std::uint64_t at(std::size_t offset) const {
    return reinterpret_cast<std::uint64_t>(begin) + offset;
  }
  bool are(const std::uint8_t* read, std::size_t offset, std::size_t bytes) const {
    return read != nullptr && std::memcmp(read, begin + offset, bytes) == 0;
  }
};

void near_places_are_each_there_or_not() {
  const Pages pages;
  Remote remote(getpid());
  // As one, as far as they can be read at all.
  const std::size_t places[][2] = {
      {0, 16},           {16, 8},          {20, 100},         {700, 8}, {kPage - 200, 100},
      {kPage - 50, 100}, {kPage + 100, 8}, {2 * kPage + 8, 8}};
  for (int look = 0; look < 3; ++look) {
    CHECK_EQUAL(remote.begin(), 0);
    Remote::Wanted wanted[8];
    for (int i = 0; i < 8; ++i) wanted[i] = remote.want(pages.at(places[i][0]), places[i][1]);
    CHECK_EQUAL(remote.read(), 0);
    for (int i = 0; i < 8; ++i) {
      if (i == 5 || i == 6) {
        CHECK(remote.at(wanted[i]) == nullptr);
      } else {
        CHECK(pages.are(remote.at(wanted[i]), places[i][0], places[i][1]));
      }
    }
    remote.end();
  }
}

void a_look_sees_what_is_there_when_it_begins_and_a_fresh_one_what_is_there_now() {
  const Pages pages;
  Remote remote(getpid());
  remote.want(pages.at(64), 8);
  CHECK_EQUAL(remote.read(), 0);
  remote.end();
  CHECK_EQUAL(remote.begin(), 0);
  const std::uint8_t before = pages.begin[64];
  pages.begin[64] = static_cast<std::uint8_t>(before + 1);
  auto wanted = remote.want(pages.at(64), 8);
  CHECK_EQUAL(remote.read(), 0);
  CHECK_EQUAL(*remote.at(wanted), before);
  remote.forget();
  wanted = remote.want(pages.at(64), 8);
  CHECK_EQUAL(remote.read(), 0);
  CHECK_EQUAL(*remote.at(wanted), static_cast<std::uint8_t>(before + 1));
  // More than was wanted before.
  remote.end();
  CHECK_EQUAL(remote.begin(), 0);
  wanted = remote.want(pages.at(64), 300);
  CHECK_EQUAL(remote.read(), 0);
  CHECK(pages.are(remote.at(wanted), 64, 300));
}

void what_is_wanted_after_the_rest_is_read_after_it() {
  const Pages pages;
  Remote remote(getpid());
  const auto look = [&](std::size_t place, bool changes) {
    CHECK_EQUAL(remote.begin(), 0);
    remote.want(pages.at(place), 8);
    if (changes) ++pages.begin[64];
    CHECK_EQUAL(remote.read(), 0);
    const auto wanted = remote.want_after(pages.at(64), 8);
    CHECK_EQUAL(remote.read(), 0);
    const std::uint8_t found = *remote.at(wanted);
    remote.end();
    return found;
  };
  const std::uint8_t first = look(1000, false);
  // Both were read when the look began, in this order.
  CHECK_EQUAL(look(1000, true), first);
  // The place is a new one, which is read now.
  CHECK_EQUAL(look(2000, true), static_cast<std::uint8_t>(first + 2));
  // So it is where places could not be read as one with what lies beside them.
  look(kPage - 8, false);
  CHECK_EQUAL(remote.begin(), 0);
  remote.want(pages.at(kPage - 8), 8);
  remote.want(pages.at(kPage + 8), 8);
  CHECK_EQUAL(remote.read(), 0);
  ++pages.begin[64];
  const auto wanted = remote.want_after(pages.at(64), 8);
  CHECK_EQUAL(remote.read(), 0);
  CHECK_EQUAL(*remote.at(wanted), static_cast<std::uint8_t>(first + 3));
}

void in_any_order_and_more_than_are_kept() {
  const Pages pages;
  Remote remote(getpid());
  for (int look = 0; look < 4; ++look) {
    CHECK_EQUAL(remote.begin(), 0);
    Remote::Wanted wanted[1500];
    const auto offset = [&](std::size_t i) {
      return look % 2 == 0 ? i * 997 % (kPage - 8) : (1499 - i) * 997 % (kPage - 8);
    };
    for (std::size_t i = 0; i < 1500; ++i) wanted[i] = remote.want(pages.at(offset(i)), 8);
    CHECK_EQUAL(remote.read(), 0);
    for (std::size_t i = 0; i < 1500; ++i) CHECK(pages.are(remote.at(wanted[i]), offset(i), 8));
    remote.end();
  }
}

// Each of them the same, and each read for itself: whose memory it is may make it seem endless.
void a_look_reads_so_much_and_no_more() {
  const Pages pages;
  Remote remote(getpid());
  constexpr std::size_t kMost = Remote::kMostInLook / kPage;
  std::vector<Remote::Wanted> wanted;
  for (int look = 0; look < 3; ++look) {
    wanted.clear();
    CHECK_EQUAL(remote.begin(), 0);
    for (std::size_t i = 0; i < kMost + 100; ++i) {
      wanted.push_back(remote.want(pages.at(i % 2 * 2 * kPage), kPage));
      if (i % 1000 == 0) CHECK_EQUAL(remote.read(), 0);
    }
    CHECK_EQUAL(remote.read(), 0);
    std::size_t there = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const std::uint8_t* const read = remote.at(wanted[i]);
      if (read != nullptr) ++there;
      CHECK(read == nullptr || pages.are(read, i % 2 * 2 * kPage, kPage));
    }
    // Later looks have both from the beginning.
    CHECK_EQUAL(there, look == 0 ? kMost : kMost + 100);
    remote.end();
  }
}

void nothing_is_there_at_once_and_no_process_is_said() {
  const Pages pages;
  Remote remote(getpid());
  CHECK_EQUAL(remote.begin(), 0);
  const auto nothing = remote.want(pages.at(kPage), 0);
  const auto wild = remote.want(~0ULL - 4, 64);
  CHECK_EQUAL(remote.read(), 0);
  CHECK(remote.at(nothing) != nullptr);
  CHECK(remote.at(wild) == nullptr);
  Remote gone(0x3FFF'FFFF);
  gone.want(pages.at(0), 8);
  CHECK_EQUAL(gone.read(), ESRCH);
}

}  // namespace

int main() {
  near_places_are_each_there_or_not();
  a_look_sees_what_is_there_when_it_begins_and_a_fresh_one_what_is_there_now();
  what_is_wanted_after_the_rest_is_read_after_it();
  in_any_order_and_more_than_are_kept();
  a_look_reads_so_much_and_no_more();
  nothing_is_there_at_once_and_no_process_is_said();
  return haiprof::test::result();
}

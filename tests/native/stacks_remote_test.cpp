// Places in another memory, here our own, that are read together: what is there is read, however
// little of what lies beside it is.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "stacks/remote.h"

using haiprof::stacks::Remote;

namespace {

constexpr std::size_t kPage = 4096;

haiprof::base::UniqueFd memory_of(pid_t pid) {
  return haiprof::base::UniqueFd(
      open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC));
}

// One of ours, as both ways read it.
Remote remote_of_us(bool through_file) {
  Remote remote(getpid());
  if (through_file) remote.read_through(memory_of(getpid()));
  return remote;
}

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

void near_places_are_each_there_or_not(bool through_file) {
  const Pages pages;
  Remote remote = remote_of_us(through_file);
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

void a_look_sees_what_is_there_when_it_begins_and_a_fresh_one_what_is_there_now(bool through_file) {
  const Pages pages;
  Remote remote = remote_of_us(through_file);
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

void what_is_wanted_after_the_rest_is_read_after_it(bool through_file) {
  const Pages pages;
  Remote remote = remote_of_us(through_file);
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

void in_any_order_and_more_than_are_kept(bool through_file) {
  const Pages pages;
  Remote remote = remote_of_us(through_file);
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
void a_look_reads_so_much_and_no_more(bool through_file) {
  const Pages pages;
  Remote remote = remote_of_us(through_file);
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

void nothing_is_there_at_once_and_no_process_is_said(bool through_file) {
  const Pages pages;
  Remote remote = remote_of_us(through_file);
  CHECK_EQUAL(remote.begin(), 0);
  const auto nothing = remote.want(pages.at(kPage), 0);
  const auto wild = remote.want(~0ULL - 4, 64);
  CHECK_EQUAL(remote.read(), 0);
  CHECK(remote.at(nothing) != nullptr);
  CHECK(remote.at(wild) == nullptr);
  Remote gone(0x3FFF'FFFF);  // no process has so great a number
  gone.want(pages.at(0), 8);
  CHECK_EQUAL(gone.read(), ESRCH);
}

// A copy of us, which becomes another program when it is asked to, and then waits to be killed.
void another_program_is_not_read_and_one_that_has_ended_is_none() {
  const Pages pages;
  int asked[2], begun[2];
  CHECK_EQUAL(pipe2(asked, O_CLOEXEC) + pipe2(begun, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    char none;
    if (read(asked[0], &none, 1) == 1) execl("/bin/sleep", "sleep", "600", nullptr);
    _exit(1);
  }
  close(begun[1]);
  Remote remote(child);
  remote.read_through(memory_of(child));
  const auto look = [&] {
    int error = remote.begin();
    const auto wanted = remote.want(pages.at(64), 8);
    const auto other = remote.want(pages.at(2 * kPage), 8);
    if (error == 0) error = remote.read();
    const bool there = pages.are(remote.at(wanted), 64, 8) && remote.at(other) != nullptr;
    const bool gone = remote.at(wanted) == nullptr && remote.at(other) == nullptr;
    CHECK(there != gone);
    remote.end();
    return std::pair(error, there);
  };
  CHECK(look() == std::pair(0, true));
  char none;
  CHECK_EQUAL(write(asked[1], "x", 1), 1);
  CHECK_EQUAL(read(begun[0], &none, 1), 0);  // the program has begun
  CHECK(look() == std::pair(0, false));
  kill(child, SIGKILL);
  siginfo_t about;
  CHECK_EQUAL(waitid(P_PID, static_cast<id_t>(child), &about, WEXITED | WNOWAIT), 0);
  CHECK(look() == std::pair(ESRCH, false));
  waitpid(child, nullptr, 0);
  CHECK(look() == std::pair(ESRCH, false));
  close(asked[0]);
  close(asked[1]);
  close(begun[0]);
}

}  // namespace

int main() {
  for (const bool through_file : {false, true}) {
    near_places_are_each_there_or_not(through_file);
    a_look_sees_what_is_there_when_it_begins_and_a_fresh_one_what_is_there_now(through_file);
    what_is_wanted_after_the_rest_is_read_after_it(through_file);
    in_any_order_and_more_than_are_kept(through_file);
    a_look_reads_so_much_and_no_more(through_file);
    nothing_is_there_at_once_and_no_process_is_said(through_file);
  }
  another_program_is_not_read_and_one_that_has_ended_is_none();
  return haiprof::test::result();
}

// Counters of a ring: they outlive the writer, serve forked children, and may be added to while the
// ring is opened and closed.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "ring/counters.h"
#include "ring/writer.h"

namespace {

using namespace haiprof;
using ring::Count;

std::string path_of(const char* name) {
  const std::string path =
      "/dev/shm/haiprof-counters-" + std::to_string(getpid()) + "-" + name + ".ring";
  unlink(path.c_str());
  return path;
}

std::uint64_t value(const std::string& path, Count what) {
  ring::CounterReader reader;
  if (!reader.open(path)) return ~std::uint64_t{0};
  return reader.value(static_cast<std::size_t>(what)).value_or(~std::uint64_t{0});
}

// Runs something in a forked child; what it returned.
template <typename Work>
int in_child(Work&& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Who has written a ring file.
struct Writer {
  std::uint32_t pid = 0;
  std::uint64_t start_time = 0;
};

Writer writer_of(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  alignas(ring::SuperBlock) char bytes[sizeof(ring::SuperBlock)];
  const bool read = ::read(fd, bytes, sizeof bytes) == static_cast<ssize_t>(sizeof bytes);
  close(fd);
  const auto& super = *reinterpret_cast<const ring::SuperBlock*>(bytes);
  return read ? Writer{super.pid, super.start_time} : Writer{};
}

std::uint32_t pid_in(const std::string& path) { return writer_of(path).pid; }
std::uint64_t start_time(const std::string& path) { return writer_of(path).start_time; }

void names_are_in_the_file() {
  const std::string path = path_of("names");
  ring::count(Count::libaio_read, 1);  // of no ring: goes nowhere
  CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
  ring::count(Count::libaio_read, 5);
  ring::count(Count::usrbio_write, 7);
  ring::CounterReader reader;
  CHECK(reader.open(path));
  CHECK_EQUAL(reader.size(), 6U);
  CHECK_EQUAL(reader.metric(0), "io.submitted_read.bytes_per_s");
  CHECK_EQUAL(reader.instance(0), "libaio");
  CHECK_EQUAL(reader.metric(5), "io.submitted_write.bytes_per_s");
  CHECK_EQUAL(reader.instance(5), "usrbio");
  CHECK_EQUAL(reader.value(0).value_or(0), 5U);
  CHECK_EQUAL(reader.value(5).value_or(0), 7U);
  ring::close();
  ring::count(Count::libaio_read, 100);
  CHECK_EQUAL(reader.value(0).value_or(0), 5U);  // what was counted stays
  unlink(path.c_str());
}

void a_forked_child_adds_to_its_parents_until_it_has_its_own() {
  const std::string path = path_of("parent"), own = path_of("child");
  CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
  CHECK_EQUAL(in_child([] {
                ring::count(Count::io_uring_read, 10);
                return 0;
              }),
              0);
  CHECK_EQUAL(value(path, Count::io_uring_read), 10U);
  CHECK_EQUAL(in_child([&] {
                if (!ring::open(own, ring::kMinRingBytes, {}).ok()) return 1;
                ring::count(Count::io_uring_read, 20);
                return 0;
              }),
              0);
  CHECK_EQUAL(value(path, Count::io_uring_read), 10U);
  CHECK_EQUAL(value(own, Count::io_uring_read), 20U);
  ring::close();
  unlink(path.c_str());
  unlink(own.c_str());
}

void a_process_without_a_ring_may_join_a_living_one() {
  const std::string path = path_of("joined");
  const int result = in_child([&] {
    if (!ring::open(path, ring::kMinRingBytes, {}).ok()) return 1;
    if (ring::join_counters(path, pid_in(path), start_time(path))) return 2;  // it has its own
    return 0;
  });
  CHECK_EQUAL(result, 0);
  CHECK(!ring::join_counters(path, pid_in(path), start_time(path) + 1));  // had that pid before
  CHECK(!ring::join_counters(path, pid_in(path) + 1, start_time(path)));  // started with it
  CHECK(!ring::join_counters(path + ".none", 0, 0));
  CHECK(ring::join_counters(path, pid_in(path), start_time(path)));
  ring::count(Count::libaio_write, 3);
  CHECK_EQUAL(value(path, Count::libaio_write), 3U);
  const std::string own = path_of("own");
  CHECK(ring::open(own, ring::kMinRingBytes, {}).ok());
  ring::count(Count::libaio_write, 4);
  CHECK_EQUAL(value(path, Count::libaio_write), 3U);
  CHECK_EQUAL(value(own, Count::libaio_write), 4U);
  ring::close();
  CHECK(!ring::join_counters(own, pid_in(own), start_time(own)));  // closed
  unlink(path.c_str());
  unlink(own.c_str());
}

void a_file_without_counters_has_none() {
  const std::string path = path_of("older");
  CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
  ring::close();
  const int fd = open(path.c_str(), O_RDWR);
  const std::uint32_t bytes = offsetof(ring::SuperBlock, counter_offset);  // as layout 1.2 has it
  CHECK_EQUAL(pwrite(fd, &bytes, sizeof bytes, offsetof(ring::SuperBlock, super_bytes)), 4);
  ring::CounterReader reader;
  CHECK(!reader.open(path));
  const std::uint32_t whole = sizeof(ring::SuperBlock);
  CHECK_EQUAL(pwrite(fd, &whole, sizeof whole, offsetof(ring::SuperBlock, super_bytes)), 4);
  CHECK(reader.open(path));
  CHECK_EQUAL(ftruncate(fd, 100), 0);
  CHECK(!reader.value(0).has_value());
  CHECK(!reader.open(path));
  close(fd);
  unlink(path.c_str());
}

void threads_count_while_rings_come_and_go() {
  const std::string path = path_of("busy");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) ring::count(Count::libaio_read, 1);
    });
  }
  std::uint64_t most = 0;
  for (int i = 0; i < 50; ++i) {
    CHECK(ring::open(path, ring::kMinRingBytes, {}).ok());
    usleep(500);
    ring::close();
    most = std::max(most, value(path, Count::libaio_read));
    unlink(path.c_str());
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK(most > 0);
}

}  // namespace

int main() {
  names_are_in_the_file();
  a_forked_child_adds_to_its_parents_until_it_has_its_own();
  a_process_without_a_ring_may_join_a_living_one();
  a_file_without_counters_has_none();
  threads_count_while_rings_come_and_go();
  return haiprof::test::result();
}

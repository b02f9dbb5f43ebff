// The parsers below the sources: words, numbers, process rows, pressure, and reading files.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "check.h"
#include "host/cgroup_path.h"
#include "host/file.h"
#include "host/pressure.h"
#include "host/processes.h"
#include "host/scan.h"

namespace {

using namespace haiprof::host;

void lines_words_and_numbers() {
  std::string_view text = "a b\n\n  12\t34 x";
  std::string_view line;
  std::string_view word;
  std::uint64_t number = 0;
  CHECK(next_line(text, line) && line == "a b");
  CHECK(next_line(text, line) && line.empty());
  CHECK(next_line(text, line));
  CHECK(next_number(line, number) && number == 12);
  CHECK(next_number(line, number) && number == 34);
  CHECK(!next_number(line, number));
  CHECK(!next_line(text, line));
  CHECK(!next_word(text, word));
}

void numbers_that_are_none() {
  std::uint64_t number = 7;
  for (const char* word : {"", "-1", "+1", "1.5", "0x10", "12a", "max", "99999999999999999999"}) {
    CHECK(!to_number(word, number));
  }
  CHECK(to_number("18446744073709551615", number));
  CHECK_EQUAL(number, ~std::uint64_t{0});
}

void keys_are_whole_words() {
  std::uint64_t number = 0;
  const std::string_view text = "nr_throttled_more 1\nnr_throttled 2\nrchar: 3\nlast\n";
  CHECK(find_number(text, "nr_throttled", number) && number == 2);
  CHECK(find_number(text, "rchar", number) && number == 3);
  CHECK(!find_number(text, "last", number));
  CHECK(!find_number(text, "absent", number));
}

void process_rows() {
  ProcessStat stat;
  CHECK(parse_process_stat("7 (a) b) (c) R 3 4 5 -1 -1 0 10 20 30 40 1 2 3 4 -20 0 9 0 777 0 0\n",
                           stat));
  CHECK_EQUAL(stat.state, 'R');
  CHECK_EQUAL(stat.parent, 3);
  CHECK_EQUAL(stat.minor_faults, 30U);
  CHECK_EQUAL(stat.reaped_minor_faults, 20U);
  CHECK_EQUAL(stat.major_faults, 70U);
  CHECK_EQUAL(stat.ticks, 10U);
  CHECK_EQUAL(stat.threads, 9U);
  CHECK_EQUAL(stat.start, 777U);
  for (const char* row : {"", "7", "7 (a", "7 (a)", "7 (a) R", "7 (a) R 3 4 5", "7 (a) Running 3",
                          "7 (a) R -3 4 5 -1 -1 0 10 20 30 40 1 2 3 4 -20 0 9 0 777\n"}) {
    CHECK(!parse_process_stat(row, stat));
  }
}

void pressure_rows() {
  const Stalled stalled = parse_pressure(
      "some avg10=0.10 avg60=2.00 avg300=3.85 total=15\nfull avg10=0.20 avg60=3.00 total=x\n");
  CHECK(stalled.has_some);
  CHECK_EQUAL(stalled.some, 15U);
  CHECK(!stalled.has_full);
}

void going_up_stops_at_the_top() {
  std::string folder = "/sys/fs/cgroup/a/b";
  CHECK(go_up(folder, "/sys/fs/cgroup"));
  CHECK_EQUAL(folder, "/sys/fs/cgroup/a");
  CHECK(go_up(folder, "/sys/fs/cgroup"));
  CHECK_EQUAL(folder, "/sys/fs/cgroup");
  CHECK(!go_up(folder, "/sys/fs/cgroup"));
}

int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) != -1 ? 1 : 0;
  return count;
}

void files_are_kept_open_grow_and_vanish() {
  char path[] = "/tmp/haiprof-scan-XXXXXX";
  const int fd = mkstemp(path);
  CHECK(fd >= 0);
  close(fd);
  const std::string big(300'000, 'x');
  Buffer buffer;
  const int before = open_descriptors();
  {
    File file(path);
    CHECK_EQUAL(file.read(buffer), 0);
    CHECK(buffer.text().empty());
    CHECK_EQUAL(open_descriptors(), before + 1);
    std::ofstream(path) << big;
    CHECK_EQUAL(file.read(buffer), 0);
    CHECK(buffer.text() == big);
    File moved = std::move(file);
    CHECK_EQUAL(moved.read(buffer), 0);
    CHECK(!file);
    CHECK_EQUAL(open_descriptors(), before + 1);
  }
  CHECK_EQUAL(open_descriptors(), before);
  unlink(path);
  File removed(path);
  CHECK_EQUAL(removed.read(buffer), ENOENT);
  CHECK(buffer.text().empty());
  File folder("/tmp");
  CHECK_EQUAL(folder.read(buffer), EISDIR);
  CHECK_EQUAL(open_descriptors(), before);
}

}  // namespace

int main() {
  lines_words_and_numbers();
  numbers_that_are_none();
  keys_are_whole_words();
  process_rows();
  pressure_rows();
  going_up_stops_at_the_top();
  files_are_kept_open_grow_and_vanish();
  return haiprof::test::result();
}

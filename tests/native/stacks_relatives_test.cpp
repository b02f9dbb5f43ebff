// Processes by their folder in /proc: one that has ended is nobody, whoever has its number then.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "check.h"
#include "stacks/relatives.h"

using namespace haiprof;
using namespace haiprof::stacks;

namespace {

// A child that waits to be killed.
pid_t started() {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  return child;
}

void end(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

bool has(const std::vector<pid_t>& pids, pid_t pid) {
  return std::ranges::find(pids, pid) != pids.end();
}

void a_folder_knows_parent_and_children_until_its_process_ends() {
  const base::UniqueFd own = folder_of(getpid());
  CHECK_EQUAL(parent_in(own.get()), getppid());
  const pid_t child = started();
  const base::UniqueFd folder = folder_of(child);
  CHECK_EQUAL(parent_in(folder.get()), getpid());
  CHECK(start_time_in(folder.get()) >= start_time_in(own.get()));
  CHECK(kind_in(folder.get()) == Kind::fork);
  std::vector<pid_t> children;
  const base::UniqueFd list = children_file_in(own.get(), getpid());
  add_children_from(list.get(), children);
  CHECK(has(children, child));
  const base::UniqueFd of_child = children_file_in(folder.get(), child);
  end(child);
  CHECK(!children_file_in(folder.get(), child));
  CHECK_EQUAL(parent_in(folder.get()), 0);
  CHECK_EQUAL(start_time_in(folder.get()), 0U);
  CHECK(!folder_of(child));
  children.clear();
  add_children_from(list.get(), children);
  CHECK(!has(children, child));
  children.clear();
  add_children_from(of_child.get(), children);
  add_children_from(-1, children);
  add_all_children_in(folder.get(), children);
  add_all_children_in(-1, children);
  CHECK(children.empty());
}

void children_of_other_threads_are_found_where_all_are_asked_for() {
  const base::UniqueFd own = folder_of(getpid());
  std::vector<pid_t> of_main, of_all;
  std::thread([&] {
    const pid_t child = started();
    add_children_from(children_file_in(own.get(), getpid()).get(), of_main);
    add_all_children_in(own.get(), of_all);
    CHECK(!has(of_main, child));
    CHECK(has(of_all, child));
    end(child);
  }).join();
}

// What a program with this argument counts as.
Kind kind_of(const char* argument) {
  int ready[2];
  CHECK_EQUAL(pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    // The shell waits to be killed, and ignores what follows its program.
    execl("/bin/sh", "sh", "-c", "kill -STOP $$", argument, "", nullptr);
    _exit(1);
  }
  close(ready[1]);
  char none;
  CHECK_EQUAL(read(ready[0], &none, 1), 0);  // the program has begun
  close(ready[0]);
  const Kind kind = kind_in(folder_of(child).get());
  end(child);
  return kind;
}

void workers_of_multiprocessing_are_known_by_their_commands() {
  CHECK(kind_of("--multiprocessing-fork") == Kind::spawned);
  CHECK(kind_of("from multiprocessing.forkserver import main; main(3, 4)") == Kind::server);
  // As 3.14.10 has it.
  CHECK(kind_of("import sys; from multiprocessing.forkserver import main; main(3, 4)") ==
        Kind::server);
  CHECK(kind_of("print('from multiprocessing.forkserver import main;')") == Kind::fork);
}

}  // namespace

int main() {
  a_folder_knows_parent_and_children_until_its_process_ends();
  children_of_other_threads_are_found_where_all_are_asked_for();
  workers_of_multiprocessing_are_known_by_their_commands();
  return test::result();
}

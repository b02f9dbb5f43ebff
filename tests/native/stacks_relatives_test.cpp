// Processes by their folder in /proc: one that has ended is nobody, whoever has its number then.
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
  add_children_in(own.get(), getpid(), children);
  CHECK(has(children, child));
  end(child);
  CHECK_EQUAL(parent_in(folder.get()), 0);
  CHECK_EQUAL(start_time_in(folder.get()), 0U);
  CHECK(!folder_of(child));
  children.clear();
  add_children_in(folder.get(), child, children);
  add_all_children_in(folder.get(), children);
  add_all_children_in(-1, children);
  CHECK(children.empty());
}

void children_of_other_threads_are_found_where_all_are_asked_for() {
  const base::UniqueFd own = folder_of(getpid());
  std::vector<pid_t> of_main, of_all;
  std::thread([&] {
    const pid_t child = started();
    add_children_in(own.get(), getpid(), of_main);
    add_all_children_in(own.get(), of_all);
    CHECK(!has(of_main, child));
    CHECK(has(of_all, child));
    end(child);
  }).join();
}

}  // namespace

int main() {
  a_folder_knows_parent_and_children_until_its_process_ends();
  children_of_other_threads_are_found_where_all_are_asked_for();
  return test::result();
}

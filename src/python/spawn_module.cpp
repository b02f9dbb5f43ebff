// Starts the recorder fully detached from the job.
//
// The recorder must not be a child of the job (a job that waits for all its children would wait for
// it), must not be in the job's process group (Ctrl-C is for the job), must not keep its
// descriptors (a pipe would never close) and must not be forked off a process that uses CUDA
// (CLONE_VM|CLONE_VFORK runs no fork handler and copies nothing). So: clone a middle process that
// shares our memory, let it begin a new session and clone the recorder, and reap the middle one.
#include <fcntl.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "python/register.h"
#include "python/unlocked.h"

namespace py = pybind11;

namespace haiprof::python {
namespace {

constexpr std::size_t kStackBytes = 64 * 1024;

struct Plan {
  char* const* arguments;
  char* const* environment;
  int log;
  std::uint8_t* second_stack_top;
  int error;
  pid_t pid;
};

// Both run in the parent's memory: system calls only.
int become_recorder(void* argument) {
  auto* plan = static_cast<Plan*>(argument);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int number = 1; number < 32; ++number) {
    if (number != SIGKILL && number != SIGSTOP) signal(number, SIG_DFL);
  }
  const int null = open("/dev/null", O_RDWR);
  dup2(null, 0);
  dup2(plan->log >= 0 ? plan->log : null, 1);
  dup2(plan->log >= 0 ? plan->log : null, 2);
  if (syscall(SYS_close_range, 3U, ~0U, 0U) != 0) {
    for (int fd = 3; fd < 4096; ++fd) close(fd);
  }
  if (chdir("/") != 0) _exit(126);
  execve(plan->arguments[0], plan->arguments, plan->environment);
  plan->error = errno;
  _exit(127);
}

int become_middle(void* argument) {
  auto* plan = static_cast<Plan*>(argument);
  setsid();
  const pid_t pid =
      clone(become_recorder, plan->second_stack_top, CLONE_VM | CLONE_VFORK | SIGCHLD, argument);
  if (pid < 0) {
    plan->error = errno;
  } else {
    plan->pid = pid;
  }
  _exit(0);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Returns the pid of the started process. Raises OSError with what stopped it.
int spawn_detached(std::vector<std::string> arguments, std::vector<std::string> environment,
                   int log) {
  std::vector<char*> argv = pointers(arguments);
  std::vector<char*> envp = pointers(environment);
  void* stacks = mmap(nullptr, 2 * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stacks == MAP_FAILED) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw py::error_already_set();
  }
  auto* bottom = static_cast<std::uint8_t*>(stacks);
  Plan plan{argv.data(), envp.data(), log, bottom + 2 * kStackBytes, 0, -1};
  {
    const Unlocked unlocked;
    // No signal handler of the job may run in a process that shares its memory.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const pid_t middle =
        clone(become_middle, bottom + kStackBytes, CLONE_VM | CLONE_VFORK | SIGCHLD, &plan);
    if (middle < 0) {
      plan.error = errno;
    } else {
      int status = 0;
      // ECHILD: the job ignores SIGCHLD, and the middle process is already gone.
      while (waitpid(middle, &status, 0) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    munmap(stacks, 2 * kStackBytes);
  }
  if (plan.error != 0) {
    errno = plan.error;
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, arguments[0].c_str());
    throw py::error_already_set();
  }
  return plan.pid;
}

}  // namespace

void register_spawn(py::module_& module) {
  module.def("spawn_detached", &spawn_detached, py::arg("arguments"), py::arg("environment"),
             py::arg("log") = -1);
}

}  // namespace haiprof::python

// haiprof-perfd: opens the memory and power counters of its machine for those who may not.
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/sources.h"
#include "perf/perfd_wire.h"
#include "perfd/access.h"
#include "perfd/listener.h"
#include "perfd/log.h"
#include "perfd/rights.h"
#include "perfd/server.h"
#include "uncore/plan.h"

namespace {

using haiprof::perfd::write_line;

constexpr int kFailed = 1;
constexpr int kMisused = 2;

constexpr const char* kHelp =
    "usage: haiprof-perfd [options]\n"
    "\n"
    "Opens the counters of memory bandwidth, of traffic between sockets and of power on this\n"
    "machine, and passes them to a haiprof that lacks the right. Needs CAP_PERFMON, or\n"
    "kernel.perf_event_paranoid at 0 or below. Serves root and its own user, and whom you allow.\n"
    "\n"
    "  --socket PATH       where to listen (default /run/haiprof/perfd.sock)\n"
    "  --mode OCTAL        mode of the socket (default 0666; users are checked separately)\n"
    "  --allow-uid N       serve this user, too; may be repeated\n"
    "  --allow-group NAME  serve users of this group, by name or number; may be repeated\n"
    "  --allow-any         serve every user\n"
    "  --sysfs-root DIR    where the machine's /sys is (default /sys)\n"
    "  --procfs-root DIR   where the machine's /proc is (default /proc)\n"
    "  --help, --version\n";

struct Settings {
  std::string socket = "/run/haiprof/perfd.sock";
  mode_t mode = 0666;
  haiprof::perfd::Access access;
  haiprof::host::Roots roots;
};

template <typename Number>
bool parse(std::string_view text, Number& number, int base = 10) noexcept {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number, base);
  return error == std::errc{} && stopped == end;
}

// An existing group's number; a number need not be known here.
bool parse_group(const char* text, gid_t& gid) {
  if (const group* const entry = getgrnam(text); entry != nullptr) {
    gid = entry->gr_gid;
    return true;
  }
  return parse(text, gid);
}

// -1 to go on; else the exit status.
int read_arguments(int count, char** arguments, Settings& settings) {
  enum Flag { socket = 256, mode, uid, gid, any, sysfs, procfs, help, version };
  constexpr option kFlags[] = {{"socket", required_argument, nullptr, socket},
                               {"mode", required_argument, nullptr, mode},
                               {"allow-uid", required_argument, nullptr, uid},
                               {"allow-group", required_argument, nullptr, gid},
                               {"allow-any", no_argument, nullptr, any},
                               {"sysfs-root", required_argument, nullptr, sysfs},
                               {"procfs-root", required_argument, nullptr, procfs},
                               {"help", no_argument, nullptr, help},
                               {"version", no_argument, nullptr, version},
                               {}};
  const auto wrong = [](const char* flag, const char* fix) {
    write_line(std::string(flag) + " " + optarg + ": " + fix);
    return kMisused;
  };
  opterr = 0;
  for (;;) {
    const int flag = getopt_long(count, arguments, "", kFlags, nullptr);
    if (flag < 0) break;
    uid_t user = 0;
    gid_t group = 0;
    switch (flag) {
      case socket:
        settings.socket = optarg;
        break;
      case mode:
        if (!parse(optarg, settings.mode, 8) || settings.mode > 0777) {
          return wrong("--mode", "give an octal number up to 0777");
        }
        break;
      case uid:
        if (!parse(optarg, user) || user == static_cast<uid_t>(-1)) {
          return wrong("--allow-uid", "give the number of a user (see id -u NAME)");
        }
        settings.access.uids.push_back(user);
        break;
      case gid:
        if (!parse_group(optarg, group)) {
          return wrong("--allow-group", "there is no such group here; give its number");
        }
        settings.access.gids.push_back(group);
        break;
      case any:
        settings.access.any = true;
        break;
      case sysfs:
        settings.roots.sysfs = optarg;
        break;
      case procfs:
        settings.roots.procfs = optarg;
        break;
      case help:
        std::fputs(kHelp, stdout);
        return 0;
      case version:
        std::printf("haiprof-perfd %s, protocol %u\n", HAIPROF_VERSION,
                    haiprof::perf::wire::kVersion);
        return 0;
      default:
        write_line(std::string(arguments[optind - 1]) +
                   ": no such option, or its value is missing; haiprof-perfd --help lists them");
        return kMisused;
    }
  }
  if (optind < count) {
    write_line(std::string(arguments[optind]) + ": not an option; haiprof-perfd --help lists them");
    return kMisused;
  }
  return -1;
}

volatile std::sig_atomic_t stop = 0;

// The signals that end the server arrive only while it waits, which is when the mask given back is
// in force.
sigset_t catch_signals() noexcept {
  sigset_t mask;
  sigset_t ending;
  sigemptyset(&ending);
  struct sigaction action{};
  action.sa_handler = [](int) { stop = 1; };
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    sigaddset(&ending, signal);
    sigaction(signal, &action, nullptr);
  }
  action.sa_handler = [](int) {};  // only to interrupt what waits
  sigaction(SIGALRM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigprocmask(SIG_BLOCK, &ending, &mask);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGALRM}) sigdelset(&mask, signal);
  return mask;
}

// A descriptor of ours must not become what others take for standard error.
void have_standard_streams() noexcept {
  while (true) {
    const int fd = open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO) {
      close(fd);
      return;
    }
    if (fd < 0) return;
  }
}

// The counters of this machine; its problems are written once.
class Finder {
 public:
  explicit Finder(haiprof::host::Roots roots) : roots_(std::move(roots)) {}

  std::vector<haiprof::perfd::Counter> operator()() {
    haiprof::uncore::Plan plan = haiprof::uncore::make_plan(roots_);
    if (plan.problems != problems_) {
      problems_ = std::move(plan.problems);
      for (const std::string& problem : problems_) write_line(problem);
    }
    std::vector<haiprof::perfd::Counter> counters;
    for (const haiprof::uncore::Box& box : plan.boxes) {
      for (const haiprof::uncore::Counter& counter : box.counters) {
        counters.push_back({counter.event, box.cpu});
      }
    }
    return counters;
  }

 private:
  haiprof::host::Roots roots_;
  std::vector<std::string> problems_;
};

int run(const Settings& settings) {
  using namespace haiprof;
  perfd::raise_open_files();
  const sigset_t mask = catch_signals();
  perfd::Listener listener;
  if (const std::string problem = listener.open(settings.socket, settings.mode); !problem.empty()) {
    write_line(problem);
    return kFailed;
  }
  if (const std::string problem = perfd::keep_only_counting(); !problem.empty()) {
    write_line("cannot give up its rights: " + problem);
    return kFailed;
  }
  if (!perfd::may_count(settings.roots.procfs)) {
    write_line(std::string("no right to open counters: ") + perfd::kHaveTheRight);
  }
  perfd::Server server(listener.fd(), settings.access, Finder(settings.roots),
                       settings.roots.procfs);
  write_line("listens at " + settings.socket + ", with " + std::to_string(server.counters()) +
             " counters to pass on");
  server.run(stop, mask);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  have_standard_streams();
  try {
    Settings settings;
    const int status = read_arguments(count, arguments, settings);
    return status >= 0 ? status : run(settings);
  } catch (const std::exception& error) {
    write_line(error.what());
    return kFailed;
  }
}

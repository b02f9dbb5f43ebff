#include "perfd/listener.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "host/file.h"

namespace haiprof::perfd {

namespace {

using base::UniqueFd;
using host::error_text;

constexpr int kQueue = 128;  // of connections that nobody has accepted yet
constexpr const char* kElsewhere = "; or choose another place with --socket";

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Opens the folder, or creates it.
std::string open_folder(const std::string& folder, UniqueFd& opened) {
  if (mkdir(folder.c_str(), 0755) == 0) {
    chmod(folder.c_str(), 0755);
  } else if (errno != EEXIST) {
    return "cannot create the folder " + folder + ": " + error_text(errno) +
           "; create it, owned by user " + std::to_string(geteuid()) + kElsewhere;
  }
  opened.reset(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status{};
  if (!opened || fstat(opened.get(), &status) != 0) {
    return "cannot open the folder " + folder + ": " + error_text(errno) + kElsewhere;
  }
  if (status.st_uid != geteuid() || (status.st_mode & 022) != 0) {
    return "others could replace a socket in " + folder + "; let user " +
           std::to_string(geteuid()) + " own it, with mode 0755" + kElsewhere;
  }
  return {};
}

// Of two that start at the same time, one after the other. Not for ever: everybody who may enter
// the folder could hold it.
void take_turns(const UniqueFd& folder) noexcept {
  for (int i = 0; i < 100 && flock(folder.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    const timespec pause{0, 10'000'000};
    nanosleep(&pause, nullptr);
  }
}

// Removes what a server that was killed has left behind, and nothing else.
std::string clear(const std::string& path, const sockaddr_un& address) {
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0) {
    return errno == ENOENT ? "" : "cannot look at " + path + ": " + error_text(errno);
  }
  if (!S_ISSOCK(status.st_mode))
    return path + " exists and is not a socket; remove it" + kElsewhere;
  const UniqueFd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return "cannot create a socket: " + error_text(errno);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno != ECONNREFUSED) {
    return "another server listens at " + path + "; stop it" + kElsewhere;
  }
  if (unlink(path.c_str()) != 0) return "cannot remove the old " + path + ": " + error_text(errno);
  return {};
}

}  // namespace

std::string Listener::open(const std::string& path, mode_t mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.back() == '/') return "--socket " + path + ": name a file";
  if (path.size() >= sizeof address.sun_path) {
    return "--socket " + path + ": has " + std::to_string(path.size()) + " bytes, and " +
           std::to_string(sizeof address.sun_path - 1) + " is the limit; choose a shorter one";
  }
  path.copy(address.sun_path, path.size());
  UniqueFd folder;
  if (std::string problem = open_folder(folder_of(path), folder); !problem.empty()) return problem;
  take_turns(folder);
  if (std::string problem = clear(path, address); !problem.empty()) return problem;
  socket_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Nobody can connect before listen(), and so not with another mode.
  struct stat status{};
  if (!socket_ || bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) ||
      lstat(path.c_str(), &status) != 0) {
    return "cannot create the socket " + path + ": " + error_text(errno) + kElsewhere;
  }
  path_ = path;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  if (chmod(path.c_str(), mode) != 0 || listen(socket_.get(), kQueue) != 0) {
    return "cannot listen at " + path + ": " + error_text(errno) + kElsewhere;
  }
  return {};
}

Listener::~Listener() {
  struct stat status{};
  if (path_.empty() || lstat(path_.c_str(), &status) != 0) return;
  if (status.st_dev == device_ && status.st_ino == inode_) unlink(path_.c_str());
}

}  // namespace haiprof::perfd

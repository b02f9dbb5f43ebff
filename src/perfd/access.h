// Decides whom haiprof-perfd serves, by the user and groups that the kernel says a peer has.
#pragma once

#include <sys/types.h>

#include <vector>

namespace haiprof::perfd {

struct Access {
  std::vector<uid_t> uids;
  std::vector<gid_t> gids;
  bool any = false;
};

struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// The process at the other end of a connection; false when the kernel does not say.
bool identify(int connection, Peer& peer) noexcept;

// Root and the own user are always allowed.
bool allows(const Access& access, int connection, const Peer& peer) noexcept;

}  // namespace haiprof::perfd

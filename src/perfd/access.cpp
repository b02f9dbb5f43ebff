#include "perfd/access.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace haiprof::perfd {

namespace {

// Not known to the headers of old systems.
constexpr int kPeerGroups = 59;             // SO_PEERGROUPS
constexpr std::size_t kMostGroups = 65536;  // NGROUPS_MAX

bool has_one_of(const std::vector<gid_t>& gids, int connection, gid_t first) noexcept {
  const auto among = [&](gid_t gid) {
    return std::find(gids.begin(), gids.end(), gid) != gids.end();
  };
  if (among(first)) return true;
  static std::array<gid_t, kMostGroups> groups;
  socklen_t bytes = sizeof groups;
  if (getsockopt(connection, SOL_SOCKET, kPeerGroups, groups.data(), &bytes) != 0) return false;
  return std::any_of(groups.begin(), groups.begin() + bytes / sizeof(gid_t), among);
}

}  // namespace

bool identify(int connection, Peer& peer) noexcept {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) return false;
  peer = {credentials.pid, credentials.uid, credentials.gid};
  return true;
}

bool allows(const Access& access, int connection, const Peer& peer) noexcept {
  return access.any || peer.uid == 0 || peer.uid == geteuid() ||
         std::find(access.uids.begin(), access.uids.end(), peer.uid) != access.uids.end() ||
         (!access.gids.empty() && has_one_of(access.gids, connection, peer.gid));
}

}  // namespace haiprof::perfd

#include "stacks/remote.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace haiprof::stacks {
namespace {

constexpr std::size_t kAtOnce = 1024;  // IOV_MAX

}  // namespace

int Remote::begin() {
  known_.clear();
  buffer_.resize(place_bytes_);
  std::vector<iovec> ours, theirs;
  const auto got = std::make_unique<bool[]>(places_.size());
  std::vector<bool*> whole;
  std::size_t at = 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    ours.push_back({&buffer_[at], place.bytes});
    theirs.push_back({reinterpret_cast<void*>(place.address), place.bytes});
    whole.push_back(&got[i]);
    at += place.bytes;
  }
  const int error = transfer(ours, theirs, whole);
  at = 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (got[i]) {
      Known& known = known_[places_[i].address];
      if (places_[i].bytes > known.bytes) known = {places_[i].bytes, at};
    }
    at += places_[i].bytes;
  }
  places_.clear();
  place_bytes_ = 0;
  return error;
}

void Remote::want(std::uint64_t address, void* to, std::size_t bytes, bool& whole) {
  whole = bytes == 0;
  if (whole) return;
  if (places_.size() < kMostPlaces && place_bytes_ + bytes <= kMostBytes) {
    places_.push_back({address, bytes});
    place_bytes_ += bytes;
  }
  const auto known = known_.find(address);
  if (known != known_.end() && known->second.bytes >= bytes) {
    std::memcpy(to, &buffer_[known->second.at], bytes);
    whole = true;
    return;
  }
  ours_.push_back({to, bytes});
  theirs_.push_back({reinterpret_cast<void*>(address), bytes});
  whole_.push_back(&whole);
}

int Remote::read() {
  const int error = transfer(ours_, theirs_, whole_);
  ours_.clear();
  theirs_.clear();
  whole_.clear();
  return error;
}

// The kernel stops at the first place that it cannot read, and says how many bytes came before.
int Remote::transfer(std::vector<iovec>& ours, std::vector<iovec>& theirs,
                     const std::vector<bool*>& whole) const {
  for (std::size_t at = 0; at < ours.size();) {
    const std::size_t count = std::min(ours.size() - at, kAtOnce);
    const ssize_t moved = process_vm_readv(pid_, &ours[at], count, &theirs[at], count, 0);
    if (moved < 0 && errno != EFAULT) return errno;
    auto left = static_cast<std::size_t>(std::max<ssize_t>(moved, 0));
    const std::size_t end = at + count;
    while (at < end && ours[at].iov_len <= left) {
      left -= ours[at].iov_len;
      *whole[at++] = true;
    }
    if (at < end) ++at;  // the one that it cannot read
  }
  return 0;
}

}  // namespace haiprof::stacks

#include "stacks/remote.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace haiprof::stacks {
namespace {

constexpr std::size_t kAtOnce = 1024;  // IOV_MAX

std::uint64_t begin_of(const iovec& part) noexcept {
  return reinterpret_cast<std::uint64_t>(part.iov_base);
}

}  // namespace

int Remote::begin() {
  std::swap(known_, places_);
  places_.clear();
  read_ = next_known_ = used_ = 0;
  for (Place& place : known_) place.whole = false;
  in_order_ = true;
  return transfer(known_);
}

void Remote::forget() noexcept {
  known_.clear();
  places_.clear();
  read_ = used_ = 0;
}

void Remote::end() {
  std::size_t count = 0, bytes = 0;
  for (const Place& place : places_) {
    bytes += place.bytes;
    if (count == kMostPlaces || bytes > kMostBytes) break;
    ++count;
  }
  places_.resize(count);
  if (buffer_.size() <= kMostKept) return;
  std::vector<std::uint8_t>(kLeast).swap(buffer_);
  for (auto* const places : {&places_, &known_}) places->shrink_to_fit();
  for (auto* const parts : {&ours_, &theirs_}) *parts = {};
}

// They come in the order of the last look, mostly.
const Remote::Place* Remote::known(std::uint64_t address, std::size_t bytes) noexcept {
  for (std::size_t n = 0; n < known_.size(); ++n) {
    if (next_known_ >= known_.size()) next_known_ = 0;
    const Place& place = known_[next_known_++];
    if (place.address == address && place.bytes >= bytes && place.whole) return &place;
  }
  return nullptr;
}

Remote::Wanted Remote::want(std::uint64_t address, std::size_t bytes) {
  const Place* const place = known(address, bytes);
  places_.push_back({address, bytes, place == nullptr ? 0 : place->at, place != nullptr});
  return static_cast<Wanted>(places_.size() - 1);
}

Remote::Wanted Remote::want_after(std::uint64_t address, std::size_t bytes) {
  if (in_order_) return want(address, bytes);
  places_.push_back({address, bytes, 0, false});
  return static_cast<Wanted>(places_.size() - 1);
}

int Remote::read() {
  const std::size_t before = used_;
  const int error = transfer(std::span(places_).subspan(read_));
  read_ = places_.size();
  if (used_ != before) in_order_ = false;
  return error;
}

int Remote::transfer(std::span<Place> places) {
  int error = 0;
  // One of several that were read as one may be there without the others.
  if (!read_as(places, kNear, error) && error == 0) {
    in_order_ = false;
    read_as(places, 0, error);
  }
  return error;
}

// As process_vm_readv does: the bytes that came before the first part that cannot be read whole.
ssize_t Remote::copy(std::size_t first, std::size_t count) const noexcept {
  if (!memory_) return process_vm_readv(pid_, &ours_[first], count, &theirs_[first], count, 0);
  ssize_t moved = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    const iovec& ours = ours_[i];
    const ssize_t got =
        pread(memory_.get(), ours.iov_base, ours.iov_len, static_cast<off_t>(begin_of(theirs_[i])));
    if (got == 0) {  // the memory is gone: the process has ended, or runs another program
      std::uint8_t byte = 0;
      const iovec here{&byte, 1}, there{theirs_[i].iov_base, 1};
      const bool ended = process_vm_readv(pid_, &here, 1, &there, 1, 0) < 0 && errno == ESRCH;
      return ended ? -1 : 0;
    }
    moved += std::max<ssize_t>(got, 0);
    if (got != static_cast<ssize_t>(ours.iov_len)) break;
  }
  return moved;
}

// False: some that were read as one are not all there.
bool Remote::read_as(std::span<Place> places, std::uint64_t near, int& error) {
  ours_.clear();
  theirs_.clear();
  for (std::size_t i = 0; i < places.size(); ++i) {
    Place& place = places[i];
    if (place.bytes == 0) place.whole = true;
    if (place.whole) continue;
    if (used_ + place.bytes > kMostInLook) {
      places = places.first(i);
      break;
    }
    // Of one that lies before it this is huge.
    const std::uint64_t into = theirs_.empty() ? 0 : place.address - begin_of(theirs_.back());
    if (near != 0 && !theirs_.empty() && into <= theirs_.back().iov_len + near) {
      iovec& part = theirs_.back();
      place.at = used_ - part.iov_len + into;
      used_ -= part.iov_len;
      part.iov_len = std::max<std::size_t>(part.iov_len, into + place.bytes);
      used_ += part.iov_len;
    } else {
      place.at = used_;
      theirs_.push_back({reinterpret_cast<void*>(place.address), place.bytes});
      used_ += place.bytes;
    }
  }
  if (theirs_.empty()) return true;
  if (used_ > buffer_.size()) buffer_.resize(std::max(used_, 2 * buffer_.size()));
  std::size_t at = used_;
  for (const iovec& part : theirs_) at -= part.iov_len;
  for (const iovec& part : theirs_) {
    ours_.push_back({&buffer_[at], part.iov_len});
    at += part.iov_len;
  }

  bool all = true;
  auto place = places.begin();
  for (std::size_t done = 0; done < ours_.size();) {
    const std::size_t count = std::min(ours_.size() - done, kAtOnce);
    const ssize_t moved = copy(done, count);
    if (moved < 0 && errno != EFAULT) {
      error = errno;
      return false;
    }
    // The kernel stops at the first part that it cannot read, and says how many bytes came before.
    auto left = static_cast<std::size_t>(std::max<ssize_t>(moved, 0));
    for (const std::size_t end = done + count; done < end; ++done) {
      const std::size_t length = ours_[done].iov_len;
      const std::size_t begin = static_cast<std::uint8_t*>(ours_[done].iov_base) - buffer_.data();
      std::size_t places_in_it = 0;
      for (; place != places.end(); ++place) {
        if (place->whole) continue;
        if (place->at < begin || place->at >= begin + length) break;
        place->whole = place->at + place->bytes <= begin + left;
        ++places_in_it;
      }
      if (left < length) {
        all = all && places_in_it == 1;
        ++done;
        break;
      }
      left -= length;
    }
  }
  return all;
}

}  // namespace haiprof::stacks

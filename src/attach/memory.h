// The memory of another process, read and written while it runs or is stopped.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace haiprof::attach {

class Memory {
 public:
  explicit Memory(pid_t pid) : pid_(pid) {}

  // 0, or the errno: EPERM when we may not, ESRCH when it ended, EFAULT when not all is mapped.
  int read(std::uint64_t address, std::span<std::byte> into) const noexcept;
  int write(std::uint64_t address, std::span<const std::byte> from) const noexcept;

  template <typename Value>
  int read_value(std::uint64_t address, Value& into) const noexcept {
    static_assert(std::is_trivially_copyable_v<Value>);
    return read(address, std::as_writable_bytes(std::span(&into, 1)));
  }
  template <typename Value>
  int write_value(std::uint64_t address, const Value& from) const noexcept {
    static_assert(std::is_trivially_copyable_v<Value>);
    return write(address, std::as_bytes(std::span(&from, 1)));
  }

 private:
  pid_t pid_;
};

}  // namespace haiprof::attach

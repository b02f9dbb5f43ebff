// The dynamic symbols of an ELF object, read from the memory of the process that has loaded it.
//
// All that the dynamic linker of that process needs is there: headers, hash table, names. So no
// file is opened: it may have been replaced since, be deleted, or lie in another mount namespace.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "attach/maps.h"
#include "attach/memory.h"

namespace haiprof::attach {

class Image {
 public:
  // The object whose ELF header is at `base`; none unless it is a dynamic ELF object of our class
  // and machine.
  static std::optional<Image> at(const Memory& memory, std::uint64_t base);

  // The address of the object's definition of this name; 0 without one.
  std::uint64_t symbol(std::string_view name) const;

  // A part that the dynamic linker makes read-only when it has relocated the object; 0 when there
  // is no such part.
  std::uint64_t read_only_after_relocation() const noexcept { return relro_; }

 private:
  explicit Image(const Memory& memory) : memory_(memory) {}
  bool named(std::uint64_t index, std::string_view name, std::uint64_t& value) const;
  std::uint64_t by_gnu_hash(std::string_view name) const;
  std::uint64_t by_hash(std::string_view name) const;

  Memory memory_;
  std::uint64_t bias_ = 0;  // added to an address in the file
  std::uint64_t symbols_ = 0;
  std::uint64_t names_ = 0;
  std::uint64_t gnu_hash_ = 0;
  std::uint64_t hash_ = 0;
  std::uint64_t relro_ = 0;
};

// Whether there is an ELF object of our own class and machine at `base`.
bool native(const Memory& memory, std::uint64_t base);

}  // namespace haiprof::attach

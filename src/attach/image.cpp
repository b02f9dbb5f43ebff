#include "attach/image.h"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace haiprof::attach {

namespace {

#if defined(__x86_64__)
constexpr std::uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr std::uint16_t kMachine = EM_AARCH64;
#endif

// Longer chains are not hash chains.
constexpr int kLongestChain = 4096;
constexpr std::size_t kMostHeaders = 64;
constexpr std::size_t kMostEntries = 256;

std::uint32_t gnu_hash_of(std::string_view name) {
  std::uint32_t hash = 5381;
  for (const char c : name) hash = hash * 33 + static_cast<unsigned char>(c);
  return hash;
}

std::uint32_t hash_of(std::string_view name) {
  std::uint32_t hash = 0;
  for (const char c : name) {
    hash = (hash << 4) + static_cast<unsigned char>(c);
    hash = (hash ^ ((hash & 0xf0000000) >> 24)) & 0x0fffffff;
  }
  return hash;
}

bool read_header(const Memory& memory, std::uint64_t base, Elf64_Ehdr& header) {
  return memory.read_value(base, header) == 0 &&
         std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_machine == kMachine;
}

}  // namespace

bool native(const Memory& memory, std::uint64_t base) {
  Elf64_Ehdr header;
  return read_header(memory, base, header);
}

std::optional<Image> Image::at(const Memory& memory, std::uint64_t base) {
  Elf64_Ehdr header;
  if (!read_header(memory, base, header)) return std::nullopt;
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > kMostHeaders) {
    return std::nullopt;
  }
  Image image(memory);
  std::uint64_t dynamic = 0;
  bool loaded = false;
  std::uint64_t relro = 0;
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    if (memory.read_value(base + header.e_phoff + i * sizeof part, part) != 0) return std::nullopt;
    if (part.p_type == PT_LOAD && !loaded) {
      // The part that holds the header is loaded first, at a whole page.
      image.bias_ = base - (part.p_vaddr - part.p_offset);
      loaded = true;
    }
    if (part.p_type == PT_DYNAMIC) dynamic = part.p_vaddr;
    if (part.p_type == PT_GNU_RELRO) relro = part.p_vaddr;
  }
  if (!loaded || dynamic == 0) return std::nullopt;
  if (relro != 0) image.relro_ = image.bias_ + relro;
  // glibc adds the bias to these addresses where they lie; musl does not, nor did glibc yet in an
  // object that is being loaded.
  const auto relocated = [&image](std::uint64_t address) {
    return address < image.bias_ ? address + image.bias_ : address;
  };
  for (std::uint64_t i = 0; i < kMostEntries; ++i) {
    Elf64_Dyn entry;
    const std::uint64_t at = image.bias_ + dynamic + i * sizeof entry;
    if (memory.read_value(at, entry) != 0 || entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_SYMTAB) image.symbols_ = relocated(entry.d_un.d_ptr);
    if (entry.d_tag == DT_STRTAB) image.names_ = relocated(entry.d_un.d_ptr);
    if (entry.d_tag == DT_GNU_HASH) image.gnu_hash_ = relocated(entry.d_un.d_ptr);
    if (entry.d_tag == DT_HASH) image.hash_ = relocated(entry.d_un.d_ptr);
  }
  if (image.symbols_ == 0 || image.names_ == 0) return std::nullopt;
  return image;
}

std::uint64_t Image::symbol(std::string_view name) const {
  if (gnu_hash_ != 0) return by_gnu_hash(name);
  return hash_ != 0 ? by_hash(name) : 0;
}

// Whether the symbol of this index is the one, defined here; then its address.
bool Image::named(std::uint64_t index, std::string_view name, std::uint64_t& value) const {
  Elf64_Sym symbol;
  if (memory_.read_value(symbols_ + index * sizeof symbol, symbol) != 0) return false;
  if (symbol.st_shndx == SHN_UNDEF || symbol.st_value == 0) return false;
  std::string text(name.size() + 1, 'x');
  if (memory_.read(names_ + symbol.st_name, std::as_writable_bytes(std::span(text))) != 0) {
    return false;
  }
  if (text.back() != '\0' || !std::string_view(text).starts_with(name)) return false;
  value = bias_ + symbol.st_value;
  return true;
}

std::uint64_t Image::by_gnu_hash(std::string_view name) const {
  struct {
    std::uint32_t buckets, first, words, shift;
  } table;
  if (memory_.read_value(gnu_hash_, table) != 0 || table.buckets == 0 || table.words == 0 ||
      table.shift > 31) {
    return 0;
  }
  const std::uint32_t hash = gnu_hash_of(name);
  // The filter answers for most objects, with one read more.
  std::uint64_t word = 0;
  const std::uint64_t filter = gnu_hash_ + sizeof table;
  if (memory_.read_value(filter + hash / 64 % table.words * 8, word) != 0) return 0;
  if ((word >> (hash % 64) & 1) == 0 || (word >> ((hash >> table.shift) % 64) & 1) == 0) return 0;
  const std::uint64_t buckets = filter + std::uint64_t{table.words} * 8;
  const std::uint64_t chains = buckets + std::uint64_t{table.buckets} * 4;
  std::uint32_t index = 0;
  if (memory_.read_value(buckets + hash % table.buckets * 4, index) != 0) return 0;
  if (index < table.first) return 0;
  for (int step = 0; step < kLongestChain; ++step, ++index) {
    std::uint32_t chained = 0;
    if (memory_.read_value(chains + std::uint64_t{index - table.first} * 4, chained) != 0) return 0;
    std::uint64_t value = 0;
    if ((chained | 1) == (hash | 1) && named(index, name, value)) return value;
    if ((chained & 1) != 0) return 0;  // the last of its bucket
  }
  return 0;
}

std::uint64_t Image::by_hash(std::string_view name) const {
  struct {
    std::uint32_t buckets, chains;
  } table;
  if (memory_.read_value(hash_, table) != 0 || table.buckets == 0) return 0;
  const std::uint64_t buckets = hash_ + sizeof table;
  const std::uint64_t chains = buckets + std::uint64_t{table.buckets} * 4;
  std::uint32_t index = 0;
  if (memory_.read_value(buckets + hash_of(name) % table.buckets * 4, index) != 0) return 0;
  for (int step = 0; step < kLongestChain && index != 0 && index < table.chains; ++step) {
    std::uint64_t value = 0;
    if (named(index, name, value)) return value;
    if (memory_.read_value(chains + std::uint64_t{index} * 4, index) != 0) return 0;
  }
  return 0;
}

}  // namespace haiprof::attach

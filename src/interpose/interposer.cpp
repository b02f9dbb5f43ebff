#include "interpose/interposer.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace haiprof::interpose {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kJumpSlot = R_X86_64_JUMP_SLOT, kGlobDat = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr std::uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobDat = R_AARCH64_GLOB_DAT;
#else
constexpr std::uint32_t kJumpSlot = UINT32_MAX, kGlobDat = UINT32_MAX;
#endif

std::uintptr_t address_of(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// A former slot may be any memory of the object that is there now: a checker's gaps, too.
[[gnu::no_sanitize_address]] void* load(void** slot) noexcept {
  return __atomic_load_n(slot, __ATOMIC_RELAXED);
}

// Whether memory may be written now. The kernel says: asked to add no bit to a word, it answers
// with an error where our own write would fault.
bool writable(void** slot) noexcept {
  const int before = errno;
  std::uint32_t nobody = 0;
  constexpr auto kNoBit = FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0);
  const long woken = syscall(SYS_futex, &nobody, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, nullptr,
                             slot, static_cast<std::uint32_t>(kNoBit));
  errno = before;
  return woken >= 0;
}

bool lies_in(const dl_phdr_info& info, const void* pointer) noexcept {
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr) & header = info.dlpi_phdr[i];
    const std::uintptr_t at = address_of(pointer) - info.dlpi_addr - header.p_vaddr;
    if (header.p_type == PT_LOAD && at < header.p_memsz) return true;
  }
  return false;
}

}  // namespace

bool store(void** slot, void* value, bool guarded) noexcept {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  void* const from = reinterpret_cast<void*>(address_of(slot) / page * page);
  const bool closed = guarded && !writable(slot);
  if (closed && mprotect(from, page, PROT_READ | PROT_WRITE) != 0) return false;
  std::atomic_ref<void*>(*slot).store(value, std::memory_order_release);
  if (closed) mprotect(from, page, PROT_READ);
  return true;
}

// One object as the loader describes it, and the parts of it that lead to its slots.
struct Interposer::Image {
  explicit Image(const dl_phdr_info& object_info) noexcept
      : info(object_info), base(object_info.dlpi_addr) {
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const ElfW(Phdr) & header = info.dlpi_phdr[i];
      if (header.p_type == PT_DYNAMIC) {
        read(reinterpret_cast<const ElfW(Dyn)*>(base + header.p_vaddr));
      }
    }
  }

  void read(const ElfW(Dyn) * entry) noexcept {
    for (; entry->d_tag != DT_NULL; ++entry) {
      // glibc has made these addresses, other loaders leave them as they are in the file.
      const std::uintptr_t value = entry->d_un.d_val;
      const std::uintptr_t address = value < base ? base + value : value;
      switch (entry->d_tag) {
        case DT_SYMTAB:
          symbols = reinterpret_cast<const ElfW(Sym)*>(address);
          break;
        case DT_STRTAB:
          texts = reinterpret_cast<const char*>(address);
          break;
        case DT_STRSZ:
          texts_bytes = value;
          break;
        case DT_JMPREL:
          calls = reinterpret_cast<const ElfW(Rela)*>(address);
          break;
        case DT_PLTRELSZ:
          calls_count = value / sizeof(ElfW(Rela));
          break;
        case DT_RELA:
          others = reinterpret_cast<const ElfW(Rela)*>(address);
          break;
        case DT_RELASZ:
          others_count = value / sizeof(ElfW(Rela));
          break;
        case DT_RELACOUNT:
          relative = value;
          break;
        case DT_GNU_HASH:
          hashes = reinterpret_cast<const std::uint32_t*>(address);
          break;
        case DT_SONAME:
          own_name = value;
          break;
        case DT_NEEDED:
          needed.push_back(value);
          break;
      }
    }
  }

  const char* text(std::uintptr_t at) const noexcept {
    return texts != nullptr && at < texts_bytes ? texts + at : "";
  }

  bool has(const void* pointer) const noexcept { return lies_in(info, pointer); }

  // Whether a slot holds what the file has there: nothing, or where in the file a call begins.
  bool untouched(const void* value, const ElfW(Sym) & symbol) const noexcept {
    if (value == nullptr) return ELF64_ST_BIND(symbol.st_info) != STB_WEAK;
    return base != 0 && has(reinterpret_cast<const void*>(base + address_of(value)));
  }

  // Whether the loader has made that place read-only after it had put everything there.
  bool guards(const void* pointer) const noexcept {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const ElfW(Phdr) & header = info.dlpi_phdr[i];
      if (header.p_type != PT_GNU_RELRO) continue;
      const std::uintptr_t begin = base + header.p_vaddr;
      const std::uintptr_t end = (begin + header.p_memsz) / page * page;
      if (address_of(pointer) >= begin / page * page && address_of(pointer) < end) return true;
    }
    return false;
  }

  // What the object itself defines by that name.
  Definition definition(const char* name) const noexcept {
    if (hashes == nullptr || symbols == nullptr) return {};
    std::uint32_t hash = 5381;
    for (const char* at = name; *at != '\0'; ++at) {
      hash = hash * 33 + static_cast<unsigned char>(*at);
    }
    const std::uint32_t bucket_count = hashes[0], first = hashes[1], words = hashes[2];
    if (bucket_count == 0 || words == 0) return {};
    constexpr std::uint32_t kBits = sizeof(ElfW(Addr)) * 8;
    const auto* const bloom = reinterpret_cast<const ElfW(Addr)*>(hashes + 4);
    const ElfW(Addr) word = bloom[hash / kBits % words];
    if ((word >> (hash % kBits) & word >> ((hash >> hashes[3]) % kBits) & 1) == 0) return {};
    const auto* const buckets = reinterpret_cast<const std::uint32_t*>(bloom + words);
    const std::uint32_t* const chains = buckets + bucket_count;
    std::uint32_t index = buckets[hash % bucket_count];
    if (index < first) return {};
    for (;; ++index) {
      const std::uint32_t other = chains[index - first];
      const ElfW(Sym) & symbol = symbols[index];
      if ((other | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF &&
          (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC ||
           ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT) &&
          std::strcmp(text(symbol.st_name), name) == 0) {
        return {reinterpret_cast<void*>(base + symbol.st_value), symbol.st_size};
      }
      if ((other & 1) != 0) return {};
    }
  }

  const dl_phdr_info& info;
  std::uintptr_t base;
  const std::uint32_t* hashes = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  const char* texts = nullptr;
  std::size_t texts_bytes = 0;
  const ElfW(Rela) * calls = nullptr;
  std::size_t calls_count = 0;
  const ElfW(Rela) * others = nullptr;
  std::size_t others_count = 0, relative = 0;
  std::uintptr_t own_name = 0;
  std::vector<std::uintptr_t> needed;
};

// One walk over the loaded objects. The loader unloads nothing while it lasts.
struct Interposer::Walk {
  Interposer& all;
  std::size_t count = 0;  // slots that hold one of ours
  bool first = true;
  bool afresh = false;  // something was unloaded: another may lie in its place
  bool complete = true;
  std::size_t at = 0;  // of the objects known before, which come in the same order
  std::vector<Object> objects;
};

Definition Interposer::find_definition(const char* name) noexcept {
  struct Search {
    const char* name;
    Definition found;
  } search{name, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* pointer) {
        Search& now = *static_cast<Search*>(pointer);
        try {
          now.found = Image(*info).definition(now.name);
        } catch (...) {
          return 0;  // out of memory
        }
        return now.found.address != nullptr ? 1 : 0;
      },
      &search);
  return search.found;
}

void Interposer::replace(std::vector<Replacement> functions) {
  const std::lock_guard guard(mutex_);
  if (!functions_.empty() || functions.empty()) return;
  functions_ = std::move(functions);
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* self) {
        Interposer& all = *static_cast<Interposer*>(self);
        const Image image(*info);
        if (!image.has(all.functions_[0].theirs)) return 0;
        all.library_ = image.text(image.own_name);
        return 1;
      },
      this);
}

void Interposer::find_slots(const Image& image, const Object* previous, Object& object) const {
  const bool within = calls_ == Calls::within;
  if (image.symbols == nullptr || image.has(functions_[0].theirs) != within ||
      image.has(functions_[0].ours)) {
    return;
  }
  // Whoever gives out memory may be in the middle of that, with locks that we would wait for.
  if (image.definition("malloc").address != nullptr) return;
  // Of two copies in one process, the object may use the other one: for calls that were not made
  // yet, only the name by which it asks for the library shows it.
  const bool asks =
      within || std::any_of(image.needed.begin(), image.needed.end(),
                            [&](std::uintptr_t at) { return library_ == image.text(at); });
  const auto look = [&](const ElfW(Rela) & entry) {
    const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(entry.r_info));
    if (type != kJumpSlot && type != kGlobDat) return;
    const ElfW(Sym) & symbol = image.symbols[ELF64_R_SYM(entry.r_info)];
    if ((symbol.st_shndx != SHN_UNDEF) != within) return;
    const char* const name = image.text(symbol.st_name);
    for (const Replacement& function : functions_) {
      if (name[0] != function.name[0] || std::strcmp(name, function.name) != 0) continue;
      void** const place = reinterpret_cast<void**>(image.base + entry.r_offset);
      void* before = load(place);
      if (before == function.ours) before = before_ours(previous, place, function);
      // A call that was not made yet goes through a stub of the object's own. Anything else is
      // another copy of the library, or of another tool that replaced it before us.
      if (before == function.theirs || (asks && type == kJumpSlot && image.has(before))) {
        object.slots.push_back(
            {place, before, function.theirs, function.ours, image.guards(place)});
      } else if (image.untouched(before, symbol)) {
        object.loading = true;
      }
    }
  };
  for (std::size_t i = 0; i < image.calls_count; ++i) look(image.calls[i]);
  for (std::size_t i = image.relative; i < image.others_count; ++i) look(image.others[i]);
}

void* Interposer::before_ours(const Object* previous, void** place,
                              const Replacement& function) noexcept {
  if (previous != nullptr) {
    for (const Slot& slot : previous->slots) {
      if (slot.place == place && slot.ours == function.ours) return slot.before;
    }
  }
  return function.theirs;
}

void Interposer::visit(Walk& walk, const dl_phdr_info& info) {
  const char* const name = info.dlpi_name != nullptr ? info.dlpi_name : "";
  const auto previous = std::find_if(
      objects_.begin() + static_cast<std::ptrdiff_t>(walk.at), objects_.end(),
      [&](const Object& object) { return object.base == info.dlpi_addr && object.name == name; });
  const bool seen = previous != objects_.end();
  if (seen) walk.at = static_cast<std::size_t>(previous - objects_.begin()) + 1;
  // One that has come to the place of another holds none of ours, and may not even be as large.
  const auto same = [&](const Object& object) {
    return std::all_of(object.slots.begin(), object.slots.end(), [&](const Slot& slot) {
      return lies_in(info, slot.place) && load(slot.place) == slot.ours;
    });
  };
  if (seen && !previous->loading && (!walk.afresh || same(*previous))) {
    walk.objects.push_back(std::move(*previous));
  } else {
    Object object{info.dlpi_addr, name, {}};
    find_slots(Image(info), seen ? &*previous : nullptr, object);
    walk.objects.push_back(std::move(object));
  }
  Object& object = walk.objects.back();
  walk.count += fill(object);
  walk.complete &= !object.loading;
}

std::size_t Interposer::fill(Object& object) noexcept {
  std::size_t count = 0;
  for (const Slot& slot : object.slots) {
    const void* const now = load(slot.place);
    if (now == slot.ours) {
      ++count;
      // The loader may have written it once more: for a first call that had begun before us.
    } else if (now == slot.before || now == slot.theirs) {
      // Memory that is to be closed and is not yet: the loader is still writing there, in another
      // thread, which a closed page would kill.
      if (slot.guarded && writable(slot.place)) {
        object.loading = true;
      } else {
        count += store(slot.place, slot.ours, slot.guarded) ? 1 : 0;
      }
    }
  }
  return count;
}

std::size_t Interposer::apply() noexcept {
  const std::lock_guard guard(mutex_);
  if (functions_.empty()) return 0;
  Walk walk{*this, 0, true, false, true, 0, {}};
  const int unchanged = dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* pointer) {
        Walk& now = *static_cast<Walk*>(pointer);
        Interposer& all = now.all;
        if (std::exchange(now.first, false)) {
          now.afresh = info->dlpi_subs != all.unloaded_;
          if (all.complete_ && info->dlpi_adds == all.loaded_ && !now.afresh) {
            for (Object& object : all.objects_) now.count += fill(object);
            return 1;
          }
          all.loaded_ = info->dlpi_adds;
          all.unloaded_ = info->dlpi_subs;
        }
        try {
          all.visit(now, *info);
        } catch (...) {
          now.complete = false;  // out of memory: once more, the next time
        }
        return 0;
      },
      &walk);
  if (unchanged == 0) {
    objects_.swap(walk.objects);
    complete_ = walk.complete;
  }
  return walk.count;
}

bool Interposer::complete() noexcept {
  const std::lock_guard guard(mutex_);
  return complete_;
}

bool Interposer::Object::uses(const void* theirs) const noexcept {
  return std::any_of(slots.begin(), slots.end(),
                     [&](const Slot& slot) { return slot.before == theirs; });
}

bool Interposer::used(const void* theirs) noexcept {
  const std::lock_guard guard(mutex_);
  return std::any_of(objects_.begin(), objects_.end(),
                     [&](const Object& object) { return object.uses(theirs); });
}

std::vector<std::string> Interposer::users(const void* theirs) {
  const std::lock_guard guard(mutex_);
  std::vector<std::string> users;
  for (const Object& object : objects_) {
    if (object.uses(theirs)) users.push_back(object.name);
  }
  return users;
}

void Interposer::restore() noexcept {
  const std::lock_guard guard(mutex_);
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* self) {
        Interposer& all = *static_cast<Interposer*>(self);
        // Slots of what was unloaded since are gone.
        for (const Object& object : all.objects_) {
          if (object.base != info->dlpi_addr) continue;
          if (object.name != (info->dlpi_name != nullptr ? info->dlpi_name : "")) continue;
          for (const Slot& slot : object.slots) {
            if (!lies_in(*info, slot.place) || load(slot.place) != slot.ours) continue;
            store(slot.place, slot.before, slot.guarded);
          }
        }
        return 0;
      },
      this);
  objects_.clear();
  loaded_ = unloaded_ = 0;
  complete_ = true;
}

void Interposer::forget() noexcept {
  restore();
  const std::lock_guard guard(mutex_);
  functions_.clear();
}

}  // namespace haiprof::interpose

// Puts functions of ours in the place of a library's, for every loaded object that imports them: in
// the slots that its calls go through (the GOT). The library itself, and we, keep the library's.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace haiprof::interpose {

// Writes to a slot, or to another pointer in memory that the loader has made read-only (guarded),
// and leaves that memory as it is. False: it cannot be written.
bool store(void** slot, void* value, bool guarded) noexcept;

// One function of the library, and ours.
struct Replacement {
  const char* name;
  void* theirs;
  void* ours;
};

// What an object defines: a function, or data such as the table of a class.
struct Definition {
  void* address = nullptr;
  std::size_t bytes = 0;
};

class Interposer {
 public:
  // Whose calls are replaced: those of the objects that import from the library, or those that the
  // library makes to itself.
  enum class Calls : std::uint8_t { of_others, within };
  explicit Interposer(Calls calls = Calls::of_others) noexcept : calls_(calls) {}

  // The functions to replace, all of one loaded library. The first call counts, until forget().
  void replace(std::vector<Replacement> functions);

  // The function in the first of the loaded objects that define it, or null.
  static void* find(const char* name) noexcept { return find_definition(name).address; }
  static Definition find_definition(const char* name) noexcept;

  // Finds the slots of objects that were not loaded the last time, and puts ours into all of them
  // again. Returns how many hold one of ours. Microseconds when nothing was loaded or unloaded.
  std::size_t apply() noexcept;

  // Whether the last apply() has seen all objects as they are to stay. False: one was being loaded
  // by another thread, or there was no memory; apply() once more, later.
  bool complete() noexcept;

  // Whether a function was called through any of them before ours was there, as far as one can see:
  // the loader looks for most functions in their first call only.
  bool used(const void* theirs) noexcept;

  // The files of the objects through which it was called, as far as one can see.
  std::vector<std::string> users(const void* theirs);

  // Around a fork: the child could not load anything if the loader's lock were held by a thread in
  // apply(), which it has not.
  void hold() noexcept { mutex_.lock(); }
  void release() noexcept { mutex_.unlock(); }

  // Puts back what was in the slots, where nobody has put something else there since.
  void restore() noexcept;
  // The same when the library itself is gone: another copy may come.
  void forget() noexcept;

 private:
  struct Slot {
    void** place;
    void* before;
    void* theirs;
    void* ours;
    bool guarded;  // lies in memory that the loader has made read-only
  };
  struct Object {
    std::uintptr_t base;
    std::string name;
    std::vector<Slot> slots;
    bool loading = false;  // not all that it imports is there yet
    bool uses(const void* theirs) const noexcept;
  };
  struct Walk;
  struct Image;

  void visit(Walk& walk, const dl_phdr_info& info);
  void find_slots(const Image& image, const Object* before, Object& object) const;
  static void* before_ours(const Object* previous, void** place,
                           const Replacement& function) noexcept;
  static std::size_t fill(Object& object) noexcept;

  const Calls calls_;
  std::mutex mutex_;
  std::vector<Replacement> functions_;
  std::string library_;  // the name by which objects ask for theirs
  std::vector<Object> objects_;
  unsigned long long loaded_ = 0, unloaded_ = 0;
  bool complete_ = true;
};

}  // namespace haiprof::interpose

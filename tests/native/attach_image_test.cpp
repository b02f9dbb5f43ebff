// Symbols read from memory, compared with the dynamic linker's own answers.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attach/image.h"
#include "attach/maps.h"
#include "check.h"

using haiprof::attach::Image;
using haiprof::attach::Mapping;
using haiprof::attach::Memory;

namespace {

std::uint64_t base_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 ? reinterpret_cast<std::uint64_t>(info.dli_fbase) : 0;
}

void same_as_the_linker() {
  const Memory memory(getpid());
  int matching = 0;
  for (const char* name : {"sem_post", "malloc", "strtod", "getenv", "free", "sin", "pow"}) {
    void* linked = dlsym(RTLD_DEFAULT, name);
    if (linked == nullptr) continue;
    const auto image = Image::at(memory, base_of(linked));
    CHECK(image.has_value());
    if (!image) continue;
    // Another version of a function may stand first, and a function chosen by processor appears as
    // its chooser: those are in the same object.
    const std::uint64_t symbol = image->symbol(name);
    CHECK(symbol != 0);
    CHECK_EQUAL(base_of(reinterpret_cast<void*>(symbol)), base_of(linked));
    matching += symbol == reinterpret_cast<std::uint64_t>(linked);
  }
  CHECK(matching >= 3);
}

void absent() {
  const Memory memory(getpid());
  const auto libc = Image::at(memory, base_of(dlsym(RTLD_DEFAULT, "getenv")));
  CHECK(libc.has_value());
  if (!libc) return;
  CHECK_EQUAL(libc->symbol("Py_AddPendingCall"), 0u);
  CHECK_EQUAL(libc->symbol("geten"), 0u);
  CHECK_EQUAL(libc->symbol("getenvv"), 0u);
  CHECK_EQUAL(libc->symbol(""), 0u);
  // Used there, defined elsewhere.
  CHECK_EQUAL(libc->symbol("_rtld_global"), 0u);
}

void relocated() {
  std::vector<Mapping> maps;
  haiprof::attach::read_maps(getpid(), maps);
  const Memory memory(getpid());
  const auto libc = Image::at(memory, base_of(dlsym(RTLD_DEFAULT, "getenv")));
  const std::uint64_t part = libc ? libc->read_only_after_relocation() : 0;
  CHECK(part != 0);
  bool around = false;
  for (const Mapping& mapping : maps) {
    if (part < mapping.begin || part >= mapping.end) continue;
    around = true;
    CHECK(!mapping.writable);
  }
  CHECK(around);
}

void no_object() {
  const Memory memory(getpid());
  std::vector<char> garbage(4096, '\x7f');
  const auto at = reinterpret_cast<std::uint64_t>(garbage.data());
  CHECK(!Image::at(memory, at));
  CHECK(!Image::at(memory, 8));  // not mapped
  // A header, and nothing true behind it.
  const std::string magic =
      "\x7f"
      "ELF\x02\x01\x01";
  std::copy(magic.begin(), magic.end(), garbage.begin());
  CHECK(!Image::at(memory, at));
  // A header and its table, cut off where the dynamic part should be.
  const std::uint64_t libc = base_of(dlsym(RTLD_DEFAULT, "getenv"));
  CHECK_EQUAL(memory.read(libc, std::as_writable_bytes(std::span(garbage))), 0);
  CHECK(!Image::at(memory, at));
  CHECK(haiprof::attach::native(memory, libc));
  garbage[4] = 1;  // ELFCLASS32
  CHECK(!haiprof::attach::native(memory, at));
}

}  // namespace

int main() {
  same_as_the_linker();
  absent();
  relocated();
  no_object();
  return haiprof::test::result();
}

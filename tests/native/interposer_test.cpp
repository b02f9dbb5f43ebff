// Slots of loaded objects: found, filled, given back, and left alone where they are not ours.
#include "interpose/interposer.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <string>

#include "check.h"
#include "gpu/cupti_abi.h"

namespace {

using namespace haiprof;
using namespace haiprof::test;

int flushes = 0, enables = 0;
gpu::cupti::Result flush(std::uint32_t) { return ++flushes, 0; }
gpu::cupti::Result enable(int) { return ++enables, 0; }

std::string beside_this(const std::string& name) {
  char path[PATH_MAX] = {};
  const ssize_t bytes = readlink("/proc/self/exe", path, sizeof path - 1);
  const std::string self(path, static_cast<std::size_t>(bytes));
  return self.substr(0, self.rfind('/') + 1) + name;
}

void* open(const char* kind, int flags) {
  return dlopen(beside_this(std::string("kineto_") + kind + "/libkineto.so").c_str(), flags);
}

// A loader may keep what nobody has opened any more.
bool loaded(const char* kind) {
  void* const handle = open(kind, RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

// An object that calls CUPTI.
struct Kineto {
  explicit Kineto(const char* kind) : handle(open(kind, RTLD_LAZY | RTLD_LOCAL)) {
    CHECK(handle != nullptr);
    prepare = reinterpret_cast<void (*)()>(dlsym(handle, "kineto_prepare"));
    stop = reinterpret_cast<void (*)()>(dlsym(handle, "kineto_stop"));
  }
  void* handle;
  void (*prepare)() = nullptr;
  void (*stop)() = nullptr;
};

void objects_come_and_go() {
  void* const cupti = dlopen(beside_this("cupti/libcupti.so.13").c_str(), RTLD_NOW | RTLD_LOCAL);
  CHECK(cupti != nullptr);
  void* const real = dlsym(cupti, "cuptiActivityEnable");
  interpose::Interposer interposer;
  CHECK_EQUAL(interposer.apply(), 0U);  // nothing to replace
  CHECK_EQUAL(interpose::Interposer::find("cuptiActivityEnable"), real);
  CHECK(interpose::Interposer::find("cuptiActivityEnableNothing") == nullptr);
  interposer.replace({{"cuptiActivityFlushAll", dlsym(cupti, "cuptiActivityFlushAll"),
                       reinterpret_cast<void*>(flush)},
                      {"cuptiActivityEnable", real, reinterpret_cast<void*>(enable)}});
  CHECK_EQUAL(interposer.apply(), 0U);  // nobody imports them

  const Kineto lazy("lazy");
  CHECK_EQUAL(interposer.apply(), 2U);
  CHECK_EQUAL(interposer.apply(), 2U);
  CHECK(!interposer.used(real));
  lazy.prepare();
  CHECK_EQUAL(enables, 6);

  const Kineto now("now");  // its slots are read-only
  now.prepare();
  CHECK_EQUAL(enables, 6);
  CHECK_EQUAL(interposer.apply(), 4U);
  CHECK(interposer.used(real));  // as far as one can see
  now.prepare();
  CHECK_EQUAL(enables, 12);

  interposer.restore();
  lazy.prepare();
  now.prepare();
  CHECK_EQUAL(enables, 12);

  CHECK_EQUAL(interposer.apply(), 4U);
  now.stop();
  dlclose(now.handle);
  CHECK_EQUAL(interposer.apply(), 2U + (loaded("now") ? 2U : 0U));
  lazy.prepare();
  CHECK_EQUAL(enables, 18);
  lazy.stop();
  dlclose(lazy.handle);
  interposer.restore();  // into what is left
  CHECK_EQUAL(interposer.apply(), (loaded("lazy") ? 2U : 0U) + (loaded("now") ? 2U : 0U));
  interposer.restore();
}

void what_somebody_else_has_put_there_stays() {
  void* const cupti = dlopen(beside_this("cupti/libcupti.so.13").c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const real = dlsym(cupti, "cuptiActivityEnable");
  const Kineto lazy("lazy");
  interpose::Interposer first, second;
  first.replace({{"cuptiActivityEnable", real, reinterpret_cast<void*>(enable)}});
  second.replace({{"cuptiActivityEnable", real, reinterpret_cast<void*>(flush)}});
  CHECK_EQUAL(first.apply(), 1U);
  CHECK_EQUAL(second.apply(), 0U);
  second.restore();
  const int before = enables;
  lazy.prepare();
  CHECK_EQUAL(enables, before + 6);
  first.restore();
  CHECK_EQUAL(second.apply(), 1U);
  second.restore();
}

// What the loader makes read-only in an object once it has put everything there.
struct Guarded {
  explicit Guarded(void* symbol) {
    Dl_info info;
    CHECK(dladdr(symbol, &info) != 0);
    base = reinterpret_cast<std::uintptr_t>(info.dli_fbase);
    dl_iterate_phdr(
        [](dl_phdr_info* object, std::size_t, void* self) {
          Guarded& now = *static_cast<Guarded*>(self);
          if (object->dlpi_addr != now.base) return 0;
          const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
          for (int i = 0; i < object->dlpi_phnum; ++i) {
            const ElfW(Phdr) & header = object->dlpi_phdr[i];
            if (header.p_type != PT_GNU_RELRO) continue;
            now.begin = (now.base + header.p_vaddr) / page * page;
            now.end = (now.base + header.p_vaddr + header.p_memsz) / page * page;
          }
          return 1;
        },
        this);
    CHECK(begin < end);
  }
  void protect(int protection) const {
    CHECK_EQUAL(mprotect(reinterpret_cast<void*>(begin), end - begin, protection), 0);
  }
  std::uintptr_t base = 0, begin = 0, end = 0;
};

// Another thread may be in the middle of loading it: closing the page would kill that thread.
void memory_that_the_loader_still_writes_is_left_alone() {
  void* const cupti = dlopen(beside_this("cupti/libcupti.so.13").c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const real = dlsym(cupti, "cuptiActivityEnable");
  const Kineto now("now");
  const Guarded guarded(reinterpret_cast<void*>(now.prepare));
  interpose::Interposer interposer;
  interposer.replace({{"cuptiActivityEnable", real, reinterpret_cast<void*>(enable)}});
  guarded.protect(PROT_READ | PROT_WRITE);
  const std::size_t others = interposer.apply();
  CHECK(!interposer.complete());
  volatile char* const byte = reinterpret_cast<volatile char*>(guarded.begin);
  *byte = *byte;
  const int before = enables;
  now.prepare();
  CHECK_EQUAL(enables, before);
  CHECK_EQUAL(interposer.apply(), others);
  guarded.protect(PROT_READ);
  CHECK_EQUAL(interposer.apply(), others + 1);
  CHECK(interposer.complete());
  now.prepare();
  CHECK_EQUAL(enables, before + 6);
  interposer.restore();
  now.stop();
  dlclose(now.handle);
}

// One that is rebuilt and loaded again mostly lies where the old one was.
void a_library_that_changes_between_two_loads_is_searched_again() {
  void* const cupti = dlopen(beside_this("cupti/libcupti.so.13").c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const real = dlsym(cupti, "cuptiActivityEnable");
  interpose::Interposer interposer;
  interposer.replace({{"cuptiActivityEnable", real, reinterpret_cast<void*>(enable)}});
  char name[] = "/tmp/interposer_test.XXXXXX";
  CHECK(mkdtemp(name) != nullptr);
  const std::filesystem::path folder(name), path = folder / "libkineto.so";
  for (const char* const kind : {"lazy", "now", "lazy", "now"}) {
    std::filesystem::copy(beside_this(std::string("kineto_") + kind + "/libkineto.so"), path);
    void* const handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
    CHECK(handle != nullptr);
    const auto prepare = reinterpret_cast<void (*)()>(dlsym(handle, "kineto_prepare"));
    const std::size_t count = interposer.apply();
    CHECK(count >= 1);
    const int before = enables, before_flushes = flushes;
    prepare();
    CHECK_EQUAL(enables, before + 6);
    CHECK_EQUAL(flushes, before_flushes);
    reinterpret_cast<void (*)()>(dlsym(handle, "kineto_stop"))();
    dlclose(handle);
    std::filesystem::remove(path);
  }
  interposer.restore();
  std::filesystem::remove(folder);
}

}  // namespace

int main() {
  objects_come_and_go();
  what_somebody_else_has_put_there_stays();
  memory_that_the_loader_still_writes_is_left_alone();
  a_library_that_changes_between_two_loads_is_searched_again();
  return result();
}

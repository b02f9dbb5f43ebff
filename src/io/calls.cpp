#include "io/calls.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>

#include <utility>

#include "io/abi.h"
#include "io/rings.h"
#include "io/sizes.h"
#include "ring/counters.h"

// syscall() and dlsym() must not have a frame of ours above theirs: a system call may return twice,
// and dlsym() looks at who called it. So ours jump there; only calls that are counted go elsewhere.
#if defined(__x86_64__)
asm(R"(
  .pushsection .text
  .hidden haiprof_syscall, haiprof_submitting_syscall, haiprof_real_syscall
  .globl haiprof_syscall
  .type haiprof_syscall, @function
haiprof_syscall:
  .cfi_startproc
  endbr64
  cmpq $209, %rdi
  je haiprof_submitting_syscall
  leaq -425(%rdi), %rax
  cmpq $1, %rax
  jbe haiprof_submitting_syscall
  jmpq *haiprof_real_syscall(%rip)
  .cfi_endproc
  .size haiprof_syscall, . - haiprof_syscall

  .hidden haiprof_dlsym, haiprof_lookup, haiprof_real_dlsym
  .globl haiprof_dlsym
  .type haiprof_dlsym, @function
haiprof_dlsym:
  .cfi_startproc
  endbr64
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call haiprof_lookup
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  jmpq *haiprof_real_dlsym(%rip)
  .cfi_endproc
  .size haiprof_dlsym, . - haiprof_dlsym
  .popsection
)");
#elif defined(__aarch64__)
asm(R"(
  .pushsection .text
  .hidden haiprof_syscall, haiprof_submitting_syscall, haiprof_real_syscall
  .globl haiprof_syscall
  .type haiprof_syscall, %function
haiprof_syscall:
  .cfi_startproc
  hint #34
  cmp x0, #2
  b.eq 1f
  sub x16, x0, #425
  cmp x16, #1
  b.ls 1f
  adrp x16, haiprof_real_syscall
  ldr x16, [x16, #:lo12:haiprof_real_syscall]
  br x16
1:b haiprof_submitting_syscall
  .cfi_endproc
  .size haiprof_syscall, . - haiprof_syscall

  .hidden haiprof_dlsym, haiprof_lookup, haiprof_real_dlsym
  .globl haiprof_dlsym
  .type haiprof_dlsym, %function
haiprof_dlsym:
  .cfi_startproc
  hint #34
  stp x29, x30, [sp, #-32]!
  .cfi_adjust_cfa_offset 32
  .cfi_rel_offset x29, 0
  .cfi_rel_offset x30, 8
  stp x0, x1, [sp, #16]
  bl haiprof_lookup
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #32
  .cfi_adjust_cfa_offset -32
  .cfi_restore x29
  .cfi_restore x30
  adrp x16, haiprof_real_dlsym
  ldr x16, [x16, #:lo12:haiprof_real_dlsym]
  br x16
  .cfi_endproc
  .size haiprof_dlsym, . - haiprof_dlsym
  .popsection
)");
#endif

extern "C" {
[[gnu::visibility("hidden")]] long (*haiprof_real_syscall)(long, ...) = nullptr;
[[gnu::visibility("hidden")]] void* (*haiprof_real_dlsym)(void*, const char*) = nullptr;
[[gnu::visibility("hidden")]] void haiprof_lookup() noexcept;
[[gnu::visibility("hidden")]] long haiprof_submitting_syscall(long, long, long, long, long, long,
                                                              long) noexcept;
#if defined(__x86_64__) || defined(__aarch64__)
[[gnu::visibility("hidden")]] long haiprof_syscall(long, ...);
[[gnu::visibility("hidden")]] void* haiprof_dlsym(void*, const char*);
#endif
}

namespace haiprof::io {

void (*on_lookup)() noexcept = nullptr;

namespace {

using interpose::Interposer;
using interpose::Replacement;
using ring::Count;

// A library may submit through a function that is replaced as well: each byte counts once.
__thread bool inside __attribute__((tls_model("initial-exec"))) = false;

class Inside {
 public:
  Inside() noexcept { inside = true; }
  ~Inside() { inside = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

void count_libaio(const Sizes& sizes) noexcept {
  ring::count(Count::libaio_read, sizes.read);
  ring::count(Count::libaio_write, sizes.write);
}

void count_io_uring(const Sizes& sizes) noexcept {
  ring::count(Count::io_uring_read, sizes.read);
  ring::count(Count::io_uring_write, sizes.write);
}

// Sizes are taken before the call: afterwards another thread may have reaped and freed the
// requests. Of those that were not taken it is the same before and after.
template <typename Call>
auto submit_requests(long count, abi::Request** list, const Call& call) noexcept {
  if (inside || count <= 0) return call();
  Sizes sizes = sizes_of(list, 0, static_cast<std::uint64_t>(count));
  const Inside now;
  const auto taken = call();
  if (taken > 0) {
    if (taken < count) {
      sizes -= sizes_of(list, static_cast<std::uint64_t>(taken), static_cast<std::uint64_t>(count));
    }
    count_libaio(sizes);
  }
  return taken;
}

// -- libaio ---------------------------------------------------------------------------------------

struct Libaio {
  static inline int (*submit)(void*, long, abi::Request**) = nullptr;

  static int our_submit(void* context, long count, abi::Request** list) noexcept {
    return submit_requests(count, list, [&] { return submit(context, count, list); });
  }
};

// -- liburing -------------------------------------------------------------------------------------

// The entries that liburing is about to submit; it is going to read the ring's memory itself.
class Filled {
 public:
  explicit Filled(const abi::Ring& ring) noexcept : ring_(ring), end_(ring.queue.taken) {
    polled_ = (ring.flags & abi::kKernelPolls) != 0;
    begin_ = polled_ ? ring.queue.submitted : head();
  }

  std::uint32_t count() const noexcept { return end_ - begin_; }

  // How many of them the kernel took: one that polls takes all it is notified of.
  std::uint32_t taken(int result) const noexcept {
    if (polled_) return result >= 0 ? count() : 0;
    return result > 0 ? static_cast<std::uint32_t>(result) : 0;
  }
  std::uint32_t taken() const noexcept { return polled_ ? count() : head() - begin_; }

  Sizes sizes(std::uint32_t first, std::uint32_t last) const noexcept {
    Sizes sizes;
    if (ring_.queue.mask == nullptr || ring_.queue.entries == nullptr) return sizes;
    const std::uint32_t mask = *ring_.queue.mask;
    const unsigned shift = (ring_.flags & abi::kWideEntries) != 0 ? 1 : 0;
    if (last - first > mask + 1) return sizes;
    for (std::uint32_t at = first; at != last; ++at) {
      add(sizes, ring_.queue.entries[std::size_t{(begin_ + at) & mask} << shift]);
    }
    return sizes;
  }

 private:
  std::uint32_t head() const noexcept {
    return __atomic_load_n(ring_.queue.head, __ATOMIC_ACQUIRE);
  }

  const abi::Ring& ring_;
  std::uint32_t begin_ = 0;
  std::uint32_t end_;
  bool polled_ = false;
};

// by_result: the call answers how many entries the kernel took. Else it may fail for another reason
// after it took them, and looks at the ring itself at its end, as we do then.
template <bool by_result, typename Call>
int submit_entries(abi::Ring* ring, const Call& call) noexcept {
  if (inside || ring == nullptr) return call();
  const Filled filled(*ring);
  const std::uint32_t count = filled.count();
  if (count == 0) return call();
  Sizes sizes = filled.sizes(0, count);
  const Inside now;
  const int result = call();
  const std::uint32_t taken = by_result ? filled.taken(result) : filled.taken();
  if (taken == 0) return result;
  if (taken < count) sizes -= filled.sizes(taken, count);
  count_io_uring(sizes);
  return result;
}

struct Liburing {
  static inline int (*submit)(abi::Ring*) = nullptr;
  static inline int (*submit_and_wait)(abi::Ring*, unsigned) = nullptr;
  static inline int (*submit_and_get_events)(abi::Ring*) = nullptr;
  static inline int (*submit_and_wait_timeout)(abi::Ring*, void**, unsigned, void*,
                                               sigset_t*) = nullptr;

  static int our_submit(abi::Ring* ring) noexcept {
    return submit_entries<true>(ring, [&] { return submit(ring); });
  }
  static int our_submit_and_wait(abi::Ring* ring, unsigned wait) noexcept {
    return submit_entries<true>(ring, [&] { return submit_and_wait(ring, wait); });
  }
  static int our_submit_and_get_events(abi::Ring* ring) noexcept {
    return submit_entries<true>(ring, [&] { return submit_and_get_events(ring); });
  }
  static int our_submit_and_wait_timeout(abi::Ring* ring, void** completion, unsigned wait,
                                         void* timeout, sigset_t* mask) noexcept {
    return submit_entries<false>(
        ring, [&] { return submit_and_wait_timeout(ring, completion, wait, timeout, mask); });
  }
};

// -- 3FS ------------------------------------------------------------------------------------------

struct Usrbio {
  using Prepare = int (*)(const void*, const void*, bool, void*, int, std::size_t, std::uint64_t,
                          const void*);
  static inline Prepare prepare = nullptr;

  // Prepared requests may be taken at once: submitting is only a hint.
  static int our_prepare(const void* ring, const void* buffer, bool read, void* at, int fd,
                         std::size_t offset, std::uint64_t length, const void* user) noexcept {
    const int index = prepare(ring, buffer, read, at, fd, offset, length, user);
    if (index >= 0) ring::count(read ? Count::usrbio_read : Count::usrbio_write, length);
    return index;
  }
};

// -- the C library --------------------------------------------------------------------------------

template <typename Call>
long enter_ring(int fd, std::uint32_t count, const Call& call) noexcept {
  const Queue queue(fd);
  Sizes sizes = queue.sizes(0, count);
  const long taken = call();
  if (taken > 0) {
    if (taken < long{count}) sizes -= queue.sizes(static_cast<std::uint32_t>(taken), count);
    count_io_uring(sizes);
  }
  return taken;
}

struct Kernel {
  using Map = void* (*)(void*, std::size_t, int, int, int, off_t);
  static inline Map map = nullptr;
  static inline Map map64 = nullptr;  // the same, but where somebody stands before one of them only

  template <Map* theirs>
  static void* our_map(void* address, std::size_t bytes, int protection, int flags, int fd,
                       off_t offset) noexcept {
    void* const mapped = (*theirs)(address, bytes, protection, flags, fd, offset);
    if (fd >= 0 && mapped != MAP_FAILED) ring_mapped(fd, offset, mapped);
    return mapped;
  }
};

template <typename Theirs, typename Ours>
void add(std::vector<Replacement>& all, const char* name, Theirs& theirs, Ours ours) {
  void* const real = Interposer::find(name);
  if (real == nullptr) return;
  theirs = reinterpret_cast<Theirs>(real);
  all.push_back({name, real, reinterpret_cast<void*>(ours)});
}

std::vector<Replacement> take_libaio() {
  std::vector<Replacement> all;
  add(all, "io_submit", Libaio::submit, &Libaio::our_submit);
  return all;
}

std::vector<Replacement> take_liburing() {
  using L = Liburing;
  std::vector<Replacement> all;
  add(all, "io_uring_submit", L::submit, &L::our_submit);
  add(all, "io_uring_submit_and_wait", L::submit_and_wait, &L::our_submit_and_wait);
  add(all, "io_uring_submit_and_get_events", L::submit_and_get_events,
      &L::our_submit_and_get_events);
  add(all, "io_uring_submit_and_wait_timeout", L::submit_and_wait_timeout,
      &L::our_submit_and_wait_timeout);
  return all;
}

std::vector<Replacement> take_usrbio() {
  std::vector<Replacement> all;
  add(all, "hf3fs_prep_io", Usrbio::prepare, &Usrbio::our_prepare);
  return all;
}

#if defined(__x86_64__) || defined(__aarch64__)
std::vector<Replacement> take_kernel() {
  std::vector<Replacement> all;
  add(all, "syscall", haiprof_real_syscall, &haiprof_syscall);
  add(all, "mmap", Kernel::map, &Kernel::our_map<&Kernel::map>);
  add(all, "mmap64", Kernel::map64, &Kernel::our_map<&Kernel::map64>);
  return all;
}

std::vector<Replacement> take_loader() {
  std::vector<Replacement> all;
  add(all, "dlsym", haiprof_real_dlsym, &haiprof_dlsym);
  return all;
}
#else
std::vector<Replacement> take_kernel() { return {}; }
std::vector<Replacement> take_loader() { return {}; }
#endif

}  // namespace

const Library libraries[kLibraries] = {
    {"syscall", take_kernel},           {"dlsym", take_loader},         {"io_submit", take_libaio},
    {"io_uring_submit", take_liburing}, {"hf3fs_prep_io", take_usrbio},
};

}  // namespace haiprof::io

void haiprof_lookup() noexcept {
  const int before = errno;
  if (haiprof::io::on_lookup != nullptr) haiprof::io::on_lookup();
  errno = before;
}

// With the arguments of syscall(), of which as many count as the call has.
long haiprof_submitting_syscall(long number, long a, long b, long c, long d, long e,
                                long f) noexcept {
  using namespace haiprof::io;
  const auto call = [&] { return haiprof_real_syscall(number, a, b, c, d, e, f); };
  if (inside) return call();
  if (number == abi::kSysSubmit) {
    return submit_requests(b, reinterpret_cast<abi::Request**>(c), call);
  }
  if (number == abi::kSysRingSetup) {
    const long fd = call();
    if (fd >= 0) {
      note_ring(static_cast<int>(fd), reinterpret_cast<const abi::RingParameters*>(b));
    }
    return fd;
  }
  const bool by_index = (static_cast<std::uint32_t>(d) & abi::kEnterByIndex) != 0;
  const auto count = static_cast<std::uint32_t>(b);
  if (count == 0 || by_index) return call();
  return enter_ring(static_cast<int>(a), count, call);
}

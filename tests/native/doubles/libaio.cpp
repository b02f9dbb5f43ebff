// Stands in for libaio: the kernel's calls, made without the C library as releases before 0.3.113
// do.
#include <sys/syscall.h>

namespace {

long call(long number, long a, long b = 0, long c = 0) {
#if defined(__x86_64__)
  long result = number;
  asm volatile("syscall" : "+a"(result) : "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  asm volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
#endif
}

}  // namespace

extern "C" {

int io_setup(int entries, void** context) {
  return static_cast<int>(call(SYS_io_setup, entries, reinterpret_cast<long>(context)));
}

int io_destroy(void* context) {
  return static_cast<int>(call(SYS_io_destroy, reinterpret_cast<long>(context)));
}

int io_submit(void* context, long count, void** requests) {
  return static_cast<int>(call(SYS_io_submit, reinterpret_cast<long>(context), count,
                               reinterpret_cast<long>(requests)));
}
}

// The figures of torch's CUDA allocator, read now and then right after a step, and its message when
// it has run out of memory.
//
// Only functions of torch that are written in C++ are called, and no Python code of ours: between
// two instructions Python runs the job's signal handlers, and what those raise would be lost here.
// None of them initialises CUDA, waits for a GPU or changes a figure.
#include <Python.h>

#include <atomic>
#include <cstdio>
#include <iterator>

#include "phase/current.h"
#include "phase/process.h"
#include "python/hook.h"
#include "ring/writer.h"

namespace haiprof::python {
namespace {

constexpr std::size_t kMostDevices = 64;
// Short runs have data, too.
constexpr std::uint32_t kFirstSteps = 8;
constexpr std::uint32_t kFirstCalls = 64;
constexpr std::uint64_t kLooksPerSecond = 4;
// A repeated problem is an event each of the first times, then each time its count has doubled.
constexpr std::int64_t kReportedEach = 8;

// part: in field's "all"; null when the field is a plain number.
struct Series {
  const char* metric;
  const char* field;
  const char* part;
};
enum Which : std::size_t { allocated, peak, reserved, active, split, retries, ooms, taken, given };
constexpr Series kSeries[] = {
    {"torch.allocated.bytes", "allocated_bytes", "current"},
    {"torch.allocated_peak.bytes", "allocated_bytes", "peak"},
    {"torch.reserved.bytes", "reserved_bytes", "current"},
    {"torch.active.bytes", "active_bytes", "current"},
    {"torch.inactive_split.bytes", "inactive_split_bytes", "current"},
    {"torch.alloc_retries.count", "num_alloc_retries", nullptr},
    {"torch.ooms.count", "num_ooms", nullptr},
    {"torch.device_allocs.count", "num_device_alloc", nullptr},
    {"torch.device_frees.count", "num_device_free", nullptr},
};

// Negative: torch has not said.
struct Figures {
  double of[std::size(kSeries)];
};

// kUnknown until the first look at a job that had used the allocator before us.
constexpr std::int64_t kUnknown = -1;
struct Device {
  std::atomic<bool> used{false};
  std::atomic<std::int64_t> retries_reported{0};
  std::atomic<std::int64_t> ooms_reported{0};
};

// torch._C and torch.cuda: set once, never given back, because the observer stays for good.
PyObject* torch_core = nullptr;
PyObject* torch_cuda = nullptr;

std::atomic<bool> on{false};
std::atomic<bool> seen{false};  // CUDA is in use
std::atomic<bool> looking{false};
std::atomic<bool> observing{false};
std::atomic<std::uint32_t> ring_generation{0};
std::atomic<std::uint32_t> first_steps{0};
std::atomic<std::uint32_t> first_calls{0};
std::atomic<std::uint64_t> next_look{0};
Device devices[kMostDevices];
char trouble[512] = "";  // why it was removed; with the GIL

// A reference of our own.
class Ref {
 public:
  explicit Ref(PyObject* object) noexcept : object_(object) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  PyObject* get() const noexcept { return object_; }

 private:
  PyObject* object_;
};

// A step may end while an exception is on its way.
class KeptError {
 public:
  KeptError() noexcept { PyErr_Fetch(&type_, &value_, &trace_); }
  ~KeptError() { PyErr_Restore(type_, value_, trace_); }
  KeptError(const KeptError&) = delete;
  KeptError& operator=(const KeptError&) = delete;

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

Ref ask(const char* function) noexcept {
  return Ref(PyObject_CallMethod(torch_core, function, nullptr));
}

Ref ask(const char* function, std::size_t device) noexcept {
  return Ref(PyObject_CallMethod(torch_core, function, "n", static_cast<Py_ssize_t>(device)));
}

// False also with a Python error set.
bool is_true(const Ref& answer) noexcept {
  return answer.get() != nullptr && PyObject_IsTrue(answer.get()) == 1;
}

// As torch.cuda.is_initialized(), whose own code is Python.
bool cuda_in_use() noexcept {
  if (!is_true(Ref(PyObject_GetAttrString(torch_cuda, "_initialized")))) return false;
  const Ref forked = ask("_cuda_isInBadFork");
  return forked.get() != nullptr && PyObject_IsTrue(forked.get()) == 0;
}

double number(PyObject* stats, const Series& series) noexcept {
  PyObject* entry = PyDict_GetItemString(stats, series.field);
  if (series.part != nullptr) {
    for (const char* key : {"all", series.part}) {
      if (entry == nullptr || !PyDict_Check(entry)) return -1;
      entry = PyDict_GetItemString(entry, key);
    }
  }
  return entry != nullptr && PyNumber_Check(entry) ? PyFloat_AsDouble(entry) : -1;
}

// False with a Python error set.
bool read(std::size_t device, Figures& figures) noexcept {
  const Ref stats = ask("_cuda_memoryStats", device);
  if (stats.get() == nullptr) return false;
  if (!PyDict_Check(stats.get())) {
    PyErr_SetString(PyExc_TypeError, "_cuda_memoryStats() returned no dict");
    return false;
  }
  for (std::size_t i = 0; i < std::size(kSeries); ++i) {
    figures.of[i] = number(stats.get(), kSeries[i]);
  }
  if (figures.of[allocated] < 0 && PyErr_Occurred() == nullptr) {
    PyErr_SetString(PyExc_KeyError, "_cuda_memoryStats() returned no allocated_bytes");
  }
  return PyErr_Occurred() == nullptr;
}

void push(std::size_t device, const Figures& figures) noexcept {
  char name[32];
  std::snprintf(name, sizeof name, "gpu%zu", device);
  const ring::Ids ids;
  const std::uint32_t instance = ring::intern(name);
  for (std::size_t i = 0; i < std::size(kSeries); ++i) {
    if (figures.of[i] < 0) continue;
    ring::push_value(ring::intern(kSeries[i].metric), instance, figures.of[i], ids);
  }
}

void push_event(const char* kind, const char* text) noexcept {
  ring::push_event(kind, text, {}, phase::current_step());
}

// Whether a count that only grows, until the user has torch begin anew, is worth an event.
bool is_news(std::atomic<std::int64_t>& reported, double figure) noexcept {
  if (figure < 0) return false;
  const auto count = static_cast<std::int64_t>(figure);
  const std::int64_t before = reported.load(std::memory_order_relaxed);
  const bool grown = before != kUnknown && count > before;
  if (grown && count > kReportedEach && count < 2 * before) return false;
  reported.store(count, std::memory_order_relaxed);
  return grown;
}

void report_shortage(std::size_t device, const Figures& figures) noexcept {
  char text[200];
  const auto times = [](double n) { return n == 1 ? "once" : "times"; };
  const auto report = [&](const char* format, double n) {
    char count[32] = "";
    if (n != 1) std::snprintf(count, sizeof count, "%.0f ", n);
    std::snprintf(text, sizeof text, format, device, count, times(n));
    push_event("memory", text);
  };
  if (is_news(devices[device].retries_reported, figures.of[retries])) {
    report(
        "gpu%zu: memory ran short %s%s; torch gave its cache back and tried again, which is slow",
        figures.of[retries]);
  }
  if (is_news(devices[device].ooms_reported, figures.of[ooms])) {
    report("gpu%zu: out of memory %s%s", figures.of[ooms]);
  }
}

// False with a Python error set.
bool look_at(std::size_t index) noexcept {
  Device& device = devices[index];
  if (!device.used.load(std::memory_order_relaxed)) {
    // A device without a context of this process has no memory of it, and must not get one from us.
    const Ref context = ask("_cuda_hasPrimaryContext", index);
    if (!is_true(context)) return PyErr_Occurred() == nullptr;
  }
  Figures figures;
  if (!read(index, figures)) return false;
  const bool touched = figures.of[peak] > 0 || figures.of[reserved] > 0 || figures.of[ooms] > 0;
  if (!touched && !device.used.load(std::memory_order_relaxed)) return true;
  device.used.store(true, std::memory_order_relaxed);
  push(index, figures);
  report_shortage(index, figures);
  return true;
}

const char* amount(double bytes, char (&text)[32]) noexcept {
  const bool large = bytes >= 1 << 30;
  std::snprintf(text, sizeof text, large ? "%.2f GiB" : "%.2f MiB",
                bytes / (large ? 1 << 30 : 1 << 20));
  return text;
}

// Called by torch at each OutOfMemoryError, before it raises it: (device, bytes asked for, bytes
// of the device or of the part that the job allows itself, bytes free). What we raised would be
// raised instead, so nothing is.
PyObject* out_of_memory(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!on.load(std::memory_order_relaxed) || !ring::is_open() || count != 4) Py_RETURN_NONE;
  const KeptError kept;
  long long numbers[4];
  for (std::size_t i = 0; i < 4; ++i) numbers[i] = PyLong_AsLongLong(args[i]);
  if (PyErr_Occurred() == nullptr && numbers[0] >= 0 &&
      static_cast<std::size_t>(numbers[0]) < kMostDevices) {
    const auto device = static_cast<std::size_t>(numbers[0]);
    char requested[32], whole[32], free[32], text[240];
    int length = std::snprintf(text, sizeof text, "gpu%zu: out of memory: %s wanted, %s of %s free",
                               device, amount(static_cast<double>(numbers[1]), requested),
                               amount(static_cast<double>(numbers[3]), free),
                               amount(static_cast<double>(numbers[2]), whole));
    Figures figures;
    bool news = true;
    if (read(device, figures)) {
      devices[device].used.store(true, std::memory_order_relaxed);
      push(device, figures);
      if (figures.of[ooms] > 0) {
        // An older count is no reason to suppress this one.
        std::int64_t unknown = kUnknown;
        devices[device].ooms_reported.compare_exchange_strong(
            unknown, static_cast<std::int64_t>(figures.of[ooms]) - 1);
        news = is_news(devices[device].ooms_reported, figures.of[ooms]);
      }
      char in_use[32], cached[32];
      std::snprintf(text + length, sizeof text - static_cast<std::size_t>(length),
                    "; torch had %s allocated, %s reserved", amount(figures.of[allocated], in_use),
                    amount(figures.of[reserved], cached));
    }
    if (news) push_event("memory", text);
  }
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyMethodDef observer_definition = {
    "out_of_memory", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(out_of_memory)),
    METH_FASTCALL, nullptr};

// Once a process: torch cannot forget an observer. Of several it calls each.
void observe() noexcept {
  if (observing.exchange(true, std::memory_order_relaxed)) return;
  const Ref observer(PyCFunction_NewEx(&observer_definition, nullptr, nullptr));
  const Ref done(observer.get() == nullptr
                     ? nullptr
                     : PyObject_CallMethod(torch_core, "_cuda_attach_out_of_memory_observer", "O",
                                           observer.get()));
  PyErr_Clear();  // not every allocator has observers; the counts show it a little later
}

// Removes the hook because of the Python error that is set.
void take_off() noexcept {
  if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {  // the job's
    PyErr_SetInterrupt();
    PyErr_Clear();
    return;
  }
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Ref owned_type(type), owned_value(value), owned_trace(trace);
  const Ref text(value == nullptr ? nullptr : PyObject_Repr(value));
  const char* const words = text.get() == nullptr ? nullptr : PyUnicode_AsUTF8(text.get());
  on.store(false, std::memory_order_relaxed);
  std::snprintf(trouble, sizeof trouble, "%s", words == nullptr ? "an unknown error" : words);
  PyErr_Clear();
  char message[640];
  std::snprintf(message, sizeof message, "the allocator's figures are not recorded: %s", trouble);
  push_event("hook", message);
}

void look() noexcept {
  // A call may let others run, and one of them may end a step.
  if (looking.exchange(true, std::memory_order_acquire)) return;
  {
    const KeptError kept;
    if (cuda_in_use()) {
      seen.store(true, std::memory_order_relaxed);
      observe();
      const Ref answer = ask("_cuda_getDeviceCount");
      const long count = answer.get() == nullptr ? 0 : PyLong_AsLong(answer.get());
      for (long i = 0; i < count && i < static_cast<long>(kMostDevices); ++i) {
        if (!look_at(static_cast<std::size_t>(i))) break;
      }
    }
    if (PyErr_Occurred() != nullptr) take_off();
  }
  looking.store(false, std::memory_order_release);
}

void look_and_wait(std::uint64_t now) noexcept {
  next_look.store(now + ring::ticks_per_second() / kLooksPerSecond, std::memory_order_relaxed);
  look();
}

void stepped() noexcept {
  if (!on.load(std::memory_order_relaxed) || !ring::is_open()) return;
  const std::uint64_t now = ring::now_ticks();
  const std::uint32_t generation = ring::generation();
  if (ring_generation.load(std::memory_order_relaxed) != generation) {
    ring_generation.store(generation, std::memory_order_relaxed);
    first_steps.store(kFirstSteps, std::memory_order_relaxed);
  }
  const std::uint32_t left = first_steps.load(std::memory_order_relaxed);
  if (left > 0) {
    first_steps.store(left - 1, std::memory_order_relaxed);
  } else if (now < next_look.load(std::memory_order_relaxed)) {
    return;
  }
  look_and_wait(now);
}

// The first step often ends the job, so its calls are a reason to look, too.
void boundary(phase::Kind, std::uint64_t now) noexcept {
  if (!on.load(std::memory_order_relaxed) || seen.load(std::memory_order_relaxed) ||
      !ring::is_open()) {
    return;
  }
  const std::uint32_t left = first_calls.load(std::memory_order_relaxed);
  if (left > 0) {
    first_calls.store(left - 1, std::memory_order_relaxed);
  } else if (now < next_look.load(std::memory_order_relaxed)) {
    return;
  }
  look_and_wait(now);
}

constexpr phase::Listener kListener{boundary, nullptr, stepped};

// watch_allocator(torch._C, torch.cuda)
PyObject* watch_allocator(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "watch_allocator() takes exactly 2 arguments");
    return nullptr;
  }
  const Ref before(PyObject_GetAttrString(args[1], "_initialized"));
  if (before.get() == nullptr) return nullptr;
  if (torch_core == nullptr) {
    Py_INCREF(args[0]);
    Py_INCREF(args[1]);
    torch_core = args[0];
    torch_cuda = args[1];
  }
  const std::int64_t before_us = is_true(before) ? kUnknown : 0;
  for (Device& device : devices) {
    device.used.store(false, std::memory_order_relaxed);
    device.retries_reported.store(before_us, std::memory_order_relaxed);
    device.ooms_reported.store(before_us, std::memory_order_relaxed);
  }
  trouble[0] = '\0';
  seen.store(false, std::memory_order_relaxed);
  first_calls.store(kFirstCalls, std::memory_order_relaxed);
  on.store(true, std::memory_order_relaxed);
  phase::listen(kListener);
  Py_RETURN_NONE;
}

PyObject* leave_allocator(PyObject*, PyObject*) {
  report_allocator();
  on.store(false, std::memory_order_relaxed);
  Py_RETURN_NONE;
}

PyObject* allocator_state(PyObject*, PyObject*) {
  if (trouble[0] != '\0') return PyUnicode_FromFormat("off: %s", trouble);
  return PyUnicode_FromString(seen.load(std::memory_order_relaxed) ? "on: after steps"
                                                                   : "waiting: CUDA is not in use");
}

PyMethodDef functions[] = {
    {"watch_allocator",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(watch_allocator)), METH_FASTCALL,
     "watch_allocator(core, cuda) -> None\n\nRecord the figures of torch's CUDA allocator after "
     "steps, from torch._C and torch.cuda."},
    {"leave_allocator", leave_allocator, METH_NOARGS,
     "leave_allocator() -> None\n\nRecord the figures once more, and then no longer."},
    {"allocator_state", allocator_state, METH_NOARGS,
     "allocator_state() -> str\n\n\"on: …\", \"waiting: …\" or \"off: why\"."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void look_for_cuda() noexcept {
  if (on.load(std::memory_order_relaxed) && !seen.load(std::memory_order_relaxed) &&
      ring::is_open()) {
    look();
  }
}

void report_allocator() noexcept {
  if (on.load(std::memory_order_relaxed) && ring::is_open()) look();
}

bool add_allocator_hook(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace haiprof::python

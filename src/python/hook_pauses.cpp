// Pauses of Python's cyclic garbage collector, from gc.callbacks: long ones become spans, all of
// them are counted. Runs wherever Python collects, also while the interpreter ends, so it looks at
// nothing but its arguments.
#include <Python.h>

#include <atomic>
#include <iterator>

#include "phase/current.h"
#include "python/hook.h"
#include "ring/writer.h"

namespace haiprof::python {
namespace {

constexpr const char* kSpans[] = {"gc 0", "gc 1", "gc 2"};
constexpr const char* kInstances[] = {"gen0", "gen1", "gen2"};
// A job may have thousands of young collections a second; shorter pauses are only counted.
constexpr std::uint64_t kSpansPerSecond = 10'000;  // 100 us
constexpr std::uint64_t kReportsPerSecond = 4;

struct Tally {
  std::atomic<std::uint64_t> pauses{0};
  std::atomic<std::uint64_t> ticks{0};
  std::atomic<std::uint64_t> reported{0};
};

std::atomic<bool> watching{false};
// Collections of one interpreter never overlap. Atomic, because the last report is another
// thread's.
Tally tallies[std::size(kSpans)];
std::atomic<std::uint32_t> ring_generation{0};
std::atomic<std::uint64_t> tick_rate{1};
std::uint64_t next_report = 0;  // only collections look at it

// A collection begins and ends on one thread. 0 = none began while we watched.
__thread std::uint64_t began __attribute__((tls_model("initial-exec"))) = 0;

void report() noexcept {
  const std::uint64_t rate = tick_rate.load(std::memory_order_relaxed);
  const ring::Ids ids;
  const std::uint32_t count = ring::intern("python.gc.count");
  const std::uint32_t seconds = ring::intern("python.gc.seconds");
  for (std::size_t i = 0; i < std::size(tallies); ++i) {
    const std::uint64_t pauses = tallies[i].pauses.load(std::memory_order_relaxed);
    if (tallies[i].reported.exchange(pauses, std::memory_order_relaxed) == pauses) continue;
    const std::uint32_t instance = ring::intern(kInstances[i]);
    const std::uint64_t ticks = tallies[i].ticks.load(std::memory_order_relaxed);
    ring::push_value(count, instance, static_cast<double>(pauses), ids);
    ring::push_value(seconds, instance, static_cast<double>(ticks) / static_cast<double>(rate),
                     ids);
  }
}

// Every recording counts from 0.
void see_to_recording() noexcept {
  const std::uint32_t generation = ring::generation();
  if (ring_generation.load(std::memory_order_relaxed) == generation) return;
  for (Tally& tally : tallies) {
    for (auto* number : {&tally.pauses, &tally.ticks, &tally.reported}) {
      number->store(0, std::memory_order_relaxed);
    }
  }
  tick_rate.store(ring::ticks_per_second(), std::memory_order_relaxed);
  next_report = 0;
  ring_generation.store(generation, std::memory_order_relaxed);
}

void paused(std::uint64_t from, std::uint64_t to, std::size_t generation) noexcept {
  see_to_recording();
  const std::uint64_t rate = tick_rate.load(std::memory_order_relaxed);
  Tally& tally = tallies[generation];
  tally.pauses.fetch_add(1, std::memory_order_relaxed);
  tally.ticks.fetch_add(to - from, std::memory_order_relaxed);
  if (to - from >= rate / kSpansPerSecond) {
    const ring::Ids ids;
    ring::push_span(from, to, ring::intern(kSpans[generation]), ring::Category::gc,
                    phase::current_step(), ring::kNone, 0, ids);
  }
  if (to >= next_report) {
    next_report = to + rate / kReportsPerSecond;
    report();
  }
}

// False when Python's information does not name a generation that we know.
bool generation_of(PyObject* information, std::size_t& generation) noexcept {
  static PyObject* const key = PyUnicode_InternFromString("generation");
  if (key == nullptr || !PyDict_Check(information)) return false;
  PyObject* const number = PyDict_GetItemWithError(information, key);
  if (number == nullptr || !PyLong_Check(number)) {
    PyErr_Clear();
    return false;
  }
  generation = PyLong_AsSize_t(number);
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return generation < std::size(tallies);
}

// Called by gc.callbacks: ("start" or "stop", information).
PyObject* collection(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (watching.load(std::memory_order_relaxed) && ring::is_open() && count == 2 &&
      PyUnicode_Check(args[0])) {
    const std::uint64_t now = ring::now_ticks();
    if (PyUnicode_CompareWithASCIIString(args[0], "start") == 0) {
      began = ring::now_ticks();
    } else if (began != 0) {
      std::size_t generation = 0;
      if (generation_of(args[1], generation)) paused(began, now, generation);
      began = 0;
    }
  }
  Py_RETURN_NONE;
}

PyObject* watch_collections(PyObject*, PyObject* on) {
  if (on != Py_True) report_pauses();
  watching.store(on == Py_True, std::memory_order_relaxed);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"collection", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(collection)),
     METH_FASTCALL,
     "collection(phase, information) -> None\n\nWhat gc.callbacks calls: a collection begins or "
     "ends."},
    {"watch_collections", watch_collections, METH_O,
     "watch_collections(on) -> None\n\nWhether collection() records anything."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void report_pauses() noexcept {
  const bool counted = ring_generation.load(std::memory_order_relaxed) == ring::generation();
  if (watching.load(std::memory_order_relaxed) && ring::is_open() && counted) report();
}

bool add_pause_hook(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace haiprof::python

// Finds the loader of an iterator, and notices when the iterator dies. Addresses and weak
// references only: nothing is kept alive, and a dead iterator's entry is overwritten when its
// address or its place is used again.
#include <array>
#include <atomic>

#include "phase/process.h"
#include "phase/span.h"
#include "python/hook.h"

namespace haiprof::python {
namespace {

struct Entry {
  std::atomic<std::uint64_t> iterator{0};
  std::atomic<std::uint64_t> key{0};
  std::atomic<PyObject*> watch{nullptr};  // a weak reference, ours
};

std::array<Entry, 32> entries;
std::atomic<std::uint32_t> next_entry{0};
std::atomic<std::uint32_t> last_found{0};  // most fetches come from the iterator of the one before

// _dataset is what every iterator of torch.utils.data has had since 1.2.
std::uint64_t dataset_of(PyObject* iterator) noexcept {
  PyObject* dataset = PyObject_GetAttrString(iterator, "_dataset");
  if (dataset == nullptr) {
    PyErr_Clear();
    return key_of(iterator);
  }
  const std::uint64_t key = key_of(dataset);
  Py_DECREF(dataset);
  return key;
}

PyObject* gone(PyObject* key, PyObject*) noexcept {
  phase::drop_loader(PyLong_AsUnsignedLongLong(key));
  Py_RETURN_NONE;
}

PyMethodDef gone_method{"loader_gone", gone, METH_O, nullptr};

// A weak reference that reports the iterator's end; null where it can have none.
PyObject* watch(PyObject* iterator, std::uint64_t key) noexcept {
  PyObject* const number = PyLong_FromUnsignedLongLong(key);
  PyObject* const on_gone = number == nullptr ? nullptr : PyCFunction_New(&gone_method, number);
  PyObject* const reference = on_gone == nullptr ? nullptr : PyWeakref_NewRef(iterator, on_gone);
  if (reference == nullptr) PyErr_Clear();
  Py_XDECREF(on_gone);
  Py_XDECREF(number);
  return reference;
}

}  // namespace

std::uint64_t loader_of_new_iterator(PyObject* loader, PyObject* iterator) noexcept {
  const std::uint64_t key = phase::loader_key(key_of(loader), dataset_of(iterator));
  Entry* place = nullptr;
  for (Entry& entry : entries) {
    if (entry.iterator.load(std::memory_order_relaxed) == key_of(iterator)) place = &entry;
  }
  if (place == nullptr) {
    place = &entries[next_entry.fetch_add(1, std::memory_order_relaxed) % entries.size()];
  }
  place->iterator.store(0, std::memory_order_relaxed);
  place->key.store(key, std::memory_order_release);
  place->iterator.store(key_of(iterator), std::memory_order_release);
  Py_XDECREF(place->watch.exchange(watch(iterator, key)));
  return key;
}

std::uint64_t loader_of(PyObject* iterator) noexcept {
  const std::uint32_t start = last_found.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    const std::uint32_t place = (start + i) % entries.size();
    if (entries[place].iterator.load(std::memory_order_acquire) == key_of(iterator)) {
      if (i != 0) last_found.store(place, std::memory_order_relaxed);
      return entries[place].key.load(std::memory_order_relaxed);
    }
  }
  // Its making was not seen (hooks attached in mid-epoch, or a loader with an __iter__ of its own):
  // the data set alone stays the same from epoch to epoch.
  return phase::loader_key(0, dataset_of(iterator));
}

}  // namespace haiprof::python

// In C: CPython's internal headers are not for C++.
#define _GNU_SOURCE 1
#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE 1
// Before Python.h, which would ask for the functions of the interpreter itself.
#define NEEDS_PY_IDENTIFIER 1
#include "python/python_layout.h"

#include <Python.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#if PY_VERSION_HEX >= 0x030A0000 && PY_VERSION_HEX < 0x030F0000 && !defined(Py_GIL_DISABLED)
#define KNOWN 1
#include <internal/pycore_gil.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#if PY_VERSION_HEX >= 0x030B0000
#include <internal/pycore_frame.h>
#else
#include <frameobject.h>
#endif
#endif

// A fork keeps it.
static unsigned char signature[16];

#ifdef KNOWN

static uint64_t codes_freed;
static destructor free_code;

static void count_and_free(PyObject* code) {
  // What lies at its address afterwards must not be seen before it is counted.
  __atomic_fetch_add(&codes_freed, 1, __ATOMIC_SEQ_CST);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  free_code(code);
}

// PyCode_AddWatcher would need one for each interpreter, and came with 3.12.
static void count_freed_codes(PythonLayout* layout) {
  if (free_code == NULL) {  // once: another library may have put itself in front of it since
    free_code = PyCode_Type.tp_dealloc;
    PyCode_Type.tp_dealloc = count_and_free;
  }
  layout->codes_freed = (uint64_t)(uintptr_t)&codes_freed;
}

#define PUT(field, type, member)                                         \
  do {                                                                   \
    _Static_assert(offsetof(type, member) < 0xFFFF, "larger than kept"); \
    layout->field = (uint16_t)offsetof(type, member);                    \
  } while (0)

// Bit fields have no offset.
static void describe_strings(PythonLayout* layout) {
  PyASCIIObject one;
  PUT(string_length, PyASCIIObject, length);
  layout->string_state = (uint16_t)offsetof(PyASCIIObject, state);
  layout->string_ascii_text = sizeof(PyASCIIObject);
  layout->string_text = sizeof(PyCompactUnicodeObject);
  memset(&one, 0, sizeof one);
  one.state.kind = 7;
  memcpy(&layout->string_kind, &one.state, sizeof(uint32_t));
  memset(&one, 0, sizeof one);
  one.state.compact = 1;
  memcpy(&layout->string_compact, &one.state, sizeof(uint32_t));
  memset(&one, 0, sizeof one);
  one.state.ascii = 1;
  memcpy(&layout->string_ascii, &one.state, sizeof(uint32_t));
}

static void describe_code(PythonLayout* layout) {
  layout->code_type = (uint64_t)(uintptr_t)&PyCode_Type;
  layout->bytes_type = (uint64_t)(uintptr_t)&PyBytes_Type;
  PUT(object_type, PyObject, ob_type);
  PUT(bytes_length, PyVarObject, ob_size);
  PUT(bytes_text, PyBytesObject, ob_sval);
  PUT(code_file, PyCodeObject, co_filename);
  PUT(code_first_line, PyCodeObject, co_firstlineno);
  PUT(code_lines, PyCodeObject, co_linetable);
#if PY_VERSION_HEX >= 0x030B0000
  PUT(code_name, PyCodeObject, co_qualname);
  PUT(code_instructions, PyCodeObject, co_code_adaptive);
  PUT(code_units, PyVarObject, ob_size);
  PUT(code_traceable, PyCodeObject, _co_firsttraceable);
  PUT(code_bytes, PyCodeObject, co_code_adaptive);
  layout->lines = kLinesOf311;
#else
  PUT(code_name, PyCodeObject, co_name);
  layout->code_bytes = sizeof(PyCodeObject);
  layout->lines = kLinesOf310;
#endif
}

static void describe_frames(PythonLayout* layout) {
  layout->owner_on_c_stack = 0xFF;
#if PY_VERSION_HEX >= 0x030B0000
  layout->owner_generator = FRAME_OWNED_BY_GENERATOR;
#if PY_VERSION_HEX >= 0x030D0000
  PUT(frame_code, _PyInterpreterFrame, f_executable);
  PUT(frame_instruction, _PyInterpreterFrame, instr_ptr);
#else
  PUT(frame_code, _PyInterpreterFrame, f_code);
  PUT(frame_instruction, _PyInterpreterFrame, prev_instr);
#endif
#if PY_VERSION_HEX >= 0x030E0000
  _Static_assert(FRAME_OWNED_BY_CSTACK > FRAME_OWNED_BY_INTERPRETER, "both have no code");
  layout->owner_on_c_stack = FRAME_OWNED_BY_INTERPRETER;
#elif PY_VERSION_HEX >= 0x030C0000
  layout->owner_on_c_stack = FRAME_OWNED_BY_CSTACK;
#endif
  PUT(frame_back, _PyInterpreterFrame, previous);
  PUT(frame_owner, _PyInterpreterFrame, owner);
  PUT(frame_bytes, _PyInterpreterFrame, localsplus);
#else
  PUT(frame_code, PyFrameObject, f_code);
  PUT(frame_back, PyFrameObject, f_back);
  PUT(frame_instruction, PyFrameObject, f_lasti);
  PUT(frame_bytes, PyFrameObject, f_iblock);
  layout->instruction_is_index = 1;
#endif
}

// Where glibc or musl keep the kernel's number of a thread. Only of a thread's own structure, and
// within the page that its pthread_t points to.
#if PY_VERSION_HEX < 0x030B0000
static uint16_t id_in_pthread(void) {
  const unsigned char* const self = (const unsigned char*)(uintptr_t)pthread_self();
  const int32_t own = (int32_t)syscall(SYS_gettid);
  const size_t page = 4096 - ((uintptr_t)self & 4095);
  for (size_t at = 4; at + 4 <= page && at < 1024; at += 4) {
    int32_t found;
    memcpy(&found, self + at, sizeof found);
    if (found == own) return (uint16_t)at;
  }
  return 0;
}
#endif

static const char* describe_threads(PythonLayout* layout) {
  PUT(thread_next, PyThreadState, next);
#if PY_VERSION_HEX >= 0x030B0000
  PUT(thread_id, PyThreadState, native_thread_id);
#else
  PUT(thread_id, PyThreadState, thread_id);
  layout->thread_id_in_pthread = id_in_pthread();
  if (layout->thread_id_in_pthread == 0) return "this C library does not show threads' numbers";
#endif
  layout->frame_in_cframe = 0xFFFF;
#if PY_VERSION_HEX >= 0x030D0000
  PUT(thread_frame, PyThreadState, current_frame);
#elif PY_VERSION_HEX >= 0x030B0000
  PUT(thread_frame, PyThreadState, cframe);
  PUT(frame_in_cframe, _PyCFrame, current_frame);
#else
  PUT(thread_frame, PyThreadState, frame);
#endif
  return NULL;
}

static void describe_interpreters(PythonLayout* layout) {
  layout->interpreters = (uint64_t)(uintptr_t)&_PyRuntime.interpreters.head;
  PUT(interpreter_next, PyInterpreterState, next);
#if PY_VERSION_HEX >= 0x030B0000
  PUT(interpreter_threads, PyInterpreterState, threads.head);
#else
  PUT(interpreter_threads, PyInterpreterState, tstate_head);
#endif
#if PY_VERSION_HEX >= 0x030C0000
  PUT(interpreter_gil, PyInterpreterState, ceval.gil);
#else
  layout->gil = (uint64_t)(uintptr_t)&_PyRuntime.ceval.gil;
#endif
  PUT(gil_holder, struct _gil_runtime_state, last_holder);
  PUT(gil_locked, struct _gil_runtime_state, locked);
}

#endif

const char* haiprof_describe_python(PythonLayout* layout) {
  memset(layout, 0, sizeof *layout);
  layout->bytes = sizeof *layout;
#ifdef KNOWN
#if PY_VERSION_HEX >= 0x030B0000
  // An extension built for one release runs in all of its fixes, whose structures are the same.
  if ((Py_Version >> 16) != (PY_VERSION_HEX >> 16)) return "built for another Python";
#endif
  static const unsigned char none[sizeof signature];
  if (memcmp(signature, none, sizeof none) == 0 &&
      getrandom(signature, sizeof signature, 0) != (ssize_t)sizeof signature) {
    return "the system gave no random bytes";
  }
  layout->signature_address = (uint64_t)(uintptr_t)signature;
  memcpy(layout->signature, signature, sizeof signature);
  describe_interpreters(layout);
  const char* const why = describe_threads(layout);
  if (why != NULL) return why;
  describe_frames(layout);
  describe_code(layout);
  describe_strings(layout);
  count_freed_codes(layout);
  layout->version = PY_VERSION_HEX;
  return NULL;
#elif defined(Py_GIL_DISABLED)
  return "a free-threaded Python";
#else
  return "a Python that haiprof does not know: its stacks are read in 3.10 to 3.14";
#endif
}

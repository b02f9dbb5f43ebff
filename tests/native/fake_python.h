// The state of a Python of one interpreter, two threads and one function, in this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ring/python_layout.h"

namespace haiprof::test {

struct Object {
  std::uint64_t type = 0, name = 0, file = 0, lines = 0, units = 0;
  std::int32_t first_line = 0, traceable = 0;
  std::uint8_t instructions[64] = {};
};
struct Frame {
  std::uint64_t code = 0, back = 0, instruction = 0;
  std::uint8_t owner = 0;
  std::uint8_t rest[7] = {};
};
struct String {
  std::uint64_t unused[2] = {};
  std::uint64_t length = 0;
  std::uint32_t state = 0;
  std::uint32_t unused_too = 0;
  char text[64] = {};
};
struct Bytes {
  std::uint64_t unused[2] = {};
  std::uint64_t length = 0;
  std::uint8_t text[64] = {};
};
struct Thread {
  std::uint64_t next = 0, id = 0, frame = 0;
};
struct Interpreter {
  std::uint64_t next = 0, threads = 0;
};
struct Gil {
  std::uint64_t holder = 0;
  std::int32_t locked = 0;
};

inline std::uint64_t address(const void* of) { return reinterpret_cast<std::uintptr_t>(of); }

struct Fake {
  std::uint8_t signature[16] = {1, 2, 3};
  std::uint64_t head = 0;
  Interpreter interpreter;
  Gil gil;
  Thread threads[2];
  Frame frames[3];
  Object code;
  String name, file;
  Bytes lines;
  std::uint64_t code_type = 0;
  std::uint64_t freed = 0;

  Fake() {
    head = address(&interpreter);
    interpreter.threads = address(&threads[0]);
    threads[0] = {address(&threads[1]), 41, address(&frames[0])};
    threads[1] = {0, 42, 0};
    gil = {address(&threads[0]), 1};
    for (int i = 0; i < 3; ++i) {
      frames[i].code = address(&code);
      frames[i].back = i < 2 ? address(&frames[i + 1]) : 0;
      frames[i].instruction = address(code.instructions) + 2;
    }
    set(name, "work");
    set(file, "train.py");
    // One entry of eight units: the line is two after the first.
    lines.length = 2;
    lines.text[0] = 0x80 | 13 << 3 | 7;
    lines.text[1] = 2 << 1;
    code.type = address(&code_type);
    code.name = address(&name);
    code.file = address(&file);
    code.lines = address(&lines);
    code.units = 8;
    code.first_line = 10;
  }

  static void set(String& string, const char* text) {
    string.length = std::strlen(text);
    string.state = 1 | 8 | 16;
    std::strcpy(string.text, text);
  }

  ring::PythonLayout layout() const {
    ring::PythonLayout l{};
    l.version = 0x030B07F0;
    l.bytes = sizeof l;
    l.signature_address = address(signature);
    std::memcpy(l.signature, signature, sizeof signature);
    l.interpreters = address(&head);
    l.gil = address(&gil);
    l.code_type = address(&code_type);
    l.interpreter_next = offsetof(Interpreter, next);
    l.interpreter_threads = offsetof(Interpreter, threads);
    l.gil_holder = offsetof(Gil, holder);
    l.gil_locked = offsetof(Gil, locked);
    l.thread_next = offsetof(Thread, next);
    l.thread_id = offsetof(Thread, id);
    l.thread_frame = offsetof(Thread, frame);
    l.frame_in_cframe = 0xFFFF;
    l.frame_code = offsetof(Frame, code);
    l.frame_back = offsetof(Frame, back);
    l.frame_instruction = offsetof(Frame, instruction);
    l.frame_owner = offsetof(Frame, owner);
    l.frame_bytes = sizeof(Frame);
    l.object_type = offsetof(Object, type);
    l.code_name = offsetof(Object, name);
    l.code_file = offsetof(Object, file);
    l.code_lines = offsetof(Object, lines);
    l.code_units = offsetof(Object, units);
    l.code_first_line = offsetof(Object, first_line);
    l.code_traceable = offsetof(Object, traceable);
    l.code_instructions = offsetof(Object, instructions);
    l.code_bytes = offsetof(Object, instructions);
    l.bytes_length = offsetof(Bytes, length);
    l.bytes_text = offsetof(Bytes, text);
    l.string_length = offsetof(String, length);
    l.string_state = offsetof(String, state);
    l.string_ascii_text = offsetof(String, text);
    l.string_text = offsetof(String, text);
    l.string_kind = 7;
    l.string_compact = 8;
    l.string_ascii = 16;
    l.lines = ring::kLinesOf311;
    l.owner_on_c_stack = 0xFF;
    l.owner_generator = 1;
    return l;
  }
};

}  // namespace haiprof::test

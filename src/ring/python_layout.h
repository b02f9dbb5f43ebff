// Where a CPython keeps the frames of its threads: addresses in its process, and offsets in its
// structures. What was compiled for that very Python writes it down (python/python_layout.c), and
// whoever reads the process's memory needs nothing else.
//
// Part of the ring file's super block. For C, too: CPython's internal headers are C's.
#pragma once

#ifdef __cplusplus
#include <cstdint>
namespace haiprof::ring {
#else
#include <stdint.h>
#endif

// How the line of an instruction is written in a code object. Zero stands for none.
enum PythonLines {
  kLinesOf310 = 1,  // pairs of an instruction's length and a difference of lines
  kLinesOf311 = 2,  // PEP 626's successor: the location table
};

typedef struct PythonLayout {
  uint32_t
      version;     // PY_VERSION_HEX; 0: this Python is not known, and nothing below means anything
  uint32_t bytes;  // of this structure
  // 16 random bytes in the process's memory, and where. A fork has them at the same place; a
  // program that the process became has not.
  uint64_t signature_address;
  uint8_t signature[16];

  uint64_t interpreters;  // address of the pointer to the newest interpreter
  uint64_t gil;           // address of the process's only GIL; 0: interpreters point to theirs
  uint64_t code_type;     // address of PyCode_Type
  uint64_t bytes_type;    // … of PyBytes_Type

  // All of them smaller than 64 KiB.
  uint16_t interpreter_next, interpreter_threads, interpreter_gil;
  uint16_t gil_holder, gil_locked;
  uint16_t thread_next, thread_id, thread_frame;
  uint16_t thread_id_in_pthread;  // not 0: thread_id points to a pthread, which has the number here
  uint16_t frame_in_cframe;  // not 0xFFFF: thread_frame points to a _PyCFrame, which has it here
  uint16_t frame_code, frame_back, frame_instruction, frame_owner, frame_bytes;
  uint16_t object_type;
  uint16_t code_name, code_file, code_first_line, code_lines, code_instructions, code_traceable;
  uint16_t code_units;  // how many instructions it has, in units of two bytes; 0: it does not say
  uint16_t code_bytes;  // without its instructions
  uint16_t bytes_length, bytes_text;
  uint16_t string_length, string_state, string_ascii_text, string_text;
  uint16_t lines;                // PythonLines
  uint8_t owner_on_c_stack;      // it and those above it have no code; 0xFF: there are none
  uint8_t owner_generator;       // … of generators, which are complete from their beginning
  uint8_t instruction_is_index;  // frame_instruction is an int, and counts instructions
  uint32_t string_kind, string_compact, string_ascii;  // masks of string_state
  // Address of how many code objects have been freed, a uint64_t; 0: they are not counted. While it
  // stays, what lay at an address lies there still. Since layout 1.12.
  uint64_t codes_freed;
} PythonLayout;

#ifdef __cplusplus
}  // namespace haiprof::ring
#endif

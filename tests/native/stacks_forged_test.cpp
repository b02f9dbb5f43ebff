// Stacks read from memory that looks like a Python's, is damaged, or was made to harm its reader:
// no read takes long, leaves its bounds, or takes more memory than a fixed amount.
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "ring/python_layout.h"
#include "stacks/python_stacks.h"
#include "stacks/stack_tree.h"
#include "stacks/thread_state.h"

using namespace haiprof;
using stacks::Functions;
using stacks::PythonStacks;
using stacks::ThreadStack;

namespace {

// A Python of one interpreter, in this process. Offsets are those of Fake's structures.
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

std::uint64_t address(const void* of) { return reinterpret_cast<std::uintptr_t>(of); }

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

void a_sound_one_is_read() {
  Fake fake;
  Functions functions;
  PythonStacks reader(getpid(), fake.layout(), functions);
  for (int look = 0; look < 3; ++look) {
    std::vector<ThreadStack> found;
    CHECK(reader.take(found) == PythonStacks::Answer::taken);
    CHECK_EQUAL(found.size(), 2U);
    CHECK_EQUAL(found[0].thread, 41U);
    CHECK(found[0].has_gil && !found[1].has_gil);
    CHECK_EQUAL(found[0].frames.size(), 3U);
    CHECK_EQUAL(found[0].frames[0].line, 12);
    CHECK(found[1].frames.empty());
  }
  CHECK_EQUAL(functions.all().size(), 1U);
  CHECK(functions.all()[0].name == "work" && functions.all()[0].file == "train.py");
  CHECK_EQUAL(reader.torn(), 0U);
  // The object at that address is another one now.
  Fake::set(fake.name, "rest");
  fake.code.first_line = 20;
  std::vector<ThreadStack> found;
  CHECK(reader.take(found) == PythonStacks::Answer::taken);
  CHECK_EQUAL(found[0].frames[0].line, 22);
  CHECK(functions.all()[found[0].frames[0].function].name == "rest");
}

void what_goes_round_ends() {
  Fake fake;
  fake.frames[2].back = address(&fake.frames[0]);
  fake.threads[1].next = address(&fake.threads[0]);
  fake.interpreter.next = address(&fake.interpreter);
  Functions functions;
  PythonStacks reader(getpid(), fake.layout(), functions);
  std::vector<ThreadStack> found;
  CHECK(reader.take(found) == PythonStacks::Answer::taken);
  std::size_t frames = 0;
  for (const ThreadStack& stack : found) {
    CHECK(stack.frames.size() <= PythonStacks::kDeepest);
    frames += stack.frames.size();
  }
  CHECK(frames <= 1U << 16);
  CHECK(found.size() <= 256 * PythonStacks::kMostThreads);
  // Frames of C code alone, in a circle: they are not kept, and end all the same.
  ring::PythonLayout layout = fake.layout();
  layout.owner_on_c_stack = 0;
  PythonStacks of_c(getpid(), layout, functions);
  CHECK(of_c.take(found) == PythonStacks::Answer::taken);
}

void another_program_is_noticed() {
  Fake fake;
  Functions functions;
  PythonStacks reader(getpid(), fake.layout(), functions);
  fake.signature[0] ^= 1;
  std::vector<ThreadStack> found;
  CHECK(reader.take(found) == PythonStacks::Answer::replaced);
}

// Every byte of it may be anything at any time.
void damage_harms_nobody() {
  std::minstd_rand random(7);
  for (int round = 0; round < 300; ++round) {
    Fake fake;
    const ring::PythonLayout layout = fake.layout();
    Functions functions;
    PythonStacks reader(getpid(), layout, functions);
    auto* const bytes = reinterpret_cast<std::uint8_t*>(&fake);
    for (int look = 0; look < 4; ++look) {
      std::vector<ThreadStack> found;
      reader.take(found);
      for (const ThreadStack& stack : found) {
        for (const stacks::Frame& frame : stack.frames) {
          CHECK(frame.function < functions.all().size());
        }
      }
      for (int i = 0; i < 6; ++i) {
        const std::size_t at = 16 + random() % (sizeof fake - 24);
        std::uint64_t value = random();
        // As often as not a place within it, which is read as what it is not.
        if (random() % 2 == 0) value = address(bytes) + random() % sizeof fake;
        std::memcpy(bytes + at, &value, random() % 8 + 1);
      }
    }
  }
}

void no_layout_leaves_its_bounds() {
  const Fake fake;
  CHECK(PythonStacks::possible(fake.layout()));
  ring::PythonLayout layout = fake.layout();
  layout.frame_bytes = 0xFFFF;
  CHECK(!PythonStacks::possible(layout));
  layout = fake.layout();
  layout.frame_back = layout.frame_bytes;
  CHECK(!PythonStacks::possible(layout));
  layout = fake.layout();
  layout.code_lines = 0xFFFE;
  CHECK(!PythonStacks::possible(layout));
  layout = fake.layout();
  layout.string_text = 8;
  CHECK(!PythonStacks::possible(layout));
  layout = fake.layout();
  layout.version = 0;
  CHECK(!PythonStacks::possible(layout));
  std::minstd_rand random(11);
  for (int round = 0; round < 300; ++round) {
    layout = fake.layout();
    auto* const bytes = reinterpret_cast<std::uint8_t*>(&layout);
    const std::size_t from = offsetof(ring::PythonLayout, interpreters);
    for (int i = 0; i < 3; ++i) {
      bytes[from + random() % (sizeof layout - from)] = static_cast<std::uint8_t>(random());
    }
    if (!PythonStacks::possible(layout)) continue;
    Functions functions;
    PythonStacks reader(getpid(), layout, functions);
    std::vector<ThreadStack> found;
    reader.take(found);
    reader.take(found);
  }
}

void stacks_share_what_they_have_in_common() {
  stacks::StackTree tree(5);
  const stacks::Frame a{0, 1}, b{1, 2}, c{2, 3};
  const std::uint32_t ab = tree.id_of(std::vector{b, a});
  CHECK_EQUAL(tree.id_of(std::vector{b, a}), ab);
  const std::uint32_t ac = tree.id_of(std::vector{c, a});
  CHECK(ab != ac);
  const auto nodes = tree.take_new();
  CHECK_EQUAL(nodes.size(), 3U);
  CHECK_EQUAL(nodes[0].id, 5U);
  CHECK_EQUAL(nodes[0].parent, stacks::StackTree::kRoot);
  CHECK_EQUAL(nodes[1].parent, 5U);
  CHECK_EQUAL(nodes[2].parent, 5U);
  CHECK(tree.take_new().empty());
  tree.clear();
  CHECK_EQUAL(tree.id_of(std::vector{a}), 8U);  // no id is given again
}

void a_state_is_behind_the_last_bracket() {
  using stacks::State;
  CHECK(stacks::state_in("7 (a) S) R 1 2") == State::running);
  CHECK(stacks::state_in("7 (python) S 1") == State::waiting);
  CHECK(stacks::state_in("7 (python) D 1") == State::uninterruptible);
  CHECK(stacks::state_in("7 (python) t 1") == State::stopped);
  CHECK(stacks::state_in("7 (python) Z 1") == State::unknown);
  for (const char* text : {"", "7 (python", "7 (python)", "7 (python) "}) {
    CHECK(stacks::state_in(text) == State::unknown);
  }
}

}  // namespace

int main() {
  a_sound_one_is_read();
  what_goes_round_ends();
  another_program_is_noticed();
  damage_harms_nobody();
  no_layout_leaves_its_bounds();
  stacks_share_what_they_have_in_common();
  a_state_is_behind_the_last_bracket();
  return test::result();
}

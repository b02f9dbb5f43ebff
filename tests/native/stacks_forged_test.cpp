// Stacks read from memory that looks like a Python's, is damaged, or was made to harm its reader:
// no read takes long, leaves its bounds, or takes more memory than a fixed amount.
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "fake_python.h"
#include "ring/python_layout.h"
#include "stacks/python_stacks.h"
#include "stacks/stack_tree.h"
#include "stacks/thread_state.h"

using namespace haiprof;
using stacks::Functions;
using stacks::PythonStacks;
using stacks::ThreadStack;
using test::address;
using test::Fake;

namespace {

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

void code_is_looked_at_again_once_some_was_freed() {
  Fake fake;
  ring::PythonLayout layout = fake.layout();
  layout.codes_freed = address(&fake.freed);
  Functions functions;
  PythonStacks reader(getpid(), layout, functions);
  const auto line = [&] {
    std::vector<ThreadStack> found;
    CHECK(reader.take(found) == PythonStacks::Answer::taken);
    return found[0].frames[0].line;
  };
  CHECK_EQUAL(line(), 12);
  // What nobody may do to a code object that lives.
  fake.code.first_line = 20;
  CHECK_EQUAL(line(), 12);
  ++fake.freed;
  CHECK_EQUAL(line(), 22);
  fake.code.first_line = 30;
  CHECK_EQUAL(line(), 22);
  // A count that cannot be read is none.
  layout.codes_freed = 8;
  PythonStacks other(getpid(), layout, functions);
  std::vector<ThreadStack> found;
  for (const int expected : {32, 42}) {
    CHECK(other.take(found) == PythonStacks::Answer::taken);
    CHECK_EQUAL(found[0].frames[0].line, expected);
    fake.code.first_line += 10;
  }
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
  CHECK_EQUAL(found.size(), 2U);  // each once
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
  stacks::StackTree::Path first, second;
  const std::uint32_t ab = tree.id_of(std::vector{b, a}, first);
  CHECK_EQUAL(tree.id_of(std::vector{b, a}, first), ab);
  CHECK_EQUAL(tree.id_of(std::vector{b, a}, second), ab);
  const std::uint32_t ac = tree.id_of(std::vector{c, a}, first);
  CHECK(ab != ac);
  CHECK_EQUAL(tree.id_of(std::vector{a}, first), 5U);
  CHECK_EQUAL(tree.id_of(std::vector{c, a}, first), ac);
  CHECK_EQUAL(tree.id_of(std::vector{c, a}, second), ac);
  const auto nodes = tree.take_new();
  CHECK_EQUAL(nodes.size(), 3U);
  CHECK_EQUAL(nodes[0].id, 5U);
  CHECK_EQUAL(nodes[0].parent, stacks::StackTree::kRoot);
  CHECK_EQUAL(nodes[1].parent, 5U);
  CHECK_EQUAL(nodes[2].parent, 5U);
  CHECK(tree.take_new().empty());
  tree.clear();
  stacks::StackTree::Path none;
  CHECK_EQUAL(tree.id_of(std::vector{a}, none), 8U);  // no id is given again
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
    CHECK_EQUAL(stacks::cpu_in(text), -1);
  }
}

void a_cpu_is_the_thirty_ninth_field() {
  std::string stat = "7 (a) b) R";
  for (int field = 4; field < 39; ++field) stat += " " + std::to_string(100 + field);
  CHECK_EQUAL(stacks::cpu_in(stat.c_str()), -1);
  CHECK_EQUAL(stacks::cpu_in((stat + " 11 12\n").c_str()), 11);
  CHECK_EQUAL(stacks::cpu_in((stat + " -1 12").c_str()), -1);
  CHECK_EQUAL(stacks::cpu_in((stat + " 99999999999 1").c_str()), -1);
  CHECK_EQUAL(stacks::cpu_in((stat + " x").c_str()), -1);
}

}  // namespace

int main() {
  a_sound_one_is_read();
  code_is_looked_at_again_once_some_was_freed();
  what_goes_round_ends();
  another_program_is_noticed();
  damage_harms_nobody();
  no_layout_leaves_its_bounds();
  stacks_share_what_they_have_in_common();
  a_state_is_behind_the_last_bracket();
  a_cpu_is_the_thirty_ninth_field();
  return test::result();
}

// read_stacks PID LAYOUT: prints the frames of a Python's threads, three times: the thread, and the
// function, file and line of the frame, with tabs between; a line that says "done" after each time.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "stacks/python_stacks.h"

namespace {

using namespace haiprof;

bool from_hex(std::string_view text, ring::PythonLayout& layout) {
  if (text.size() != 2 * sizeof layout) return false;
  unsigned char bytes[sizeof layout];
  for (std::size_t i = 0; i < sizeof layout; ++i) {
    const char digits[] = {text[2 * i], text[2 * i + 1], '\0'};
    bytes[i] = static_cast<unsigned char>(std::strtoul(digits, nullptr, 16));
  }
  std::memcpy(&layout, bytes, sizeof layout);
  return true;
}

}  // namespace

int main(int count, char** words) {
  ring::PythonLayout layout{};
  if (count != 3 || !from_hex(words[2], layout)) return 2;
  if (!stacks::PythonStacks::possible(layout)) return 3;
  stacks::Functions functions;
  stacks::PythonStacks reader(std::atoi(words[1]), layout, functions);
  for (int time = 0; time < 3; ++time) {
    std::vector<stacks::ThreadStack> found;
    if (reader.take(found) != stacks::PythonStacks::Answer::taken) return 1;
    for (const stacks::ThreadStack& stack : found) {
      for (const stacks::Frame& frame : stack.frames) {
        const stacks::Function& function = functions.all()[frame.function];
        std::printf("%" PRIu32 "\t%s\t%s\t%d\n", stack.thread, function.name.c_str(),
                    function.file.c_str(), frame.line);
      }
    }
    std::puts("done");
  }
  return reader.torn() == 0 ? 0 : 4;
}

#include "stacks/python_stacks.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <utility>

#include "stacks/lines.h"
#include "stacks/text.h"

namespace haiprof::stacks {
namespace {

constexpr std::uint64_t kPage = 4096;  // none is smaller
constexpr std::size_t kMostInterpreters = 256;
// A text that is longer is none; nor is a table of lines.
constexpr std::uint64_t kMostCharacters = 4096;
constexpr std::uint64_t kMostTable = 1 << 20;
// Of all tables together.
constexpr std::size_t kMostTableBytes = 64 << 20;
// Code objects, until all are forgotten: most that a job makes all the time are gone by then.
constexpr std::size_t kMostCodes = 1 << 16;
constexpr std::uint8_t kNoOwner = 0xFF;
constexpr std::uint16_t kNoCframe = 0xFFFF;

template <typename Value>
Value at(const std::uint8_t* bytes, std::size_t offset) noexcept {
  Value value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

PythonStacks::Answer answer_of(int error) noexcept {
  switch (error) {
    case 0:
      return PythonStacks::Answer::taken;
    case ESRCH:
      return PythonStacks::Answer::ended;
    default:
      return PythonStacks::Answer::forbidden;
  }
}

}  // namespace

struct PythonStacks::Raw {
  std::uint64_t code;
  std::uint64_t instruction;  // its address, or its index
  std::uint8_t owner;
};

struct PythonStacks::Thread {
  std::uint64_t address = 0;
  std::uint64_t frame = 0;  // of the next frame; before resolve(), of what points to it
  std::uint64_t id = 0;     // the kernel's number; before resolve(), maybe what points to it
  bool has_gil = false;
  bool torn = false;
  bool cut = false;
  bool same = false;
  std::vector<Raw> frames;

  std::uint64_t begin = 0;  // of the window
  std::vector<std::uint8_t> window;
  bool whole = false;
};

struct PythonStacks::Code {
  Key key;
  std::uint64_t name_hash = 0;
  std::uint32_t function = 0;
  int traceable = 0;
  std::vector<std::uint8_t> table;
  std::unordered_map<std::int64_t, int> lines;  // that were asked for
};

bool PythonStacks::possible(const ring::PythonLayout& layout) noexcept {
  // CPython's own are a third of these or less.
  constexpr std::uint16_t kMostFrameBytes = 512, kMostCodeBytes = 1024, kMostTextOffset = 256;
  const auto inside = [](std::uint16_t end, std::initializer_list<std::size_t> fields) {
    return std::max(fields) <= end;
  };
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  return layout.version != 0 && layout.frame_bytes <= kMostFrameBytes &&
         layout.code_bytes <= kMostCodeBytes && layout.string_text <= kMostTextOffset &&
         layout.string_kind != 0 && layout.string_state >= kWord &&
         inside(layout.frame_bytes,
                {layout.frame_code + kWord, layout.frame_back + kWord,
                 layout.frame_instruction + kWord, std::size_t{layout.frame_owner} + 1}) &&
         inside(layout.code_bytes,
                {layout.object_type + kWord, layout.code_name + kWord, layout.code_file + kWord,
                 layout.code_lines + kWord, layout.code_first_line + sizeof(int),
                 layout.code_units + kWord, layout.code_traceable + sizeof(int)}) &&
         inside(layout.string_text,
                {layout.string_length + kWord, layout.string_state + sizeof(std::uint32_t),
                 layout.string_ascii_text});
}

PythonStacks::PythonStacks(pid_t pid, const ring::PythonLayout& layout, Functions& functions)
    : layout_(layout),
      remote_(pid),
      thread_bytes_(std::max({layout.thread_next, layout.thread_id, layout.thread_frame}) +
                    sizeof(std::uint64_t)),
      functions_(functions) {}

PythonStacks::~PythonStacks() = default;

PythonStacks::Answer PythonStacks::take(std::vector<ThreadStack>& stacks, const Same& same) {
  stacks.clear();
  if (codes_.size() > kMostCodes || table_bytes_ > kMostTableBytes ||
      generation_ != functions_.generation()) {
    codes_.clear();
    table_bytes_ = 0;
    generation_ = functions_.generation();
  }
  std::unordered_set<std::uint64_t> taken;
  std::uint64_t torn = 0;
  if (const int error = remote_.begin(); error != 0) return answer_of(error);
  for (int again = 0; again < 2; ++again) {
    if (again > 0) remote_.forget();
    std::vector<Thread> threads;
    const Answer answer = attempt(threads, taken, again == 0 ? same : Same{});
    if (answer != Answer::taken) return answer;
    torn = 0;
    for (const Thread& thread : threads) {
      if (taken.contains(thread.address)) continue;
      ThreadStack stack;
      if (finish(thread, stack)) {
        stacks.push_back(std::move(stack));
        taken.insert(thread.address);
      } else {
        ++torn;
      }
    }
    if (torn == 0) break;
  }
  torn_ += torn;
  return Answer::taken;
}

PythonStacks::Answer PythonStacks::attempt(std::vector<Thread>& threads,
                                           const std::unordered_set<std::uint64_t>& taken,
                                           const Same& same) {
  frames_ = 0;
  Answer answer = find(threads);
  if (answer == Answer::taken) answer = resolve(threads);
  if (answer != Answer::taken) return answer;
  for (Thread& thread : threads) {
    if (thread.torn) continue;
    thread.same =
        taken.contains(thread.address) || (same && same(static_cast<std::uint32_t>(thread.id)));
  }
  answer = walk(threads);
  if (answer == Answer::taken) answer = recognise(threads);
  return answer;
}

// The threads of all interpreters.
PythonStacks::Answer PythonStacks::find(std::vector<Thread>& threads) {
  std::uint8_t signature[sizeof layout_.signature];
  std::uint64_t head = 0, holder = 0;
  bool signed_ = false, headed = false;
  remote_.want(layout_.signature_address, signature, sizeof signature, signed_);
  remote_.want(layout_.interpreters, &head, sizeof head, headed);
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  if (!signed_ || !headed || std::memcmp(signature, layout_.signature, sizeof signature) != 0) {
    return Answer::replaced;
  }
  if (layout_.gil != 0) {
    if (const Answer answer = who_holds(layout_.gil, holder); answer != Answer::taken) {
      return answer;
    }
  }
  for (std::size_t n = 0; head != 0 && n < kMostInterpreters; ++n) {
    std::uint64_t next = 0, first = 0, gil = 0;
    bool have_next = false, have_first = false, have_gil = false;
    remote_.want(head + layout_.interpreter_next, &next, sizeof next, have_next);
    remote_.want(head + layout_.interpreter_threads, &first, sizeof first, have_first);
    if (layout_.gil == 0) remote_.want(head + layout_.interpreter_gil, &gil, sizeof gil, have_gil);
    if (const int error = remote_.read(); error != 0) return answer_of(error);
    if (!have_next || !have_first) break;
    if (layout_.gil == 0) {
      holder = 0;
      if (have_gil && gil != 0) {
        if (const Answer answer = who_holds(gil, holder); answer != Answer::taken) return answer;
      }
    }
    const Answer answer = chain(first, holder, threads);
    if (answer != Answer::taken) return answer;
    head = next;
  }
  return Answer::taken;
}

// 0: nobody.
PythonStacks::Answer PythonStacks::who_holds(std::uint64_t gil, std::uint64_t& holder) {
  int locked = 0;
  bool have_holder = false, have_lock = false;
  remote_.want(gil + layout_.gil_holder, &holder, sizeof holder, have_holder);
  remote_.want(gil + layout_.gil_locked, &locked, sizeof locked, have_lock);
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  if (!have_holder || !have_lock || locked <= 0) holder = 0;
  return Answer::taken;
}

PythonStacks::Answer PythonStacks::chain(std::uint64_t head, std::uint64_t holder,
                                         std::vector<Thread>& threads) {
  std::vector<std::uint8_t> state(thread_bytes_);
  while (head != 0 && threads.size() < kMostThreads) {
    bool whole = false;
    remote_.want(head, state.data(), state.size(), whole);
    if (const int error = remote_.read(); error != 0) return answer_of(error);
    if (!whole) break;  // it has just ended
    Thread thread;
    thread.address = head;
    thread.has_gil = head == holder;
    thread.id = at<std::uint64_t>(state.data(), layout_.thread_id);
    thread.frame = at<std::uint64_t>(state.data(), layout_.thread_frame);
    threads.push_back(std::move(thread));
    head = at<std::uint64_t>(state.data(), layout_.thread_next);
  }
  return Answer::taken;
}

// Where threads only point to their number and their innermost frame.
PythonStacks::Answer PythonStacks::resolve(std::vector<Thread>& threads) {
  const bool pointed = layout_.thread_id_in_pthread != 0;
  const bool framed = layout_.frame_in_cframe != kNoCframe;
  std::vector<std::uint32_t> ids(threads.size());
  std::vector<std::uint64_t> frames(threads.size());
  const auto whole = std::make_unique<bool[]>(2 * threads.size());
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const Thread& thread = threads[i];
    whole[2 * i] = whole[2 * i + 1] = true;
    if (pointed) {
      remote_.want(thread.id + layout_.thread_id_in_pthread, &ids[i], sizeof ids[i], whole[2 * i]);
    }
    if (framed && thread.frame != 0) {
      remote_.want(thread.frame + layout_.frame_in_cframe, &frames[i], sizeof frames[i],
                   whole[2 * i + 1]);
    }
  }
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  for (std::size_t i = 0; i < threads.size(); ++i) {
    if (pointed) threads[i].id = ids[i];
    if (framed) threads[i].frame = frames[i];
    threads[i].torn = !whole[2 * i] || !whole[2 * i + 1];
  }
  return Answer::taken;
}

// A frame lies above those that called it, mostly: so a read begins with its page.
PythonStacks::Answer PythonStacks::walk(std::vector<Thread>& threads) {
  std::vector<Thread*> walking;
  for (Thread& thread : threads) {
    if (!thread.torn && !thread.same && thread.frame != 0) walking.push_back(&thread);
  }
  while (!walking.empty()) {
    for (Thread* const thread : walking) {
      thread->begin = thread->frame / kPage * kPage;
      // Whole pages: frames of the next look are mostly in the same.
      const std::uint64_t end = thread->frame + layout_.frame_bytes;
      thread->window.resize((end - thread->begin + kPage - 1) / kPage * kPage);
      remote_.want(thread->begin, thread->window.data(), thread->window.size(), thread->whole);
    }
    if (const int error = remote_.read(); error != 0) return answer_of(error);
    std::erase_if(walking, [&](Thread* thread) {
      if (!thread->whole) thread->torn = true;
      if (!thread->torn) look(*thread);
      return thread->torn || thread->frame == 0 || thread->cut;
    });
  }
  return Answer::taken;
}

void PythonStacks::look(Thread& thread) {
  while (thread.frame >= thread.begin &&
         thread.frame - thread.begin + layout_.frame_bytes <= thread.window.size()) {
    if (thread.frames.size() == kDeepest || frames_ == kMostFrames) {
      thread.cut = true;
      return;
    }
    const std::uint8_t* const frame = &thread.window[thread.frame - thread.begin];
    Raw raw{at<std::uint64_t>(frame, layout_.frame_code), 0, kNoOwner};
    if (layout_.instruction_is_index != 0) {
      raw.instruction = static_cast<std::uint64_t>(
          std::int64_t{at<std::int32_t>(frame, layout_.frame_instruction)});
    } else {
      raw.instruction = at<std::uint64_t>(frame, layout_.frame_instruction);
      raw.owner = at<std::uint8_t>(frame, layout_.frame_owner);
    }
    if (layout_.owner_on_c_stack == kNoOwner || raw.owner != layout_.owner_on_c_stack) {
      thread.frames.push_back(raw);
    }
    ++frames_;
    thread.frame = at<std::uint64_t>(frame, layout_.frame_back);
  }
}

PythonStacks::Key PythonStacks::key_of(const std::uint8_t* code) const {
  Key key;
  key.type = at<std::uint64_t>(code, layout_.object_type);
  key.name = at<std::uint64_t>(code, layout_.code_name);
  key.file = at<std::uint64_t>(code, layout_.code_file);
  key.lines = at<std::uint64_t>(code, layout_.code_lines);
  key.first_line = at<int>(code, layout_.code_first_line);
  if (layout_.code_units != 0) key.units = at<std::uint64_t>(code, layout_.code_units);
  return key;
}

// Looks at every code object again, in one call, and reads what is new.
PythonStacks::Answer PythonStacks::recognise(std::vector<Thread>& threads) {
  std::vector<std::uint64_t> addresses;
  for (const Thread& thread : threads) {
    for (const Raw& raw : thread.frames) addresses.push_back(raw.code);
  }
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  const std::size_t bytes = layout_.code_bytes;
  std::vector<std::uint8_t> headers(addresses.size() * bytes);
  const auto whole = std::make_unique<bool[]>(addresses.size());
  // A function that dies may leave all its addresses to the next one: not what it is called.
  std::vector<std::uint64_t> hashes(addresses.size());
  const auto hashed = std::make_unique<bool[]>(addresses.size());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    remote_.want(addresses[i], &headers[i * bytes], bytes, whole[i]);
    const auto known = codes_.find(addresses[i]);
    if (known == codes_.end()) continue;
    remote_.want(known->second.key.name + hash_at(), &hashes[i], sizeof hashes[i], hashed[i]);
  }
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  std::unordered_map<std::uint64_t, Key> unknown;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const Key key = whole[i] ? key_of(&headers[i * bytes]) : Key{};
    const auto known = codes_.find(addresses[i]);
    if (whole[i] && hashed[i] && known->second.key == key && known->second.name_hash == hashes[i]) {
      continue;
    }
    if (known != codes_.end()) codes_.erase(known);
    if (key.type != layout_.code_type) continue;
    unknown[addresses[i]] = key;
    if (layout_.code_traceable != 0) {
      codes_[addresses[i]].traceable = at<int>(&headers[i * bytes], layout_.code_traceable);
    }
  }
  return unknown.empty() ? Answer::taken : learn(unknown);
}

PythonStacks::Answer PythonStacks::learn(std::unordered_map<std::uint64_t, Key>& unknown) {
  struct Text {
    std::vector<std::uint8_t> header, characters;
    unsigned kind = 0;
    bool whole = false;
  };
  struct Learnt {
    std::uint64_t address;
    Key key;
    Text name, file;
    std::uint64_t length = 0;
    bool measured = false, whole = false;
    std::vector<std::uint8_t> table;
  };
  std::vector<Learnt> all;
  all.reserve(unknown.size());
  for (const auto& [address, key] : unknown) {
    all.push_back({address, key, {}, {}, 0, false, false, {}});
    Learnt& one = all.back();
    for (const auto& [text, from] : {std::pair{&one.name, key.name}, {&one.file, key.file}}) {
      text->header.resize(layout_.string_text);
      remote_.want(from, text->header.data(), text->header.size(), text->whole);
    }
    remote_.want(key.lines + layout_.bytes_length, &one.length, sizeof one.length, one.measured);
  }
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  for (Learnt& one : all) {
    for (const auto& [text, from] :
         {std::pair{&one.name, one.key.name}, {&one.file, one.key.file}}) {
      if (!text->whole) continue;
      const auto state = at<std::uint32_t>(text->header.data(), layout_.string_state);
      const auto length = at<std::uint64_t>(text->header.data(), layout_.string_length);
      const unsigned shift = std::countr_zero(layout_.string_kind);
      text->kind = (state & layout_.string_kind) >> shift;
      const bool compact = (state & layout_.string_compact) != 0;
      if (!compact || length > kMostCharacters ||
          (text->kind != 1 && text->kind != 2 && text->kind != 4)) {
        text->whole = false;
        continue;
      }
      const bool ascii = (state & layout_.string_ascii) != 0;
      text->characters.resize(length * text->kind);
      remote_.want(from + (ascii ? layout_.string_ascii_text : layout_.string_text),
                   text->characters.data(), text->characters.size(), text->whole);
    }
    if (!one.measured || one.length > kMostTable || table_bytes_ > kMostTableBytes) continue;
    table_bytes_ += one.length;
    one.table.resize(one.length);
    remote_.want(one.key.lines + layout_.bytes_text, one.table.data(), one.table.size(), one.whole);
  }
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  for (Learnt& one : all) {
    if (!one.name.whole || !one.file.whole || !one.whole) {
      codes_.erase(one.address);
      continue;
    }
    Code& code = codes_[one.address];
    code.key = one.key;
    code.name_hash = at<std::uint64_t>(one.name.header.data(), hash_at());
    code.function =
        functions_.number_of({utf8_of(one.name.characters, one.name.kind),
                              utf8_of(one.file.characters, one.file.kind), one.key.first_line});
    code.table = std::move(one.table);
    code.lines.clear();
  }
  return Answer::taken;
}

bool PythonStacks::finish(const Thread& thread, ThreadStack& stack) {
  if (thread.torn) return false;
  stack.thread = static_cast<std::uint32_t>(thread.id);
  stack.has_gil = thread.has_gil;
  stack.cut = thread.cut;
  stack.same = thread.same;
  stack.frames.reserve(thread.frames.size());
  for (const Raw& raw : thread.frames) {
    const auto known = codes_.find(raw.code);
    if (known == codes_.end() || known->second.key.type == 0) return false;
    Code& code = known->second;
    std::int64_t offset = 0;
    if (layout_.instruction_is_index != 0) {
      offset = 2 * static_cast<std::int64_t>(raw.instruction);
    } else {
      offset = static_cast<std::int64_t>(raw.instruction - raw.code - layout_.code_instructions);
      // An instruction of another code: frame and code do not belong together.
      if (offset < -2 || offset >= 2 * static_cast<std::int64_t>(code.key.units)) return false;
      // Before its first line, as CPython itself leaves it out.
      if (raw.owner != layout_.owner_generator && offset < 2 * std::int64_t{code.traceable})
        continue;
    }
    const auto [line, added] = code.lines.try_emplace(offset, 0);
    if (added) {
      line->second = line_of(static_cast<ring::PythonLines>(layout_.lines), code.table,
                             code.key.first_line, offset);
    }
    stack.frames.push_back({code.function, line->second});
  }
  return true;
}

}  // namespace haiprof::stacks

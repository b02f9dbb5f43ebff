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
// Lines that are kept of one.
constexpr std::size_t kMostLines = 1024;
// Tables that one look may search for lines, bytes.
constexpr std::size_t kMostSearched = 64 << 20;
constexpr std::uint8_t kNoOwner = 0xFF;
// From 3.14 on frames mark references that they do not count; no object lies at such an address.
constexpr std::uint64_t kTags = 3;
constexpr std::uint16_t kNoCframe = 0xFFFF;
// Room for so many is made at once.
constexpr std::size_t kUsualFrames = 64;

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
  std::size_t bytes = 0;
  Remote::Wanted window = 0;
};

struct PythonStacks::Code {
  Key key;
  std::uint64_t name_hash = 0;
  std::uint32_t function = 0;
  std::uint64_t freed = 0;  // how many others had been when it was last looked at
  std::vector<std::uint8_t> table;
  std::vector<std::pair<std::int64_t, int>> lines;  // that were asked for, by offset
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
  Answer answer = answer_of(remote_.begin());
  if (answer == Answer::taken) answer = look(stacks, same);
  remote_.end();
  return answer;
}

PythonStacks::Answer PythonStacks::look(std::vector<ThreadStack>& stacks, const Same& same) {
  std::unordered_set<std::uint64_t> taken;
  std::uint64_t torn = 0;
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
  frames_ = searched_ = 0;
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
  std::uint64_t holder = 0;
  const auto signature = remote_.want(layout_.signature_address, sizeof layout_.signature);
  const auto first = remote_.want(layout_.interpreters, sizeof(std::uint64_t));
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  const std::uint8_t* const signed_ = remote_.at(signature);
  const std::uint8_t* const headed = remote_.at(first);
  if (signed_ == nullptr || headed == nullptr ||
      std::memcmp(signed_, layout_.signature, sizeof layout_.signature) != 0) {
    return Answer::replaced;
  }
  auto head = at<std::uint64_t>(headed, 0);
  if (layout_.gil != 0) {
    if (const Answer answer = who_holds(layout_.gil, holder); answer != Answer::taken) {
      return answer;
    }
  }
  for (std::size_t n = 0; head != 0 && n < kMostInterpreters; ++n) {
    const auto next = remote_.want(head + layout_.interpreter_next, sizeof(std::uint64_t));
    const auto chained = remote_.want(head + layout_.interpreter_threads, sizeof(std::uint64_t));
    // Where they share the GIL this is asked for all the same, and means nothing.
    const auto gil = remote_.want(head + layout_.interpreter_gil, sizeof(std::uint64_t));
    if (const int error = remote_.read(); error != 0) return answer_of(error);
    if (remote_.at(next) == nullptr || remote_.at(chained) == nullptr) break;
    head = at<std::uint64_t>(remote_.at(next), 0);
    const auto chain_head = at<std::uint64_t>(remote_.at(chained), 0);
    if (layout_.gil == 0) {
      const std::uint64_t own =
          remote_.at(gil) == nullptr ? 0 : at<std::uint64_t>(remote_.at(gil), 0);
      holder = 0;
      if (own != 0) {
        if (const Answer answer = who_holds(own, holder); answer != Answer::taken) return answer;
      }
    }
    const Answer answer = chain(chain_head, holder, threads);
    if (answer != Answer::taken) return answer;
  }
  return Answer::taken;
}

// 0: nobody.
PythonStacks::Answer PythonStacks::who_holds(std::uint64_t gil, std::uint64_t& holder) {
  const auto last = remote_.want(gil + layout_.gil_holder, sizeof(std::uint64_t));
  const auto lock = remote_.want(gil + layout_.gil_locked, sizeof(int));
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  const std::uint8_t* const locked = remote_.at(lock);
  const bool is_held = remote_.at(last) != nullptr && locked != nullptr && at<int>(locked, 0) > 0;
  holder = is_held ? at<std::uint64_t>(remote_.at(last), 0) : 0;
  return Answer::taken;
}

PythonStacks::Answer PythonStacks::chain(std::uint64_t head, std::uint64_t holder,
                                         std::vector<Thread>& threads) {
  while (head != 0 && threads.size() < kMostThreads) {
    const auto wanted = remote_.want(head, thread_bytes_);
    if (const int error = remote_.read(); error != 0) return answer_of(error);
    const std::uint8_t* const state = remote_.at(wanted);
    if (state == nullptr) break;  // it has just ended
    Thread thread;
    thread.address = head;
    thread.has_gil = head == holder;
    thread.id = at<std::uint64_t>(state, layout_.thread_id);
    thread.frame = at<std::uint64_t>(state, layout_.thread_frame);
    threads.push_back(std::move(thread));
    head = at<std::uint64_t>(state, layout_.thread_next);
  }
  return Answer::taken;
}

// Where threads only point to their number and their innermost frame.
PythonStacks::Answer PythonStacks::resolve(std::vector<Thread>& threads) {
  const bool pointed = layout_.thread_id_in_pthread != 0;
  const bool framed = layout_.frame_in_cframe != kNoCframe;
  if (!pointed && !framed) return Answer::taken;
  wanted_.clear();
  for (const Thread& thread : threads) {
    if (pointed) {
      wanted_.push_back(remote_.want(thread.id + layout_.thread_id_in_pthread, sizeof(int)));
    }
    if (framed && thread.frame != 0) {
      wanted_.push_back(
          remote_.want(thread.frame + layout_.frame_in_cframe, sizeof(std::uint64_t)));
    }
  }
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  auto wanted = wanted_.begin();
  for (Thread& thread : threads) {
    if (pointed) {
      const std::uint8_t* const id = remote_.at(*wanted++);
      thread.torn = id == nullptr;
      thread.id = id == nullptr ? 0 : at<std::uint32_t>(id, 0);
    }
    if (framed && thread.frame != 0) {
      const std::uint8_t* const frame = remote_.at(*wanted++);
      thread.torn = thread.torn || frame == nullptr;
      thread.frame = frame == nullptr ? 0 : at<std::uint64_t>(frame, 0);
    }
  }
  return Answer::taken;
}

// A frame lies above those that called it, mostly: so a read begins with its page.
PythonStacks::Answer PythonStacks::walk(std::vector<Thread>& threads) {
  std::vector<Thread*> walking;
  for (Thread& thread : threads) {
    if (thread.torn || thread.same || thread.frame == 0) continue;
    thread.frames.reserve(kUsualFrames);
    walking.push_back(&thread);
  }
  while (!walking.empty()) {
    for (Thread* const thread : walking) {
      thread->begin = thread->frame / kPage * kPage;
      // Whole pages: frames of the next look are mostly in the same.
      const std::uint64_t end = thread->frame + layout_.frame_bytes;
      thread->bytes = (end - thread->begin + kPage - 1) / kPage * kPage;
      thread->window = remote_.want(thread->begin, thread->bytes);
    }
    if (const int error = remote_.read(); error != 0) return answer_of(error);
    std::erase_if(walking, [&](Thread* thread) {
      if (remote_.at(thread->window) == nullptr) thread->torn = true;
      if (!thread->torn) follow(*thread);
      return thread->torn || thread->frame == 0 || thread->cut;
    });
  }
  return Answer::taken;
}

void PythonStacks::follow(Thread& thread) {
  const std::uint8_t* const window = remote_.at(thread.window);
  while (thread.frame >= thread.begin &&
         thread.frame - thread.begin + layout_.frame_bytes <= thread.bytes) {
    if (thread.frames.size() == kDeepest || frames_ == kMostFrames) {
      thread.cut = true;
      return;
    }
    const std::uint8_t* const frame = window + (thread.frame - thread.begin);
    Raw raw{at<std::uint64_t>(frame, layout_.frame_code) & ~kTags, 0, kNoOwner};
    if (layout_.instruction_is_index != 0) {
      raw.instruction = static_cast<std::uint64_t>(
          std::int64_t{at<std::int32_t>(frame, layout_.frame_instruction)});
    } else {
      raw.instruction = at<std::uint64_t>(frame, layout_.frame_instruction);
      raw.owner = at<std::uint8_t>(frame, layout_.frame_owner);
    }
    if (layout_.owner_on_c_stack == kNoOwner || raw.owner < layout_.owner_on_c_stack) {
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
  if (layout_.code_traceable != 0) key.traceable = at<int>(code, layout_.code_traceable);
  if (layout_.code_units != 0) key.units = at<std::uint64_t>(code, layout_.code_units);
  return key;
}

PythonStacks::Answer PythonStacks::count_freed() {
  freed_.reset();
  if (layout_.codes_freed == 0) return Answer::taken;
  const auto wanted = remote_.want_after(layout_.codes_freed, sizeof(std::uint64_t));
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  if (remote_.at(wanted) != nullptr) freed_ = at<std::uint64_t>(remote_.at(wanted), 0);
  return Answer::taken;
}

// Looks at code objects again, in one call, unless none was freed since, and reads what is new.
PythonStacks::Answer PythonStacks::recognise(std::vector<Thread>& threads) {
  addresses_.clear();
  for (const Thread& thread : threads) {
    for (const Raw& raw : thread.frames) addresses_.push_back(raw.code);
  }
  std::sort(addresses_.begin(), addresses_.end());
  addresses_.erase(std::unique(addresses_.begin(), addresses_.end()), addresses_.end());
  if (const Answer answer = count_freed(); answer != Answer::taken) return answer;
  known_.assign(addresses_.size(), nullptr);
  unsure_.clear();
  wanted_.clear();
  hashes_.clear();
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    const auto known = codes_.find(addresses_[i]);
    if (known != codes_.end() && freed_ == known->second.freed) {
      known_[i] = &known->second;
      continue;
    }
    unsure_.push_back(i);
    wanted_.push_back(remote_.want(addresses_[i], layout_.code_bytes));
    // A function that dies may leave all its addresses to the next one: not what it is called.
    const std::uint64_t name = known == codes_.end() ? 0 : known->second.key.name;
    hashes_.push_back(name == 0 ? wanted_.back()
                                : remote_.want(name + hash_at(), sizeof(std::uint64_t)));
  }
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  std::unordered_map<std::uint64_t, Key> unknown;
  for (std::size_t n = 0; n < unsure_.size(); ++n) {
    const std::uint64_t address = addresses_[unsure_[n]];
    const std::uint8_t* const header = remote_.at(wanted_[n]);
    const std::uint8_t* const hash = remote_.at(hashes_[n]);
    const Key key = header != nullptr ? key_of(header) : Key{};
    const auto known = codes_.find(address);
    if (known != codes_.end() && known->second.key == key && hash != nullptr &&
        known->second.name_hash == at<std::uint64_t>(hash, 0)) {
      known->second.freed = freed_.value_or(0);
      known_[unsure_[n]] = &known->second;
      continue;
    }
    if (known != codes_.end()) codes_.erase(known);
    if (key.type != layout_.code_type) continue;
    unknown[address] = key;
  }
  return unknown.empty() ? Answer::taken : learn(unknown);
}

PythonStacks::Answer PythonStacks::learn(std::unordered_map<std::uint64_t, Key>& unknown) {
  struct Text {
    std::uint64_t address = 0;
    unsigned kind = 0;
    std::size_t bytes = 0;
    bool is_known = false;
    Remote::Wanted wanted = 0;
  };
  struct Learnt {
    std::uint64_t address = 0;
    Key key;
    Text name, file;
    std::uint64_t name_hash = 0;
    std::uint64_t length = 0;  // of its table
    bool has_table = false;
    Remote::Wanted table = 0;
  };
  std::vector<Learnt> all;
  all.reserve(unknown.size());
  for (const auto& [address, key] : unknown) {
    Learnt& one = all.emplace_back();
    one.address = address;
    one.key = key;
    one.name.address = key.name;
    one.file.address = key.file;
    for (Text* const text : {&one.name, &one.file}) {
      text->wanted = remote_.want(text->address, layout_.string_text);
    }
    one.table = remote_.want(key.lines + layout_.bytes_length, sizeof one.length);
  }
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  for (Learnt& one : all) {
    for (Text* const text : {&one.name, &one.file}) {
      const std::uint8_t* const header = remote_.at(text->wanted);
      if (header == nullptr) continue;
      const auto state = at<std::uint32_t>(header, layout_.string_state);
      const auto length = at<std::uint64_t>(header, layout_.string_length);
      const unsigned shift = std::countr_zero(layout_.string_kind);
      text->kind = (state & layout_.string_kind) >> shift;
      const bool compact = (state & layout_.string_compact) != 0;
      if (!compact || length > kMostCharacters ||
          (text->kind != 1 && text->kind != 2 && text->kind != 4)) {
        continue;
      }
      const bool ascii = (state & layout_.string_ascii) != 0;
      text->is_known = true;
      text->bytes = length * text->kind;
      text->address += ascii ? layout_.string_ascii_text : layout_.string_text;
    }
    const std::uint8_t* const name = remote_.at(one.name.wanted);
    if (name != nullptr) one.name_hash = at<std::uint64_t>(name, hash_at());
    const std::uint8_t* const length = remote_.at(one.table);
    if (length != nullptr) one.length = at<std::uint64_t>(length, 0);
    one.has_table =
        length != nullptr && one.length <= kMostTable && table_bytes_ <= kMostTableBytes;
    if (one.has_table) table_bytes_ += one.length;
  }
  for (Learnt& one : all) {
    for (Text* const text : {&one.name, &one.file}) {
      if (text->is_known) text->wanted = remote_.want(text->address, text->bytes);
    }
    if (one.has_table) one.table = remote_.want(one.key.lines + layout_.bytes_text, one.length);
  }
  if (const int error = remote_.read(); error != 0) return answer_of(error);
  const auto text_of = [&](const Text& text) {
    return utf8_of({remote_.at(text.wanted), text.bytes}, text.kind);
  };
  for (const Learnt& one : all) {
    const auto is_there = [&](const Text& text) {
      return text.is_known && remote_.at(text.wanted) != nullptr;
    };
    if (!is_there(one.name) || !is_there(one.file) || !one.has_table ||
        remote_.at(one.table) == nullptr) {
      continue;
    }
    Code& code = codes_[one.address];
    code.key = one.key;
    code.name_hash = one.name_hash;
    code.freed = freed_.value_or(0);
    code.function =
        functions_.number_of({text_of(one.name), text_of(one.file), one.key.first_line});
    code.table.assign(remote_.at(one.table), remote_.at(one.table) + one.length);
    known_[index_of(one.address)] = &code;
  }
  return Answer::taken;
}

std::size_t PythonStacks::index_of(std::uint64_t address) const noexcept {
  return static_cast<std::size_t>(std::ranges::lower_bound(addresses_, address) -
                                  addresses_.begin());
}

int PythonStacks::line_in(Code& code, std::int64_t offset) {
  const auto line = std::ranges::lower_bound(code.lines, offset, {},
                                             [](const auto& entry) { return entry.first; });
  if (line != code.lines.end() && line->first == offset) return line->second;
  const int found = line_of(static_cast<ring::PythonLines>(layout_.lines), code.table,
                            code.key.first_line, offset);
  searched_ += code.table.size();
  table_bytes_ += sizeof code.lines.front();
  if (code.lines.size() == kMostLines) {
    code.lines.assign(1, {offset, found});
  } else {
    code.lines.insert(line, {offset, found});
  }
  return found;
}

bool PythonStacks::finish(const Thread& thread, ThreadStack& stack) {
  if (thread.torn) return false;
  stack.thread = static_cast<std::uint32_t>(thread.id);
  stack.has_gil = thread.has_gil;
  stack.cut = thread.cut;
  stack.same = thread.same;
  stack.frames.reserve(thread.frames.size());
  for (const Raw& raw : thread.frames) {
    Code* const known = known_[index_of(raw.code)];
    if (known == nullptr || searched_ > kMostSearched) return false;
    Code& code = *known;
    std::int64_t offset = 0;
    if (layout_.instruction_is_index != 0) {
      offset = 2 * static_cast<std::int64_t>(raw.instruction);
    } else {
      offset = static_cast<std::int64_t>(raw.instruction - raw.code - layout_.code_instructions);
      // An instruction of another code: frame and code do not belong together.
      const auto unit = static_cast<std::uint64_t>(std::max<std::int64_t>(offset, 0)) / 2;
      if (offset < -2 || unit >= code.key.units) return false;
      // Before its first line, as CPython itself leaves it out.
      if (raw.owner != layout_.owner_generator && offset < 2 * std::int64_t{code.key.traceable}) {
        continue;
      }
    }
    stack.frames.push_back({code.function, line_in(code, offset)});
  }
  return true;
}

}  // namespace haiprof::stacks

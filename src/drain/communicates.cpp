#include "drain/communicates.h"

#include <algorithm>
#include <array>
#include <string>

namespace haiprof::drain {
namespace {

// In lower case.
constexpr std::array kWords = {
    std::string_view("nccl"),        std::string_view("rccl"),
    std::string_view("oneccl"),      std::string_view("hccl"),
    std::string_view("hcom_"),       std::string_view("msccl"),
    std::string_view("nvshmem"),     std::string_view("rocshmem"),
    std::string_view("dpsk::ep"),    std::string_view("cross_device_reduce"),
    std::string_view("userbuffers"), std::string_view("allreduce_prototype")};

char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool letter(char c) noexcept { return c >= 'a' && c <= 'z'; }

// Behind the words of a pattern that stand at `at`, or npos. Between two of them an underscore may
// stand: "all?reduce" is "allreduce" or "all_reduce".
std::size_t behind(std::string_view text, std::size_t at, std::string_view pattern) noexcept {
  for (const char wanted : pattern) {
    if (wanted == '?') {
      if (at < text.size() && text[at] == '_') ++at;
      continue;
    }
    if (at >= text.size() || text[at] != wanted) return std::string_view::npos;
    ++at;
  }
  return at;
}

// Where a pattern begins, at `from` or later.
std::size_t find(std::string_view text, std::string_view pattern, std::size_t from = 0) noexcept {
  for (std::size_t at = text.find(pattern[0], from); at != std::string_view::npos;
       at = text.find(pattern[0], at + 1)) {
    if (behind(text, at, pattern) != std::string_view::npos) return at;
  }
  return std::string_view::npos;
}

bool has(std::string_view text, std::string_view pattern, std::size_t from = 0) noexcept {
  return find(text, pattern, from) != std::string_view::npos;
}

// The one, and later the other.
bool has_both(std::string_view text, std::string_view first, std::string_view then) noexcept {
  const std::size_t at = find(text, first);
  return at != std::string_view::npos && has(text, then, behind(text, at, first));
}

// A collective's name with an additional word, as in custom kernels.
bool names_collective(std::string_view text) noexcept {
  for (const std::string_view name : {"all?reduce", "reduce?scatter", "all?gather", "all?to?all"}) {
    for (std::size_t at = find(text, name); at != std::string_view::npos;
         at = find(text, name, at + 1)) {
      if (at > 0 && letter(text[at - 1])) continue;
      const std::size_t end = behind(text, at, name);
      if (end == text.size() ||
          std::string_view("v_<(").find(text[end]) != std::string_view::npos ||
          behind(text, end, "kernel") != std::string_view::npos) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

bool communicates(std::string_view kernel) {
  std::string text(kernel);
  std::transform(text.begin(), text.end(), text.begin(), lower);
  const auto word = [&](std::string_view each) { return text.find(each) != std::string::npos; };
  if (std::any_of(kWords.begin(), kWords.end(), word)) return true;
  for (const std::string_view pattern :
       {"deep?ep::internode", "deep?ep::intranode", "multimem_all?reduce",
        "multimem_one_shot_all?reduce", "multimem_two_shot_all?reduce", "multimem_all?gather",
        "quick?reduce::", "all?reduce?fusion", "moe?finalize?all?reduce",
        "moe?reduction?all?reduce"}) {
    if (has(text, pattern)) return true;
  }
  for (const std::string_view shots : {"one?shot?", "two?shot?"}) {
    for (const std::string_view name :
         {"all?reduce", "reduce?scatter", "all?gather", "all?to?all"}) {
      if (has(text, std::string(shots) + std::string(name))) return true;
    }
  }
  return has_both(text, "pplx", "all?to?all") || has_both(text, "mori::", "dispatch") ||
         has_both(text, "mori::", "combine") || has_both(text, "lamport", "all?reduce") ||
         has_both(text, "lamport", "rms") || names_collective(text);
}

}  // namespace haiprof::drain

// Trace files, damaged in thousands of ways: what is found does not depend on how they are cut, and
// nothing is read beyond a piece (each is a block of memory of its own, for the sanitizers).
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <string_view>

#include "check.h"
#include "trace/parser.h"

using namespace haiprof::trace;

namespace {

constexpr std::string_view kFile = R"({"schemaVersion": 1, "deviceProperties": [{"id": 0}],
"traceEvents": [
{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": "2", "ts": 1623142623460111.25,
 "dur": 7, "args": {"External id": 2, "Input Dims": [[1, 2], []], "Call stack": "a.py(3): f;b"}},
{"args": {"grid": [1, 2, 3], "block": [4, 5, 6], "stream": 7, "correlation": 99,
 "blocks per SM": 1.5, "est. achieved occupancy %": N/A, "Collective name": "all\u0072educe",
 "In msg nelems": 8}, "cat": "kernel", "ph": "X", "name": "k<\"x\">", "ts": "5.5", "dur": 1e1},
{"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 3, "s": "t",
 "args": {"Device Type": 1, "Device Id": 0, "Addr": 139637976727552, "Bytes": -512}},
{"ph": "s", "id": 3, "pid": 1, "tid": 2, "ts": 4, "cat": "ac2g", "name": "ac2g"},
{"ph": "f", "id": 3, "pid": 0, "tid": 7, "ts": 5, "cat": "ac2g", "name": "ac2g", "bp": "e"},
{"ph": "C", "name": "power", "ts": 6, "args": {"gpu0": 300.5, "gpu1": "40", "bad": []}},
{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python é"}},
{"ph": "X", "cat": "cuda_profiler_range", "name": "r", "ts": 9, "dur": 1, "args": {"a": 1}}
], "baseTimeNanoseconds": 5, "traceName": "/tmp/x.json"})";

Routes routes() {
  return {{"cpu_op", {Group::spans, false}},
          {"cuda_profiler_range", {Group::spans, true}},
          {"kernel", {Group::activities, false}}};
}

// Feeds pieces of up to this many bytes.
void feed(Parser& parser, std::string_view text, std::size_t largest, std::mt19937& dice) {
  while (!text.empty()) {
    const std::size_t bytes = std::min<std::size_t>(1 + dice() % largest, text.size());
    const auto piece = std::make_unique<char[]>(bytes);
    std::copy_n(text.data(), bytes, piece.get());
    parser.feed({piece.get(), bytes});
    text.remove_prefix(bytes);
  }
  parser.finish();
}

std::string dump(Parser& parser) {
  std::ostringstream out;
  for (std::size_t i = 0; i < kGroups; ++i) {
    Rows& rows = parser.rows(static_cast<Group>(i));
    out << name_of(static_cast<Group>(i)) << " " << rows.rows() << "\n";
    const std::size_t count = rows.rows();
    for (const Rows::Taken& column : rows.take()) {
      out << "  " << column.name;
      std::visit(
          [&](const auto& values) {
            CHECK_EQUAL(values.size(), count);
            for (const auto& value : values) out << " " << value;
          },
          column.values);
      out << "\n";
    }
  }
  for (std::uint32_t i = 0; i < parser.strings().size(); ++i) out << parser.strings()[i] << "\n";
  for (const auto& [name, text] : parser.header()) out << name << "=" << text << "\n";
  for (const Problem& problem : parser.problems().all()) {
    out << problem.field << " " << problem.reason << " " << problem.count << " " << problem.offset
        << "\n";
  }
  if (parser.truncated()) out << "cut " << *parser.truncated();
  return out.str();
}

std::string damaged(std::mt19937& dice) {
  static constexpr std::string_view kOdd[] = {"\"",
                                              "{",
                                              "}",
                                              "[",
                                              "]",
                                              ",",
                                              ":",
                                              "\\",
                                              "\xFF",
                                              "\xED\xA0",
                                              "-",
                                              "N/A",
                                              "1e999",
                                              "\\ud83d",
                                              "}, {\"",
                                              "}]}",
                                              std::string_view("\0", 1),
                                              "[[[[[[[[[[",
                                              "{\"args\":{"};
  std::string text(kFile);
  for (auto times = 1 + dice() % 3; times > 0; --times) {
    const std::size_t at = dice() % text.size();
    switch (dice() % 5) {
      case 0:
        text.erase(at, 1 + dice() % 30);
        break;
      case 1:
        text.insert(at, kOdd[dice() % std::size(kOdd)]);
        break;
      case 2:
        text.replace(at, 1, kOdd[dice() % std::size(kOdd)]);
        break;
      case 3:
        text[at] = static_cast<char>(dice());
        break;
      default:
        text.insert(at, text.substr(dice() % text.size(), 60));
    }
    if (text.empty()) return text;
  }
  if (dice() % 4 == 0) text.resize(dice() % text.size());
  return text;
}

void a_whole_file_is_understood() {
  std::mt19937 dice(1);
  Parser parser(routes());
  feed(parser, kFile, kFile.size() * 2, dice);
  CHECK_EQUAL(parser.events(), 8U);
  CHECK_EQUAL(parser.rows(Group::spans).rows(), 2U);
  CHECK_EQUAL(parser.rows(Group::activities).rows(), 1U);
  CHECK_EQUAL(parser.rows(Group::collectives).rows(), 1U);
  CHECK_EQUAL(parser.rows(Group::allocations).rows(), 1U);
  CHECK_EQUAL(parser.rows(Group::flows).rows(), 2U);
  CHECK_EQUAL(parser.rows(Group::counters).rows(), 2U);
  CHECK_EQUAL(parser.rows(Group::metadata).rows(), 1U);
  CHECK(!parser.truncated());
  CHECK_EQUAL(parser.header().size(), 4U);
  CHECK_EQUAL(parser.problems().all().size(), 1U);  // the counter that is a list
  const std::vector<Rows::Taken> spans = parser.rows(Group::spans).take();
  CHECK_EQUAL(spans.front().name, "start");
  CHECK_EQUAL(std::get<std::vector<std::int64_t>>(spans.front().values)[0], 1623142623460111250);
}

void damaged_files_are_read_the_same_however_they_are_cut() {
  std::mt19937 dice(2);
  for (int i = 0; i < 4000; ++i) {
    const std::string text = damaged(dice);
    Parser whole(routes());
    const auto exact = std::make_unique<char[]>(text.size());
    std::copy(text.begin(), text.end(), exact.get());
    whole.feed({exact.get(), text.size()});
    whole.finish();
    Parser cut(routes());
    feed(cut, text, std::size_t{1} << (dice() % 9), dice);
    const std::string expected = dump(whole);
    if (dump(cut) != expected) CHECK_EQUAL(text, "read the same");
    CHECK(whole.finished());
  }
}

void every_cut_is_survived() {
  std::mt19937 dice(3);
  for (std::size_t at = 0; at < kFile.size(); ++at) {
    Parser parser(routes());
    feed(parser, kFile.substr(0, at), 64, dice);
    CHECK(parser.truncated().has_value() == (at > 0));
    CHECK(parser.truncated().value_or(0) <= at);
  }
}

}  // namespace

int main() {
  a_whole_file_is_understood();
  damaged_files_are_read_the_same_however_they_are_cut();
  every_cut_is_survived();
  return haiprof::test::result();
}

// Trace files through the parser, in pieces. The last byte of an input says how large they are.
#include <algorithm>
#include <cstdlib>
#include <variant>

#include "entry.h"
#include "trace/number.h"
#include "trace/parser.h"
#include "trace/text.h"

using namespace haiprof;

namespace {

trace::Routes routes() {
  return {{"cpu_op", {trace::Group::spans, false}},
          {"cuda_profiler_range", {trace::Group::spans, true}},
          {"kernel", {trace::Group::activities, false}},
          {"*", {trace::Group::instants, true}}};
}

void take_all(trace::Parser& parser) {
  for (std::size_t i = 0; i < trace::kGroups; ++i) {
    trace::Rows& rows = parser.rows(static_cast<trace::Group>(i));
    const std::size_t count = rows.rows();
    for (const trace::Rows::Taken& column : rows.take()) {
      std::visit(
          [&](const auto& values) {
            if (values.size() != count) std::abort();
          },
          column.values);
    }
  }
}

}  // namespace

std::size_t fuzz::dense_bytes() { return 0; }

std::vector<std::string> fuzz::seeds() {
  return {R"({"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": [
{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": "2", "ts": 1623142623460111.25,
 "dur": 7, "args": {"External id": 2, "Input Dims": [[1, 2], []], "Call stack": "a.py(3): f;b"}},
{"args": {"grid": [1, 2, 3], "block": [4, 5, 6], "stream": 7, "correlation": 99,
 "blocks per SM": 1.5, "est. achieved occupancy %": N/A, "Collective name": "all\u0072educe",
 "In msg nelems": 8}, "cat": "kernel", "ph": "X", "name": "k<\"x\">", "ts": "5.5", "dur": 1e1},
{"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 3, "s": "t",
 "args": {"Device Type": 1, "Device Id": 0, "Addr": 139637976727552, "Bytes": -512}},
{"ph": "C", "name": "power", "ts": 6, "args": {"gpu0": 300.5, "gpu1": "40", "bad": []}},
{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python \ud83d\ude00"}}
], "baseTimeNanoseconds": 5, "traceName": "/tmp/x.json"}~)",
          R"([{"ph": "X", "name": "a", "ts": 0x1F, "dur": -1e308, "tid": null, "pid": Infinity},
{"ph":"s","id":3,"pid":1,"tid":2,"ts":4,"cat":"ac2g","name":"ac2g"}, {"ph": "f"}, [], 5, {}])"
          "\x03",
          "{\"a\": [[[[[[[[{\"b\": \"\\\\\\u0041\\q\"}]]]]]]]], \"traceEvents\": []}\x01"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  const std::size_t largest = std::size_t{1} + data[--bytes] % 128;
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  trace::Parser parser(routes());
  for (std::size_t at = 0; at < text.size(); at += largest) {
    // A block of its own: what is read beyond a piece is seen.
    const std::vector<char> piece(
        text.begin() + static_cast<std::ptrdiff_t>(at),
        text.begin() + static_cast<std::ptrdiff_t>(std::min(at + largest, text.size())));
    parser.feed({piece.data(), piece.size()});
  }
  parser.finish();
  take_all(parser);
  std::string decoded, compacted;
  trace::decode(text, decoded);
  trace::compact(text, compacted);
  trace::decimal(text.substr(0, 40), 3);
  trace::real(text.substr(0, 40));
  trace::hexadecimal(text.substr(0, 20));
  return 0;
}

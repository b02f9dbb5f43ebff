// A column against the plainest one: every pattern of nulls and values up to 18 rows, cleared and
// filled again.
#include <cstdint>
#include <vector>

#include "check.h"
#include "drain/columns.h"

using haiprof::drain::Column;

namespace {

void check_pattern(Column<std::uint32_t>& column, std::uint32_t pattern, std::uint32_t rows) {
  column.clear();
  std::uint32_t nulls = 0;
  for (std::uint32_t row = 0; row < rows; ++row) {
    if ((pattern >> row & 1) != 0) {
      column.push(row + 1);
    } else {
      column.push_null();
      ++nulls;
    }
  }
  CHECK(column.rows() == rows);
  CHECK(column.nulls() == nulls);
  CHECK(column.values().size() == (nulls == rows ? 0 : rows));
  const bool both = nulls != 0 && nulls != rows;
  CHECK(column.bits().size() == (both ? (rows + 7) / 8 : 0));
  for (std::uint32_t row = 0; row < column.values().size(); ++row) {
    const bool valid = (pattern >> row & 1) != 0;
    if (valid) CHECK(column.values()[row] == row + 1);
    if (both) CHECK((column.bits()[row / 8] >> (row % 8) & 1) == valid);
  }
  // Arrow wants what lies behind the last row to be 0.
  if (both && rows % 8 != 0) CHECK(column.bits().back() >> (rows % 8) == 0);
}

}  // namespace

int main() {
  Column<std::uint32_t> column;
  for (const std::uint32_t rows : {0U, 1U, 2U, 7U, 8U, 9U, 16U, 18U}) {
    for (std::uint32_t pattern = 0; pattern < 1U << rows; ++pattern) {
      check_pattern(column, pattern, rows);
    }
  }
  return haiprof::test::result();
}

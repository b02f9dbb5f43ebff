// Samples as columns: their texts by index, labels, rows without an instance.
#include <string>
#include <vector>

#include "check.h"
#include "sampler/rows.h"

namespace {

using namespace haiprof::sampler;

const std::string kBusy = "cpu.busy.percent";
const std::string kBytes = "net.rx.bytes_per_s";
const std::string kLan = "lan";

std::string text(const Dictionary& texts, std::uint32_t index) { return texts.texts().at(index); }

void texts_are_numbered_in_the_order_of_first_use() {
  Rows rows;
  rows.add(10, {0, &kBytes, &kLan, 1.0, 0});
  rows.add(10, {0, &kBusy, nullptr, 2.0, kLate});
  rows.add(20, {0, &kBytes, &kLan, 3.0, 0});
  CHECK_EQUAL(rows.size(), 3U);
  CHECK(rows.time() == (std::vector<std::int64_t>{10, 10, 20}));
  CHECK(rows.metric() == (std::vector<std::uint32_t>{0, 1, 0}));
  CHECK(rows.value() == (std::vector<double>{1.0, 2.0, 3.0}));
  CHECK(rows.flags() == (std::vector<std::uint32_t>{0, kLate, 0}));
  CHECK_EQUAL(text(rows.metrics(), 1), kBusy);
  CHECK_EQUAL(rows.without_instance(), 1U);
  CHECK(rows.instance_bits() == (std::vector<std::uint8_t>{0b101}));
}

void a_label_comes_before_the_instance() {
  Rows rows;
  rows.add(1, {7, &kBytes, &kLan, 1.0, 0}, "command");
  rows.add(1, {7, &kBusy, nullptr, 1.0, 0}, "command");
  CHECK_EQUAL(rows.without_instance(), 0U);
  CHECK_EQUAL(text(rows.instances(), rows.instance()[0]), "command lan");
  CHECK_EQUAL(text(rows.instances(), rows.instance()[1]), "command");
}

void validity_has_a_bit_for_each_row() {
  Rows rows;
  for (int i = 0; i < 17; ++i) rows.add(i, {0, &kBytes, i % 2 == 0 ? &kLan : nullptr, 0.0, 0});
  CHECK(rows.instance_bits() == (std::vector<std::uint8_t>{0x55, 0x55, 0x01}));
  CHECK_EQUAL(rows.without_instance(), 8U);
}

void texts_outlive_rows_until_they_are_many() {
  Rows rows;
  rows.add(1, {0, &kBytes, &kLan, 1.0, 0});
  rows.clear();
  CHECK_EQUAL(rows.size(), 0U);
  CHECK(rows.instance_bits().empty());
  CHECK_EQUAL(rows.instances().texts().size(), 1U);
  CHECK_EQUAL(rows.instances().renewed(), 0U);
  for (int i = 0; i < 10'000; ++i) {
    const std::string name = "lan" + std::to_string(i);
    rows.add(1, {0, &kBytes, &name, 1.0, 0});
  }
  CHECK_EQUAL(rows.instances().texts().size(), 10'001U);  // never between the rows of a batch
  CHECK_EQUAL(text(rows.instances(), rows.instance()[9'999]), "lan9999");
  rows.clear();
  CHECK_EQUAL(rows.instances().texts().size(), 0U);
  CHECK_EQUAL(rows.instances().renewed(), 1U);
  CHECK_EQUAL(rows.metrics().renewed(), 0U);
  rows.add(1, {0, &kBytes, &kLan, 1.0, 0});
  CHECK_EQUAL(text(rows.instances(), rows.instance()[0]), kLan);
}

}  // namespace

int main() {
  texts_are_numbered_in_the_order_of_first_use();
  a_label_comes_before_the_instance();
  validity_has_a_bit_for_each_row();
  texts_outlive_rows_until_they_are_many();
  return haiprof::test::result();
}

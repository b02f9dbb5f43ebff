// NCCL's operations under way: recorded once each, whatever the order in which their parts end.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "drain/columns.h"
#include "nccl/communicators.h"
#include "nccl/operations.h"
#include "nccl/words.h"

namespace {

using namespace haiprof;
using nccl::Operations;

constexpr auto kHost = static_cast<std::uint32_t>(drain::NcclSide::host);
constexpr auto kNetwork = static_cast<std::uint32_t>(drain::NcclSide::network);

nccl::Begun begun(std::uint64_t sequence) {
  nccl::Begun b{};
  b.ticks = ring::now_ticks();
  b.sequence = sequence;
  b.generation = ring::generation();
  b.type = ring::kNoType;
  return b;
}

class Records {
 public:
  explicit Records(const std::string& path) { CHECK(drain_.open(path, {}, {}).ok()); }
  // What is new.
  const drain::Nccl& rows() {
    drain_.clear();
    drain_.drain(1 << 20);
    return drain_.nccl;
  }

 private:
  drain::Drain drain_;
};

void without_a_network_there_is_one_record(Operations& all, Records& records) {
  int owner = 0;
  const std::uint64_t id = all.begin(&owner, begun(5));
  CHECK_EQUAL(records.rows().id.rows(), 0U);
  all.enqueued(id, ring::now_ticks());
  all.enqueued(id, ring::now_ticks());  // it has ended
  const drain::Nccl& rows = records.rows();
  CHECK_EQUAL(rows.id.rows(), 1U);
  CHECK_EQUAL(rows.id.values()[0], id);
  CHECK_EQUAL(rows.side.values()[0], kHost);
  CHECK_EQUAL(rows.sequence.values()[0], 5U);
  CHECK_EQUAL(rows.cut_off.nulls(), 1U);
}

void transfers_end_before_and_after_it_is_enqueued(Operations& all, Records& records) {
  int owner = 0;
  const std::uint64_t id = all.begin(&owner, begun(0));
  const std::uint64_t first = ring::now_ticks();
  CHECK(all.begin_transfer(id));
  CHECK(all.begin_transfer(id));
  all.transfer_runs(id, first + 10);
  all.transfer_runs(id, first);
  all.end_transfer(id, first + 20);
  CHECK_EQUAL(records.rows().id.rows(), 0U);
  all.end_transfer(id, first + 30);
  {
    const drain::Nccl& rows = records.rows();
    CHECK_EQUAL(rows.side.values()[0], kNetwork);
    CHECK_EQUAL(rows.transfers.values()[0], 2U);
    CHECK(rows.duration.values()[0] <= 31 && rows.duration.values()[0] > 0);
  }
  all.enqueued(id, first + 40);
  CHECK_EQUAL(records.rows().side.values()[0], kHost);
  // One more: it counts from the first.
  CHECK(all.begin_transfer(id));
  all.transfer_runs(id, first + 50);
  all.end_transfer(id, first + 60);
  all.end_transfer(id, first + 60);  // there is none
  const drain::Nccl& rows = records.rows();
  CHECK_EQUAL(rows.id.rows(), 1U);
  CHECK_EQUAL(rows.transfers.values()[0], 3U);
}

void what_is_under_way_is_cut_off_with_its_owner_alone(Operations& all, Records& records) {
  int owner = 0, other = 0;
  const std::uint64_t enqueuing = all.begin(&owner, begun(1)), sent = all.begin(&owner, begun(2)),
                      done = all.begin(&owner, begun(3)), others = all.begin(&other, begun(4));
  CHECK(all.begin_transfer(sent));
  all.enqueued(sent, ring::now_ticks());
  all.enqueued(done, ring::now_ticks());
  CHECK_EQUAL(records.rows().id.rows(), 2U);
  all.cut_off(&owner, ring::now_ticks());
  {
    const drain::Nccl& rows = records.rows();
    CHECK_EQUAL(rows.id.rows(), 2U);
    CHECK_EQUAL(rows.id.values()[0], enqueuing);
    CHECK_EQUAL(rows.id.values()[1], sent);
    CHECK_EQUAL(rows.side.values()[1], kNetwork);
    CHECK_EQUAL(rows.cut_off.values()[0] + rows.cut_off.values()[1], 2);
  }
  // They end too late, and one of them when its place is another's.
  all.enqueued(enqueuing, ring::now_ticks());
  all.end_transfer(sent, ring::now_ticks());
  CHECK_EQUAL(records.rows().id.rows(), 0U);
  all.enqueued(others, ring::now_ticks());
  CHECK_EQUAL(records.rows().id.rows(), 1U);
}

void too_many_are_refused_until_a_place_is_free(Operations& all, Records& records) {
  int owner = 0;
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i < Operations::kPlaces; ++i) ids.push_back(all.begin(&owner, begun(i)));
  for (const std::uint64_t id : ids) CHECK(id != 0);
  CHECK_EQUAL(all.begin(&owner, begun(0)), 0U);
  all.enqueued(ids[1], ring::now_ticks());
  const std::uint64_t next = all.begin(&owner, begun(0));
  CHECK_EQUAL(next, ids[1] + Operations::kPlaces);
  CHECK(!all.begin_transfer(ids[1]));  // its place is another's
  all.end_transfer(ids[1], ring::now_ticks());
  all.enqueued(ids[1], ring::now_ticks());
  CHECK_EQUAL(records.rows().id.rows(), 1U);
  all.cut_off(&owner, ring::now_ticks());
  CHECK_EQUAL(records.rows().id.rows(), Operations::kPlaces);
}

// As several proxies might: each begins and ends, and the record that counts has all.
void threads_share_an_operation(Operations& all, Records& records) {
  constexpr std::uint32_t kThreads = 4, kEach = 2000;
  int owner = 0;
  const std::uint64_t id = all.begin(&owner, begun(0));
  std::vector<std::thread> threads;
  for (std::uint32_t n = 0; n < kThreads; ++n) {
    threads.emplace_back([&] {
      for (std::uint32_t i = 0; i < kEach; ++i) {
        if (!all.begin_transfer(id)) return;
        all.transfer_runs(id, ring::now_ticks());
        all.end_transfer(id, ring::now_ticks());
      }
    });
  }
  for (std::thread& each : threads) each.join();
  const auto& transfers = records.rows().transfers.values();
  CHECK_EQUAL(*std::max_element(transfers.begin(), transfers.end()), kThreads * kEach);
  all.enqueued(id, ring::now_ticks());
  CHECK_EQUAL(records.rows().id.rows(), 1U);
}

void communicators_are_given_back() {
  const auto all = std::make_unique<nccl::Communicators>();
  std::vector<nccl::Communicator*> taken;
  for (std::size_t i = 0; i < nccl::Communicators::kMost; ++i) taken.push_back(all->take());
  CHECK(taken.back() != nullptr);
  CHECK(all->take() == nullptr);
  taken[7]->give_back();
  CHECK(all->take() == taken[7]);
  // A name may be longer than its place.
  taken[7]->is(0xABC, std::string(500, 'x').c_str(), 2, 16, -1);
  CHECK_EQUAL(taken[7]->rank(), ring::kNone);
  const std::uint32_t name = taken[7]->name(ring::generation());
  CHECK_EQUAL(name, ring::intern(std::string(80, 'x')));
  CHECK_EQUAL(taken[7]->text(ring::generation()), ring::intern("0000000000000abc"));
  taken[7]->is(0xABD, nullptr, 2, 16, 0);
  CHECK_EQUAL(taken[7]->name(ring::generation()), ring::kNone);
  CHECK_EQUAL(taken[7]->text(ring::generation()), ring::intern("0000000000000abd"));
}

void words_are_numbers() {
  CHECK(nccl::operation_of("AllReduce") == ring::Operation::all_reduce);
  CHECK(nccl::operation_of("AllReduceV") == ring::Operation::other);
  CHECK(nccl::operation_of("") == ring::Operation::other);
  const auto name_of = [](const char* word) {
    return std::string(ring::kElementTypes[nccl::type_of(word)].name);
  };
  CHECK_EQUAL(name_of("ncclBfloat16"), "bf16");
  CHECK_EQUAL(name_of("ncclFloat8e4m3"), "fp8");
  CHECK_EQUAL(name_of("ncclInt64"), "int64");
  CHECK_EQUAL(ring::kElementTypes[nccl::type_of("ncclUint64")].bytes, 8);
  CHECK_EQUAL(nccl::type_of("Unknown"), ring::kNoType);
}

}  // namespace

int main() {
  const std::string path = "/dev/shm/haiprof-nccl-" + std::to_string(getpid()) + ".ring";
  unlink(path.c_str());
  CHECK(ring::open(path, 4 * ring::kDefaultRingBytes, {}).ok());
  CHECK(ring::claim_lane(64));
  const auto all = std::make_unique<Operations>();
  Records records(path);
  without_a_network_there_is_one_record(*all, records);
  transfers_end_before_and_after_it_is_enqueued(*all, records);
  what_is_under_way_is_cut_off_with_its_owner_alone(*all, records);
  too_many_are_refused_until_a_place_is_free(*all, records);
  threads_share_an_operation(*all, records);
  communicators_are_given_back();
  words_are_numbers();
  ring::close();
  unlink(path.c_str());
  return haiprof::test::result();
}

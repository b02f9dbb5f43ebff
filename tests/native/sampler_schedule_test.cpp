// When sources are read, how expensive ones slow down, and how broken ones are survived.
#include <time.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "ring/clock.h"
#include "sampler/sampler.h"

namespace {

using namespace haiprof::sampler;

constexpr std::uint64_t kSecond = 1'000'000'000;

// What the test has the source do, and what the source saw.
struct Script {
  Status open;
  Status read;
  std::uint64_t burn_ns = 0;
  std::uint64_t sleep_ns = 0;
  bool waits = false;
  unsigned units = 1;
  std::string device;  // the one that it knows
  bool has_device = true;
  bool throws = false;
  int opened = 0;
  int reads = 0;
  std::vector<pid_t> watched;
};

class Scripted final : public Source {
 public:
  Scripted(std::string name, Script& script) : name_(std::move(name)), script_(script) {}

  std::string_view name() const noexcept override { return name_; }

  Status open(SeriesTable& table) override {
    ++script_.opened;
    if (script_.open.ok()) series_ = table.add("test.reads.count", name_);
    return script_.open;
  }

  Status read(SeriesTable& table) override {
    ++script_.reads;
    const std::uint64_t end = haiprof::ring::clock_ns(CLOCK_THREAD_CPUTIME_ID) + script_.burn_ns;
    while (haiprof::ring::clock_ns(CLOCK_THREAD_CPUTIME_ID) < end) {
    }
    if (script_.sleep_ns != 0) {
      const timespec pause{0, static_cast<long>(script_.sleep_ns)};
      nanosleep(&pause, nullptr);
    }
    if (script_.throws) throw std::bad_alloc();
    table.gauge(series_, script_.reads);
    return script_.read;
  }

  std::vector<Part> describe(const Status& status) const override {
    return {{name_, status, {"test.reads.count"}}};
  }

  void watch(pid_t pid, SeriesTable&) override { script_.watched.push_back(pid); }

  bool use(std::string_view device) override {
    if (device != script_.device) return false;
    if (script_.has_device) script_.open = {};
    return true;
  }

  unsigned units() const noexcept override { return script_.units; }
  bool waits() const noexcept override { return script_.waits; }

 private:
  std::string name_;
  Script& script_;
  SeriesId series_ = kNoSeries;
};

std::unique_ptr<Source> scripted(const char* name, Script& script) {
  return std::make_unique<Scripted>(name, script);
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

void each_source_has_its_own_interval() {
  Sampler sampler;
  Script quick;
  Script slow;
  sampler.add(scripted("quick", quick), kSecond);
  sampler.add(scripted("slow", slow), 5 * kSecond);
  CHECK_EQUAL(sampler.next_due_ns(), 0U);
  for (std::uint64_t second = 100; second < 110; ++second) sampler.read(second * kSecond);
  CHECK_EQUAL(quick.reads, 10);
  CHECK_EQUAL(slow.reads, 2);
  CHECK_EQUAL(sampler.next_due_ns(), 110 * kSecond);
}

void a_source_can_be_made_due_at_once() {
  Sampler sampler;
  Script one;
  Script other;
  sampler.add(scripted("one", one), 10 * kSecond);
  sampler.add(scripted("other", other), 10 * kSecond);
  sampler.read(100 * kSecond);
  sampler.hasten("one");
  sampler.hasten("none");
  CHECK_EQUAL(sampler.next_due_ns(), 0U);
  sampler.read(101 * kSecond);
  CHECK_EQUAL(one.reads, 2);
  CHECK_EQUAL(other.reads, 1);
  CHECK_EQUAL(sampler.next_due_ns(), 110 * kSecond);
}

void readings_keep_to_the_grid_and_do_not_catch_up() {
  Sampler sampler;
  Script script;
  sampler.add(scripted("one", script), kSecond);
  sampler.read(100 * kSecond);
  sampler.read(101 * kSecond + kSecond / 4);  // a little late: the next is due at 102
  CHECK_EQUAL(sampler.next_due_ns(), 102 * kSecond);
  sampler.read(150 * kSecond + 7);  // very late: once, not 48 times
  CHECK_EQUAL(script.reads, 3);
  CHECK_EQUAL(sampler.next_due_ns(), 151 * kSecond + 7);
}

void a_dear_source_slows_down_and_recovers() {
  Sampler sampler(0.002);
  Script dear;
  Script other;
  dear.burn_ns = 5'000'000;  // of 1 s: 0.5 %
  sampler.add(scripted("dear", dear), kSecond);
  sampler.add(scripted("other", other), kSecond);
  std::uint64_t now = 100 * kSecond;
  for (unsigned i = 0; i < Sampler::kDearReadings; ++i) sampler.read(now += kSecond);
  std::vector<Change> changes = sampler.take_changes();
  CHECK_EQUAL(changes.size(), 1U);
  CHECK_EQUAL(changes.at(0).kind, "source");
  CHECK(contains(changes.at(0).text, "source dear spends 0.5"));
  CHECK(contains(changes.at(0).text, "of a core"));
  CHECK(contains(changes.at(0).text, "every 2 s instead of 1 s"));
  CHECK_EQUAL(sampler.sources().at(0).interval_ns, 2 * kSecond);
  CHECK(sampler.sources().at(0).cost_ns >= 5'000'000);

  // 0.25 % at 2 s is still too much; at 4 s it fits.
  for (int i = 0; i < 40; ++i) sampler.read(now += kSecond);
  CHECK_EQUAL(sampler.sources().at(0).interval_ns, 4 * kSecond);
  CHECK_EQUAL(sampler.sources().at(1).interval_ns, kSecond);
  sampler.take_changes();

  dear.burn_ns = 0;
  for (int i = 0; i < 200; ++i) sampler.read(now += kSecond);
  CHECK_EQUAL(sampler.sources().at(0).interval_ns, kSecond);
  changes = sampler.take_changes();
  CHECK_EQUAL(changes.size(), 2U);
  CHECK(contains(changes.at(1).text, "read again every 1 s"));
}

void one_dear_reading_changes_nothing() {
  Sampler sampler(0.002);
  Script script;
  sampler.add(scripted("one", script), kSecond);
  std::uint64_t now = 100 * kSecond;
  for (int i = 0; i < 12; ++i) {
    script.burn_ns = i % 3 == 0 ? 5'000'000 : 0;
    sampler.read(now += kSecond);
  }
  CHECK(sampler.take_changes().empty());
}

void slowing_down_has_an_end() {
  Sampler sampler(1e-9);
  Script script;
  script.burn_ns = 20'000;
  sampler.add(scripted("one", script), kSecond);
  std::uint64_t now = 100 * kSecond;
  for (int i = 0; i < 2000; ++i) sampler.read(now += kSecond);
  CHECK_EQUAL(sampler.sources().at(0).interval_ns, Sampler::kMaxSlowdown * kSecond);
  CHECK(script.reads > 30);
}

void an_absent_source_is_tried_again_once_a_minute() {
  Sampler sampler;
  Script script;
  script.open = {State::denied, "no right", "get the right"};
  sampler.add(scripted("one", script), kSecond);
  CHECK_EQUAL(script.opened, 1);
  for (std::uint64_t second = 100; second < 280; ++second) sampler.read(second * kSecond);
  CHECK_EQUAL(script.opened, 4);
  CHECK_EQUAL(script.reads, 0);
  CHECK_EQUAL(std::string(text(sampler.sources().at(0).part.status.state)), "denied");
  CHECK(sampler.take_changes().empty());
  script.open = {};
  sampler.read(300 * kSecond);
  CHECK_EQUAL(script.reads, 1);
  CHECK_EQUAL(sampler.take_changes().at(0).text, "source one is back");
}

void a_source_that_throws_is_left_alone_for_a_while() {
  Sampler sampler;
  Script broken;
  Script whole;
  sampler.add(scripted("broken", broken), kSecond);
  sampler.add(scripted("whole", whole), kSecond);
  broken.throws = true;
  for (std::uint64_t second = 100; second < 110; ++second) sampler.read(second * kSecond);
  CHECK_EQUAL(broken.reads, 1);
  CHECK_EQUAL(whole.reads, 10);
  const std::vector<Change> changes = sampler.take_changes();
  CHECK_EQUAL(changes.size(), 1U);
  CHECK(contains(changes.at(0).text, "source broken is absent: it failed"));
}

void sentences_are_bounded() {
  Sampler sampler;
  Script script;
  sampler.add(scripted("one", script), kSecond);
  std::uint64_t now = 100 * kSecond;
  for (int i = 0; i < 1000; ++i) {
    script.read = i % 2 == 0 ? Status{State::absent, "gone", ""} : Status{};
    sampler.read(now += Sampler::kRetryNs);
  }
  CHECK(sampler.take_changes().size() <= Sampler::kMaxChanges);
  CHECK(sampler.take_changes().empty());
}

void watching_reaches_every_source() {
  Sampler sampler;
  Script script;
  sampler.add(scripted("one", script), kSecond);
  sampler.watch(7);
  CHECK_EQUAL(script.watched.size(), 1U);
  CHECK_EQUAL(script.watched.at(0), 7);
}

// Whether a source that sleeps for 5 ms in each reading slows down, with a share of 2 ms a device.
bool slows_down_when_asleep(bool waits, unsigned units) {
  Sampler sampler(0.002);
  Script script;
  script.sleep_ns = 5'000'000;
  script.waits = waits;
  script.units = units;
  sampler.add(scripted("one", script), kSecond);
  std::uint64_t now = 100 * kSecond;
  // More than it takes: a reading in which somebody else got the core does not count.
  for (int i = 0; i < 20; ++i) sampler.read(now += kSecond);
  const std::vector<Change> changes = sampler.take_changes();
  if (changes.empty()) return false;
  CHECK(contains(changes.at(0).text, "of the time"));
  return true;
}

void waiting_costs_only_a_source_that_makes_others_wait() {
  CHECK(!slows_down_when_asleep(false, 1));
  CHECK(slows_down_when_asleep(true, 1));
}

void every_device_has_a_share_of_its_own() { CHECK(!slows_down_when_asleep(true, 1000)); }

void a_source_is_opened_as_soon_as_its_device_is_used() {
  Sampler sampler;
  Script script;
  Script other;
  script.open = other.open = {State::absent, "no device", ""};
  script.device = "GPU-1";
  sampler.add(scripted("one", script), kSecond);
  sampler.add(scripted("other", other), kSecond);
  sampler.read(100 * kSecond);
  sampler.use("GPU-2");
  CHECK_EQUAL(sampler.next_due_ns(), 160 * kSecond);
  sampler.use("GPU-1");
  CHECK_EQUAL(sampler.next_due_ns(), 0U);
  sampler.read(101 * kSecond);
  CHECK_EQUAL(script.reads, 1);
  CHECK_EQUAL(other.opened, 2);
  CHECK_EQUAL(sampler.next_due_ns(), 102 * kSecond);
  CHECK(sampler.take_changes().empty());  // who asked for it expects it
}

void a_source_that_has_nothing_of_its_device_says_so() {
  Sampler sampler;
  Script script;
  script.open = {State::absent, "no device", ""};
  script.device = "GPU-1";
  script.has_device = false;
  sampler.add(scripted("one", script), kSecond);
  sampler.use("GPU-1");
  for (std::uint64_t second = 100; second < 110; ++second) sampler.read(second * kSecond);
  const std::vector<Change> changes = sampler.take_changes();
  CHECK_EQUAL(changes.size(), 1U);
  CHECK_EQUAL(changes.at(0).text, "source one is absent: no device");
}

void an_empty_sampler_has_nothing_to_do() {
  Sampler sampler;
  CHECK(sampler.read(kSecond).empty());
  CHECK_EQUAL(sampler.next_due_ns(), ~std::uint64_t{0});
  CHECK(sampler.sources().empty());
}

}  // namespace

int main() {
  each_source_has_its_own_interval();
  a_source_can_be_made_due_at_once();
  readings_keep_to_the_grid_and_do_not_catch_up();
  a_dear_source_slows_down_and_recovers();
  one_dear_reading_changes_nothing();
  slowing_down_has_an_end();
  an_absent_source_is_tried_again_once_a_minute();
  a_source_that_throws_is_left_alone_for_a_while();
  sentences_are_bounded();
  watching_reaches_every_source();
  waiting_costs_only_a_source_that_makes_others_wait();
  every_device_has_a_share_of_its_own();
  a_source_is_opened_as_soon_as_its_device_is_used();
  a_source_that_has_nothing_of_its_device_says_so();
  an_empty_sampler_has_nothing_to_do();
  return haiprof::test::result();
}

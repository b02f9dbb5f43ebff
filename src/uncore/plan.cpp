#include "uncore/plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "host/file.h"
#include "perf/pmu.h"
#include "uncore/machine.h"
#include "uncore/peak.h"
#include "uncore/rules.h"

namespace haiprof::uncore {

namespace {

struct Planned {
  const Rule* rule;
  Counter counter;
};

// Whether the names are equal, each # of the rule's being a number.
bool is_numbered_as(std::string_view rule, std::string_view pmu) noexcept {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (const char expected : rule) {
    if (pmu.empty() || (expected == '#' ? !is_digit(pmu.front()) : pmu.front() != expected)) {
      return false;
    }
    do pmu.remove_prefix(1);
    while (expected == '#' && !pmu.empty() && is_digit(pmu.front()));
  }
  return pmu.empty();
}

// Whether a PMU is one of those that a rule is for.
bool has_name(std::string_view rule, std::string_view pmu) noexcept {
  if (rule.find('#') != std::string_view::npos) return is_numbered_as(rule, pmu);
  if (pmu == rule) return true;
  const perf::Numbered name = perf::numbered(pmu);
  return name.number && name.stem.size() == rule.size() + 1 && name.stem.starts_with(rule) &&
         name.stem.back() == '_';
}

// PMUs of the whole machine that count other things: sleep states, caches, meshes, graphics,
// IOMMUs.
constexpr std::array<std::string_view, 19> kOthers = {
    "amd_iommu",  "amd_l3",     "cstate_",   "dmar",        "i915",       "msr",       "uncore_arb",
    "uncore_b2",  "uncore_c",   "uncore_ha", "uncore_iio",  "uncore_irp", "uncore_m2", "uncore_m3",
    "uncore_mdf", "uncore_pcu", "uncore_r",  "uncore_sbox", "uncore_ubox"};

// The events of a rule that sysfs names.
std::vector<std::string> named_events(const Rule& rule, const perf::Pmu& pmu) {
  if (!rule.file.ends_with('#')) {
    if (rule.file.empty() || !pmu.has_event(rule.file)) return {};
    return {std::string(rule.file)};
  }
  std::vector<std::string> events;
  for (const std::string& event : pmu.events()) {
    const perf::Numbered name = perf::numbered(event);
    if (name.number && name.stem == rule.file.substr(0, rule.file.size() - 1)) {
      events.push_back(event);
    }
  }
  return events;
}

class Planner {
 public:
  Planner(const host::Roots& roots, const std::optional<Cpu>& cpu)
      : devices_(roots.sysfs + "/bus/event_source/devices") {
    plan_.cpu = cpu ? cpu : find_cpu(roots.procfs);
    kind_ = kind_of(plan_.cpu);
    std::vector<std::string> unclear;
    sockets_ = find_sockets(roots.sysfs, unclear);
    plan_.sockets = sockets_.count;
    plan_.socket_of_cpu = sockets_.of_cpu;
    const perf::Found<std::vector<std::string>> names = perf::list_folder(devices_, true);
    if (!names) report(names.problem);
    for (const std::string& name : names ? *names : std::vector<std::string>{}) load(name);
    if (names) report_missing_controllers(*names);
    choose_memory();
    if (sockets_.of_cpu.empty()) take_sockets_of_counters();
    for (const Seen& seen : seen_) add_boxes(seen);
    if (!plan_.boxes.empty()) {
      for (const std::string& problem : unclear) report(problem);
    }
    const Peak peak = find_peak(roots.sysfs, plan_, plan_.problems);
    plan_.dram_peak_bytes_per_s = peak.bytes_per_s;
    plan_.dram_peak_how = peak.how;
  }

  Plan take() { return std::move(plan_); }

 private:
  struct Seen {
    perf::Pmu pmu;
    std::vector<int> cpus;
    std::map<Choice, std::vector<Planned>> planned;
  };

  // One file may spoil several counters: it is reported once.
  void report(const std::string& problem) {
    auto& problems = plan_.problems;
    if (std::find(problems.begin(), problems.end(), problem) == problems.end()) {
      problems.push_back(problem);
    }
  }

  void load(const std::string& name) {
    const auto concerns = [&](const Rule& rule) { return has_name(rule.pmu, name); };
    if (std::none_of(rules().begin(), rules().end(), concerns)) {
      const auto other = [&](std::string_view start) { return name.starts_with(start); };
      // A PMU of the machine, and no CPU's, says where it is opened.
      if (std::none_of(kOthers.begin(), kOthers.end(), other) &&
          host::exists(devices_ + "/" + name + "/cpumask")) {
        plan_.unknown.push_back(name);
      }
      return;
    }
    const auto give_up = [&](const std::string& problem) {
      report(problem);
      for (const Rule& rule : rules()) {
        if (concerns(rule)) incomplete_.insert({rule.choice, rule.quantity});
      }
    };
    perf::Found<perf::Pmu> pmu = perf::Pmu::load(devices_ + "/" + name, name);
    if (!pmu) return give_up(pmu.problem);
    Seen seen{std::move(*pmu.value), {}, {}};
    bool has_rule = false;
    for (const Rule& rule : rules()) {
      if (concerns(rule)) has_rule |= apply(rule, seen);
    }
    if (!has_rule && seen.pmu.events().empty()) {
      report(devices_ + "/" + name + ": the meaning of its events on " +
             (plan_.cpu ? text(*plan_.cpu) : "a CPU that is not known") + " is not known");
    }
    if (seen.planned.empty()) return;
    const perf::Found<std::vector<int>> cpus = seen.pmu.cpus();
    if (!cpus) return give_up(cpus.problem);
    std::string unknown;
    for (const int cpu : *cpus) {
      if (sockets_.of_cpu.empty() || sockets_.of_cpu.contains(cpu)) {
        seen.cpus.push_back(cpu);
      } else if (unknown.empty()) {
        unknown = std::to_string(cpu);
      }
    }
    if (!unknown.empty()) {
      give_up(devices_ + "/" + name + "/cpumask: of CPU " + unknown + " the socket is not known");
    }
    if (!seen.cpus.empty()) seen_.push_back(std::move(seen));
  }

  // Since Zen 6 no rule of the fabric counts memory: without PMUs of the controllers nothing does.
  void report_missing_controllers(const std::vector<std::string>& names) {
    constexpr unsigned kZen5 = 26;
    if (!plan_.cpu || plan_.cpu->vendor != "AuthenticAMD" || plan_.cpu->family < kZen5) return;
    if (kind_ == Kind::zen5) return;
    const auto any = [&](std::string_view pmu) {
      return std::any_of(names.begin(), names.end(),
                         [&](const std::string& name) { return has_name(pmu, name); });
    };
    if (!any("amd_df") || any("amd_umc")) return;
    report(devices_ + ": has amd_df and no amd_umc_N, which alone count memory bandwidth on " +
           text(*plan_.cpu) + ": use Linux 6.7 or later");
  }

  // Whether the rule is for this machine.
  bool apply(const Rule& rule, Seen& seen) {
    const std::vector<std::string> files = named_events(rule, seen.pmu);
    const bool ours = rule.code.kind == Kind::any || rule.code.kind == kind_;
    const bool coded = files.empty() && ours && !rule.code.terms.empty();
    if (files.empty() && !coded) return false;
    // One socket has no links to others, and they would take counters from memory.
    const bool of_others = rule.quantity == Quantity::remote_sent || rule.note == Note::by_other;
    if (sockets_.surely_one() ? of_others : rule.note == Note::alone) return true;
    std::vector<Planned>& planned = seen.planned[rule.choice];
    const auto refuse = [&](const std::string& problem) {
      report(problem);
      incomplete_.insert({rule.choice, rule.quantity});
    };
    // Two rules may come to the same event by its name and by its number.
    const auto add = [&](const perf::Event& event, double scale) {
      const auto same = [&](const Planned& other) { return other.counter.event == event; };
      if (std::any_of(planned.begin(), planned.end(), same)) return;
      planned.push_back({&rule, {rule.quantity, event, scale}});
    };
    for (const std::string& file : files) {
      const perf::Found<perf::NamedEvent> event = seen.pmu.event(file);
      if (!event) {
        refuse(event.problem);
      } else if (!event->scale && rule.bytes == 0) {
        refuse(devices_ + "/" + seen.pmu.name() + "/events/" + file + ": has no .scale");
      } else {
        double scale = event->scale.value_or(rule.bytes);
        if (rule.note == Note::at_least && ours) scale = std::max(scale, rule.bytes);
        add(event->event, scale);
      }
    }
    for (unsigned i = 0; coded && i < rule.code.times; ++i) {
      char terms[96];
      std::snprintf(terms, sizeof terms, "event=0x%x,%.*s", rule.code.event + 0x40 * i,
                    static_cast<int>(rule.code.terms.size()), rule.code.terms.data());
      const perf::Found<perf::Event> event = seen.pmu.pack(terms, devices_ + "/" + seen.pmu.name());
      if (event) {
        add(*event, rule.bytes);
      } else {
        refuse(event.problem);
      }
    }
    return true;
  }

  // The first choice, unless a part of it is missing and the second one is whole.
  void choose_memory() {
    const auto some = [&](Choice choice) {
      return std::any_of(seen_.begin(), seen_.end(), [&](const Seen& seen) {
        const auto first = seen.planned.find(choice);
        return first != seen.planned.end() && !first->second.empty();
      });
    };
    const auto whole = [&](Choice choice) {
      return some(choice) && std::none_of(incomplete_.begin(), incomplete_.end(),
                                          [&](const auto& each) { return each.first == choice; });
    };
    const bool take_first = whole(Choice::memory_first) ||
                            (some(Choice::memory_first) && !whole(Choice::memory_second));
    const Choice other = take_first ? Choice::memory_second : Choice::memory_first;
    for (Seen& seen : seen_) seen.planned.erase(other);
    for (const auto& [choice, quantity] : incomplete_) {
      if (choice != other) plan_.incomplete.push_back(quantity);
    }
  }

  // Where no CPU has the number of a socket: PMUs of sockets are read on one CPU of each.
  void take_sockets_of_counters() {
    std::set<int> cpus;
    for (const Seen& seen : seen_) cpus.insert(seen.cpus.begin(), seen.cpus.end());
    for (const int cpu : cpus) {
      sockets_.of_cpu[cpu] = static_cast<unsigned>(sockets_.of_cpu.size());
    }
    if (!cpus.empty()) sockets_.count = static_cast<unsigned>(cpus.size());
    plan_.sockets = sockets_.count;
    plan_.socket_of_cpu = sockets_.of_cpu;
  }

  void add_boxes(const Seen& seen) {
    // Memory first, then the rest; what has another sender is read apart.
    std::vector<std::vector<Planned>> groups;
    std::size_t all = 0;
    unsigned most = 0;
    for (const Choice choice : {Choice::memory_first, Choice::memory_second, Choice::always}) {
      const auto group = seen.planned.find(choice);
      if (group == seen.planned.end()) continue;
      const Rule* last = nullptr;
      for (const Planned& planned : group->second) {
        most = planned.rule->counters;
        const bool full = most != 0 && !groups.empty() && groups.back().size() == most;
        const auto received = [](const Rule& rule) { return rule.note == Note::received; };
        if (last == nullptr || full || received(*planned.rule) != received(*last)) {
          groups.emplace_back();
        }
        groups.back().push_back(planned);
        last = planned.rule;
        ++all;
      }
    }
    for (const int cpu : seen.cpus) {
      for (const std::vector<Planned>& group : groups) {
        Box box{seen.pmu.name(),
                cpu,
                sender(group.front().rule->note, cpu),
                most != 0 && all > most,
                {}};
        for (const Planned& planned : group) box.counters.push_back(planned.counter);
        plan_.boxes.push_back(std::move(box));
      }
    }
  }

  unsigned sender(Note note, int cpu) const {
    const auto entry = sockets_.of_cpu.find(cpu);
    const unsigned socket = entry == sockets_.of_cpu.end() ? 0 : entry->second;
    return note == Note::received && sockets_.count == 2 ? 1 - socket : socket;
  }

  std::string devices_;
  Kind kind_ = Kind::any;
  Sockets sockets_;
  std::set<std::pair<Choice, Quantity>> incomplete_;
  std::vector<Seen> seen_;
  Plan plan_;
};

}  // namespace

std::string_view text(Quantity quantity) noexcept {
  switch (quantity) {
    case Quantity::dram_read:
      return "dram_rd";
    case Quantity::dram_write:
      return "dram_wr";
    case Quantity::dram_traffic:
      return "dram_rw";
    case Quantity::remote_sent:
      return "xsock_tx";
    case Quantity::pcie_in:
      return "pcie_in";
    case Quantity::pcie_out:
      return "pcie_out";
    case Quantity::c2c_in:
      return "c2c_in";
    case Quantity::c2c_out:
      return "c2c_out";
    case Quantity::cpu_energy:
      return "cpu_J";
    case Quantity::dram_energy:
      return "dram_J";
  }
  return "";
}

Plan make_plan(const host::Roots& roots, const std::optional<Cpu>& cpu) {
  return Planner(roots, cpu).take();
}

}  // namespace haiprof::uncore

#include "perf/pmu.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace haiprof::perf {

namespace {

struct Unit {
  std::string_view name;
  double size;
};
constexpr Unit kUnits[] = {{"MiB", 1048576.0}, {"Bytes", 1.0}, {"Joules", 1.0}};

std::uint64_t low_bits(unsigned count) noexcept {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

// Takes the text up to the next `separator` off the front.
std::string_view next_part(std::string_view& text, char separator) noexcept {
  const std::size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

// "7" or "0-7".
bool parse_range(std::string_view text, unsigned most, unsigned& low, unsigned& high) noexcept {
  const auto number = [&](std::string_view word, unsigned& into) {
    const char* end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, into);
    return error == std::errc{} && at == end && into <= most;
  };
  const std::size_t dash = text.find('-');
  if (!number(text.substr(0, dash), low)) return false;
  if (dash == std::string_view::npos) {
    high = low;
    return true;
  }
  return number(text.substr(dash + 1), high) && low <= high;
}

// Names of terms are names of files: nothing else is looked up.
bool is_term(std::string_view name) noexcept {
  constexpr std::size_t kLongest = 64;
  return !name.empty() && name.size() <= kLongest &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_';
         });
}

std::uint64_t& config_word(Event& event, unsigned word) noexcept {
  return word == 0 ? event.config : word == 1 ? event.config1 : event.config2;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  if (text.empty() || text.back() == ',') return std::nullopt;
  while (!text.empty()) {
    unsigned low = 0;
    unsigned high = 0;
    if (!parse_range(next_part(text, ','), kMaxCpu, low, high)) return std::nullopt;
    if (!cpus.empty() && low <= static_cast<unsigned>(cpus.back())) return std::nullopt;
    for (unsigned cpu = low; cpu <= high; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

std::optional<Format> Format::parse(std::string_view text) {
  constexpr std::string_view kWords[] = {"config", "config1", "config2"};
  Format format;
  const std::string_view word = next_part(text, ':');
  const auto entry = std::find(std::begin(kWords), std::end(kWords), word);
  if (entry == std::end(kWords) || text.empty() || text.back() == ',') return std::nullopt;
  format.word_ = static_cast<unsigned>(entry - std::begin(kWords));
  while (!text.empty()) {
    unsigned low = 0;
    unsigned high = 0;
    if (!parse_range(next_part(text, ','), 63, low, high)) return std::nullopt;
    const std::uint64_t bits = low_bits(high - low + 1) << low;
    if ((format.mask_ & bits) != 0) return std::nullopt;
    format.mask_ |= bits;
    format.ranges_.push_back({low, high - low + 1});
  }
  return format;
}

Format Format::whole(unsigned word) noexcept {
  Format format;
  format.word_ = word;
  format.mask_ = ~std::uint64_t{0};
  format.ranges_ = {{0, 64}};
  return format;
}

bool Format::fits(std::uint64_t value) const noexcept {
  unsigned width = 0;
  for (const Range& range : ranges_) width += range.width;
  return (value & ~low_bits(width)) == 0;
}

std::uint64_t Format::spread(std::uint64_t value) const noexcept {
  std::uint64_t word = 0;
  for (const Range& range : ranges_) {
    word |= (value & low_bits(range.width)) << range.low;
    value = range.width >= 64 ? 0 : value >> range.width;
  }
  return word;
}

Found<Pmu> Pmu::load(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/type";
  const Found<std::string> text = read_attribute(path);
  if (!text) return Found<Pmu>::none(text.problem);
  const auto type = parse_number(*text);
  if (!type || *type > std::numeric_limits<std::int32_t>::max()) {
    return Found<Pmu>::none(path + ": " + quoted(*text) + " is not the number of a PMU");
  }
  Found<std::vector<std::string>> events = list_folder(folder + "/events", false);
  if (!events) return Found<Pmu>::none(events.problem);
  Found<std::vector<std::string>> formats = list_folder(folder + "/format", false);
  if (!formats) return Found<Pmu>::none(formats.problem);
  Pmu pmu;
  pmu.folder_ = folder;
  pmu.name_ = name;
  pmu.type_ = static_cast<std::uint32_t>(*type);
  pmu.events_ = std::move(*events.value);
  pmu.formats_ = std::move(*formats.value);
  return {std::move(pmu), {}};
}

bool Pmu::has_event(std::string_view event) const {
  return std::find(events_.begin(), events_.end(), event) != events_.end();
}

Found<std::vector<int>> Pmu::cpus() const {
  const std::string path = folder_ + "/cpumask";
  const Found<std::string> text = read_attribute(path);
  if (!text) return Found<std::vector<int>>::none(text.problem);
  auto cpus = parse_cpu_list(*text);
  if (cpus) return {std::move(cpus), {}};
  return Found<std::vector<int>>::none(path + ": " + quoted(*text) + " is not a list of CPUs");
}

Found<NamedEvent> Pmu::event(const std::string& name) const {
  const std::string path = folder_ + "/events/" + name;
  const Found<std::string> terms = read_attribute(path);
  if (!terms) return Found<NamedEvent>::none(terms.problem);
  const Found<Event> packed = pack(*terms, path);
  if (!packed) return Found<NamedEvent>::none(packed.problem);
  if (!has_event(name + ".scale")) return {NamedEvent{*packed, std::nullopt}, {}};
  const Found<double> counted = scale(name);
  if (!counted) return Found<NamedEvent>::none(counted.problem);
  return {NamedEvent{*packed, *counted}, {}};
}

Found<double> Pmu::scale(const std::string& event) const {
  const std::string path = folder_ + "/events/" + event;
  const Found<std::string> number = read_attribute(path + ".scale");
  if (!number) return Found<double>::none(number.problem);
  const Found<std::string> name = read_attribute(path + ".unit");
  if (!name) return Found<double>::none(name.problem);
  const auto unit = std::find_if(std::begin(kUnits), std::end(kUnits), [&](const Unit& candidate) {
    return candidate.name == std::string_view(*name);
  });
  if (unit == std::end(kUnits)) {
    return Found<double>::none(path + ".unit: " + quoted(*name) + " is not a known unit");
  }
  double scale = 0;
  const char* end = number->data() + number->size();
  const auto [at, error] = std::from_chars(number->data(), end, scale);
  scale *= unit->size;
  if (error != std::errc{} || at != end || !std::isfinite(scale) || scale <= 0) {
    return Found<double>::none(path + ".scale: " + quoted(*number) +
                               " is not a number above 0 that can be");
  }
  return {scale, {}};
}

Found<Event> Pmu::pack(std::string_view terms, const std::string& source) const {
  Event event{.type = type_};
  Event taken;
  const auto refuse = [&](std::string_view term, const std::string& why) {
    return Found<Event>::none(source + ": " + quoted(term) + " " + why);
  };
  if (terms.empty() || terms.back() == ',') return refuse(terms, "is not a list of terms");
  while (!terms.empty()) {
    const std::string_view term = next_part(terms, ',');
    const std::size_t equals = term.find('=');
    const std::string_view name = term.substr(0, equals);
    if (!is_term(name)) return refuse(term, "is not a term of an event");
    std::uint64_t value = 1;
    if (equals != std::string_view::npos) {
      const auto number = parse_number(term.substr(equals + 1));
      if (!number) return refuse(term, "has no number");
      value = *number;
    }
    const Found<Format> place = format(std::string(name), source);
    if (!place) return Found<Event>::none(place.problem);
    if (!place->fits(value))
      return refuse(term, "does not fit the bits of format/" + std::string(name));
    std::uint64_t& used = config_word(taken, place->word());
    if ((used & place->mask()) != 0) return refuse(term, "wants bits that another term has");
    used |= place->mask();
    config_word(event, place->word()) |= place->spread(value);
  }
  return {event, {}};
}

Found<Format> Pmu::format(const std::string& term, const std::string& source) const {
  const std::string path = folder_ + "/format/" + term;
  if (std::find(formats_.begin(), formats_.end(), term) == formats_.end()) {
    if (term == "config") return {Format::whole(0), {}};
    if (term == "config1") return {Format::whole(1), {}};
    if (term == "config2") return {Format::whole(2), {}};
    return Found<Format>::none(source + ": there is no " + path + " for its term " + quoted(term));
  }
  const Found<std::string> text = read_attribute(path);
  if (!text) return Found<Format>::none(text.problem);
  auto format = Format::parse(*text);
  if (format) return {std::move(format), {}};
  return Found<Format>::none(path + ": " + quoted(*text) +
                             " does not name bits of config, config1 or config2");
}

}  // namespace haiprof::perf

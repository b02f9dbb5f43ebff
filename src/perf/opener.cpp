// Chooses who opens the counters: this process, or the helper where this process may not.
#include "perf/opener.h"

#include <utility>

#include "perf/own_opener.h"
#include "perf/perfd_client.h"

namespace haiprof::perf {

namespace {

class FirstOwn final : public Opener {
 public:
  // helper: null when there is none to ask.
  FirstOwn(std::unique_ptr<Opener> own, std::unique_ptr<Opener> helper)
      : own_(std::move(own)), helper_(std::move(helper)) {}

  Opened open(std::span<const Event> events, int cpu) override {
    Opened opened = own_->open(events, cpu);
    if (opened.group != nullptr || helper_ == nullptr || !is_denied(opened.error)) return opened;
    Opened helped = helper_->open(events, cpu);
    if (helped.group != nullptr || !is_denied(helped.error)) return helped;
    opened.reason += "; " + helped.reason;
    if (!helped.fix.empty()) opened.reason += " (" + helped.fix + ")";
    return opened;
  }

 private:
  std::unique_ptr<Opener> own_;
  std::unique_ptr<Opener> helper_;
};

}  // namespace

std::unique_ptr<Opener> make_opener(const std::string& procfs, const std::string& socket) {
  return std::make_unique<FirstOwn>(make_own_opener(procfs),
                                    socket.empty() ? nullptr : make_perfd_opener(socket));
}

}  // namespace haiprof::perf

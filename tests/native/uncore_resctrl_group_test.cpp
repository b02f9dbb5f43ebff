// What making a monitoring group leaves behind when it fails: nothing, for the numbers that groups
// take are few, and nobody would remove one that has no owner.
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "check.h"
#include "uncore/resctrl_group.h"

namespace {

using haiprof::uncore::MonitoringGroup;

class Folder {
 public:
  Folder() { CHECK(mkdtemp(path_.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::size_t groups() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::string path_ = "/tmp/haiprof-groups-XXXXXX";
};

// No further descriptor can be opened while one of these lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    CHECK_EQUAL(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit none = before_;
    none.rlim_cur = 0;
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

void a_group_that_cannot_be_opened_is_removed_again() {
  const Folder folder;
  MonitoringGroup group;
  int error = 0;
  {
    const NoDescriptors none;
    error = group.create(folder.path(), 77);
  }
  CHECK_EQUAL(error, EMFILE);
  CHECK(!group);
  CHECK_EQUAL(folder.groups(), 0u);
}

void a_group_lives_as_long_as_its_owner() {
  const Folder folder;
  {
    MonitoringGroup group;
    CHECK_EQUAL(group.create(folder.path(), 77), 0);
    CHECK_EQUAL(group.path(), folder.path() + "/haiprof-77");
    CHECK_EQUAL(folder.groups(), 1u);
  }
  CHECK_EQUAL(folder.groups(), 0u);
}

}  // namespace

int main() {
  a_group_that_cannot_be_opened_is_removed_again();
  a_group_lives_as_long_as_its_owner();
  return haiprof::test::result();
}

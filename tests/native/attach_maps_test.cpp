// Lines of /proc/<pid>: mappings, status, what a thread is in.
#include <unistd.h>

#include "attach/maps.h"
#include "attach/proc.h"
#include "check.h"

using haiprof::attach::Doing;
using haiprof::attach::Mapping;
using haiprof::attach::parse_doing;
using haiprof::attach::parse_maps;
using haiprof::attach::parse_status;
using haiprof::attach::Status;

namespace {

void mappings() {
  const std::vector<Mapping> maps = parse_maps(
      "55e0a000-55e0b000 r-xp 00001000 fe:01 77                 /opt/a b/python3 (deleted)\n"
      "55e0c000-55e0d000 rw-p 00000000 00:00 0 \n"
      "not a line\n"
      "55e0f000-55e0e000 r--p 00000000 00:00 0 \n"
      "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0          [stack]\n"
      "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]\n"
      "55e0a000-55e0b000 r-xp 0000");
  CHECK_EQUAL(maps.size(), 4u);
  if (maps.size() != 4) return;
  CHECK_EQUAL(maps[0].begin, 0x55e0a000u);
  CHECK_EQUAL(maps[0].end, 0x55e0b000u);
  CHECK_EQUAL(maps[0].offset, 0x1000u);
  CHECK_EQUAL(maps[0].inode, 77u);
  CHECK_EQUAL(maps[0].path, "/opt/a b/python3 (deleted)");
  CHECK(maps[0].readable && !maps[0].writable && maps[0].executable);
  CHECK(maps[1].readable && maps[1].writable && !maps[1].executable);
  CHECK_EQUAL(maps[1].path, "");
  CHECK_EQUAL(maps[2].path, "[stack]");
  CHECK_EQUAL(maps[3].begin, 0xffffffffff600000u);
  CHECK(parse_maps("").empty());
}

void states() {
  const Status status = parse_status(
      "Name:\tState:\tX\nState:\tT (stopped)\nPPid:\t12\nTracerPid:\t34\n"
      "SigPnd:\t0000000000000001\nShdPnd:\t0000000000004000\n"
      "SigCgt:\t0000000180004002\nSeccomp:\t2\nSeccomp_filters:\t1\n");
  CHECK_EQUAL(status.state, 'T');
  CHECK_EQUAL(status.parent, 12);
  CHECK_EQUAL(status.tracer, 34);
  CHECK_EQUAL(status.pending, 0x4001u);
  CHECK_EQUAL(status.caught, 0x180004002u);
  CHECK_EQUAL(status.seccomp, 2u);
  CHECK_EQUAL(parse_status("").state, '?');
}

void calls() {
  const Doing waiting = parse_doing("202 0x7f01 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd5520 0x7f03\n");
  CHECK(!waiting.running);
  CHECK_EQUAL(waiting.syscall, 202);
  CHECK_EQUAL(waiting.arguments[0], 0x7f01u);
  CHECK_EQUAL(waiting.arguments[1], 0x189u);
  CHECK_EQUAL(waiting.arguments[5], 0xffffffffu);
  CHECK(parse_doing("running\n").running);
  CHECK_EQUAL(parse_doing("-1 0x7ffd5520 0x7f03\n").syscall, -1);
  CHECK_EQUAL(parse_doing("").syscall, -1);
}

void own_process() {
  std::vector<Mapping> maps;
  CHECK_EQUAL(haiprof::attach::read_maps(getpid(), maps), 0);
  bool stack = false;
  for (const Mapping& mapping : maps) stack |= mapping.path == "[stack]" && mapping.writable;
  CHECK(stack);
  Status status;
  CHECK_EQUAL(haiprof::attach::read_status(getpid(), status), 0);
  CHECK_EQUAL(status.parent, getppid());
  CHECK_EQUAL(haiprof::attach::threads_to_stop(getpid()).front().tid, getpid());
}

}  // namespace

int main() {
  mappings();
  states();
  calls();
  own_process();
  return haiprof::test::result();
}

// A job that says which GPUs it uses, and stays until its standard input ends.
//
//   gpu_user RING RUN_DIR NODE RANK UUID…
//
// For each line of its input, the uuid in it is one more.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "ring/writer.h"

using namespace haiprof;

namespace {

void report(std::uint16_t device, const std::string& uuid) {
  const std::uint32_t id = ring::intern(uuid);
  const std::uint32_t name = ring::intern("FAKE H100");
  ring::push_at<ring::DevicePayload>(ring::RecordType::device, ring::now_ticks(), [&](auto& p) {
    p = {};
    p.memory_bytes = 80ULL << 30;
    p.uuid = id;
    p.name = name;
    p.device = device;
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  ring::Identity identity;
  identity.rank = std::atoi(argv[4]);
  identity.node = argv[3];
  identity.host = argv[3];
  identity.run = "run";
  identity.run_dir = argv[2];
  if (!ring::open(argv[1], ring::kDefaultRingBytes, identity).ok()) return 4;
  std::uint16_t device = 0;
  for (int i = 5; i < argc; ++i) report(device++, argv[i]);
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) report(device++, line);
  ring::close();
}

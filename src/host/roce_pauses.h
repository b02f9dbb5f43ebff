// Priority flow control of each RoCE port: frames that stop a sender, from the statistics of the
// port's network interface.
#pragma once

#include <memory>

#include "host/ethtool.h"
#include "host/sources.h"

namespace haiprof::host {

std::unique_ptr<sampler::Source> make_roce_pauses(const Roots& roots,
                                                  std::unique_ptr<Ethtool> ethtool);

}  // namespace haiprof::host

#include "nccl/words.h"

#include <algorithm>
#include <iterator>

namespace haiprof::nccl {
namespace {

using ring::Operation;

constexpr struct {
  std::string_view word;
  Operation operation;
} kFunctions[] = {
    {"AllReduce", Operation::all_reduce},
    {"AllGather", Operation::all_gather},
    {"ReduceScatter", Operation::reduce_scatter},
    {"Broadcast", Operation::broadcast},
    {"Send", Operation::send},
    {"Recv", Operation::recv},
    {"Reduce", Operation::reduce},
    {"AlltoAll", Operation::all_to_all},
    {"Gather", Operation::gather},
    {"Scatter", Operation::scatter},
};

constexpr struct {
  std::string_view word;
  std::uint8_t type;  // c10's number
} kTypes[] = {
    {"ncclBfloat16", 15}, {"ncclFloat32", 6},     {"ncclFloat16", 5},     {"ncclInt64", 4},
    {"ncclInt32", 3},     {"ncclInt8", 1},        {"ncclUint8", 0},       {"ncclFloat64", 7},
    {"ncclUint32", 28},   {"ncclFloat8e4m3", 24}, {"ncclFloat8e5m2", 23}, {"ncclUint64", 29},
};

}  // namespace

Operation operation_of(std::string_view function) noexcept {
  const auto found = std::find_if(std::begin(kFunctions), std::end(kFunctions),
                                  [&](const auto& each) { return each.word == function; });
  return found == std::end(kFunctions) ? Operation::other : found->operation;
}

bool is_rooted(Operation operation) noexcept {
  return operation == Operation::broadcast || operation == Operation::reduce ||
         operation == Operation::gather || operation == Operation::scatter;
}

std::uint8_t type_of(std::string_view type) noexcept {
  const auto found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const auto& each) { return each.word == type; });
  return found == std::end(kTypes) ? ring::kNoType : found->type;
}

}  // namespace haiprof::nccl

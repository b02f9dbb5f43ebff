// What the more common Xids mean: numbers of errors that the driver reports of a GPU.
#pragma once

#include <cstdint>

namespace haiprof::gpu {

// In words for whoever owns the job; null for one that is not among them.
constexpr const char* xid_meaning(std::uint64_t xid) noexcept {
  switch (xid) {
    case 13:
      return "an exception in a kernel: an illegal address or instruction, or broken hardware";
    case 31:
      return "a memory page fault: a kernel or a copy used an address that is not mapped";
    case 43:
      return "the GPU stopped working for a process, mostly after an error of the job";
    case 45:
      return "the work of a process was removed, mostly after another error or a kill";
    case 48:
      return "a memory error that cannot be corrected (double bit ECC)";
    case 61:
      return "the GPU's internal controller reported a warning";
    case 62:
      return "the GPU's internal controller halted";
    case 63:
      return "a broken memory row was marked for remapping, or a page for retirement";
    case 64:
      return "a broken memory row or page could not be marked for replacement";
    case 74:
      return "an NVLink error";
    case 79:
      return "the GPU has fallen off the bus";
    case 92:
      return "many corrected memory errors (single bit ECC)";
    case 94:
      return "a contained memory error: the process that used that memory fails";
    case 95:
      return "an uncontained memory error: everything on the GPU fails";
    case 119:
      return "the GPU's system processor (GSP) did not answer in time";
    case 120:
      return "an error of the GPU's system processor (GSP)";
    default:
      return nullptr;
  }
}

}  // namespace haiprof::gpu

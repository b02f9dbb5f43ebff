#include "uncore/rules.h"

namespace haiprof::uncore {

namespace {

using enum Quantity;
using enum Choice;
using enum Kind;

constexpr double kLine = 64;  // bytes of a cache line
// A UPI flit carries 64 bits of data in 80, of which nine make up a line.
constexpr double kUpiFlit = 64.0 / 9.0;

// clang-format off
constexpr Rule kRules[] = {
    // Intel: the kernel names the events of memory and gives their scale, in MiB. Old kernels give
    // none; a CAS moves a line everywhere.
    {"uncore_imc_free_running", 0, dram_read, memory_first, "read"},
    {"uncore_imc_free_running", 0, dram_write, memory_first, "write"},
    {"uncore_imc_free_running", 0, dram_read, memory_first, "data_read"},  // Tiger Lake and later
    {"uncore_imc_free_running", 0, dram_write, memory_first, "data_write"},
    {"uncore_imc", 4, dram_read, memory_second, "cas_count_read", kLine},
    {"uncore_imc", 4, dram_write, memory_second, "cas_count_write", kLine},
    // Two halves of a channel: kernels that do not name them have the first one as cas_count_*.
    {"uncore_imc", 4, dram_read, memory_second, "cas_count_read_sch0", kLine, {granite, 0x05, "umask=0xcf"}},
    {"uncore_imc", 4, dram_write, memory_second, "cas_count_write_sch0", kLine, {granite, 0x05, "umask=0xf0"}},
    {"uncore_imc", 4, dram_read, memory_second, "cas_count_read_sch1", kLine, {granite, 0x06, "umask=0xcf"}},
    {"uncore_imc", 4, dram_write, memory_second, "cas_count_write_sch1", kLine, {granite, 0x06, "umask=0xf0"}},
    {"uncore_hbm", 4, dram_read, memory_second, "cas_count_read", kLine, {any, 0x05, "umask=0xcf"}},
    {"uncore_hbm", 4, dram_write, memory_second, "cas_count_write", kLine, {any, 0x05, "umask=0xf0"}},
    {"uncore_qpi", 4, remote_sent, always, "", 8, {any, 0x00, "umask=0x02"}},
    {"uncore_upi", 4, remote_sent, always, "", kUpiFlit, {any, 0x02, "umask=0x0f"}},
    // Kernels before 6.15 have the 4 bytes of Skylake for its successors, too, which count 32.
    {"uncore_iio_free_running", 0, pcie_in, always, "bw_in_port#", 32, {icelake_to_emerald}, Note::at_least},

    // AMD: sysfs names no events. Zen 1 to 3 count memory in the data fabric only.
    {"amd_df", 4, dram_traffic, memory_first, "", kLine, {zen1_to_3, 0x07, "umask=0x38", 8}},
    {"amd_df", 4, remote_sent, always, "", 32, {zen1_to_3, 0x7c7, "umask=0x02", 4}},
    {"amd_umc", 4, dram_read, memory_first, "", kLine, {any, 0x0a, "rdwrmask=0x1"}},
    {"amd_umc", 4, dram_write, memory_first, "", kLine, {any, 0x0a, "rdwrmask=0x2"}},
    {"amd_df", 16, remote_sent, always, "", kLine, {zen4, 0xb5f, "umask=0xf3e", 8}},
    {"amd_df", 16, remote_sent, always, "", kLine, {zen5, 0xd5f, "umask=0xf3e", 6}},
    // Where the kernel is older than its amd_umc: what this socket asked for, then the other one.
    {"amd_df", 16, dram_read, memory_second, "", kLine, {zen4, 0x1f, "umask=0x7fe", 12}},
    {"amd_df", 16, dram_write, memory_second, "", kLine, {zen4, 0x1f, "umask=0x7ff", 12}},
    {"amd_df", 16, dram_read, memory_second, "", kLine, {zen4, 0x1f, "umask=0xbfe", 12}, Note::by_other},
    {"amd_df", 16, dram_write, memory_second, "", kLine, {zen4, 0x1f, "umask=0xbff", 12}, Note::by_other},
    {"amd_df", 16, dram_read, memory_second, "", kLine, {zen5, 0x1f, "umask=0xffe", 12}},
    {"amd_df", 16, dram_write, memory_second, "", kLine, {zen5, 0x1f, "umask=0xfff", 12}},
    // Devices at this socket's root complexes, with the memory of this socket, then of the other.
    {"amd_df", 16, pcie_in, always, "", kLine, {zen4, 0x81f, "umask=0x7ff", 4}},
    {"amd_df", 16, pcie_in, always, "", kLine, {zen4, 0x81f, "umask=0xbff", 4}, Note::by_other},
    {"amd_df", 16, pcie_out, always, "", kLine, {zen4, 0x81f, "umask=0x7fe", 4}, Note::alone},
    {"amd_df", 16, pcie_in, always, "", kLine, {zen5, 0x81f, "umask=0xfff", 8}},
    {"amd_df", 16, pcie_out, always, "", kLine, {zen5, 0x81f, "umask=0xffe", 8}, Note::alone},

    // NVIDIA Grace: the kernel names the events and gives no scale.
    {"nvidia_scf_pmu", 0, dram_read, memory_first, "cmem_rd_data", 32},
    {"nvidia_scf_pmu", 0, dram_write, memory_first, "cmem_wr_total_bytes", 1},
    {"nvidia_scf_pmu", 0, remote_sent, always, "remote_socket_rd_data", 32, {}, Note::received},
    {"nvidia_scf_pmu", 0, remote_sent, always, "remote_socket_wr_total_bytes", 1},
    {"nvidia_pcie_pmu", 0, pcie_in, always, "wr_bytes_loc", 1},
    {"nvidia_pcie_pmu", 0, pcie_in, always, "wr_bytes_rem", 1, {}, Note::by_other},
    {"nvidia_pcie_pmu", 0, pcie_out, always, "rd_bytes_loc", 1},
    {"nvidia_pcie_pmu", 0, pcie_out, always, "rd_bytes_rem", 1, {}, Note::by_other},
    // Addresses that the CPU has translated for the GPU, then those that need no translation.
    {"nvidia_nvlink_c2c0_pmu", 0, c2c_in, always, "wr_bytes_loc", 1},
    {"nvidia_nvlink_c2c0_pmu", 0, c2c_in, always, "wr_bytes_rem", 1, {}, Note::by_other},
    {"nvidia_nvlink_c2c0_pmu", 0, c2c_out, always, "rd_bytes_loc", 1},
    {"nvidia_nvlink_c2c0_pmu", 0, c2c_out, always, "rd_bytes_rem", 1, {}, Note::by_other},
    {"nvidia_nvlink_c2c1_pmu", 0, c2c_in, always, "wr_bytes_loc", 1},
    {"nvidia_nvlink_c2c1_pmu", 0, c2c_in, always, "wr_bytes_rem", 1, {}, Note::by_other},
    {"nvidia_nvlink_c2c1_pmu", 0, c2c_out, always, "rd_bytes_loc", 1},
    {"nvidia_nvlink_c2c1_pmu", 0, c2c_out, always, "rd_bytes_rem", 1, {}, Note::by_other},
    // NVIDIA Vera.
    {"nvidia_ucf_pmu", 0, dram_read, memory_first, "mem_bytes_rd", 1},
    {"nvidia_ucf_pmu", 0, dram_write, memory_first, "mem_bytes_wr", 1},

    // HiSilicon Kunpeng: the kernel names the events and gives no scale. Those of newer ones, in
    // which a controller has several PMUs, are not known.
    {"hisi_sccl#_ddrc#", 0, dram_read, memory_first, "flux_rd", 32},
    {"hisi_sccl#_ddrc#", 0, dram_write, memory_first, "flux_wr", 32},

    // Energy (RAPL) of Intel and AMD.
    {"power", 0, cpu_energy, always, "energy-pkg"},
    {"power", 0, dram_energy, always, "energy-ram"},
};
// clang-format on

Kind kind_of_intel(unsigned family, unsigned model) noexcept {
  if (family != 6) return Kind::any;
  switch (model) {
    case 0x86:  // Snow Ridge
    case 0x6a:
    case 0x6c:
    case 0x8f:
    case 0xcf:
      return Kind::icelake_to_emerald;
    case 0xad:
    case 0xae:
    case 0xaf:  // Sierra Forest
    case 0xdd:  // Clearwater Forest
      return Kind::granite;
    default:
      return Kind::any;
  }
}

Kind kind_of_amd(unsigned family, unsigned model) noexcept {
  const unsigned row = model >> 4;
  if (family == 23) return Kind::zen1_to_3;
  if (family == 25) {
    if (row == 0x1 || row == 0x6 || row == 0x7 || row == 0xa) return Kind::zen4;
    if (row == 0x0 || row == 0x2 || row == 0x4 || row == 0x5) return Kind::zen1_to_3;
  }
  // The higher ones are Zen 6, of which the links' events are not known.
  if (family == 26 && (row <= 0x4 || row == 0x6 || row == 0x7)) return Kind::zen5;
  return Kind::any;
}

}  // namespace

Kind kind_of(const std::optional<Cpu>& cpu) noexcept {
  if (!cpu) return Kind::any;
  if (cpu->vendor == "GenuineIntel") return kind_of_intel(cpu->family, cpu->model);
  if (cpu->vendor == "AuthenticAMD") return kind_of_amd(cpu->family, cpu->model);
  // Dhyana is Zen 1; of its successors the fabric's events are not known.
  if (cpu->vendor == "HygonGenuine" && cpu->family == 24 && cpu->model < 4) return Kind::zen1_to_3;
  return Kind::any;
}

std::span<const Rule> rules() noexcept { return kRules; }

}  // namespace haiprof::uncore

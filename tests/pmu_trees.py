"""Made-up machines as /proc and /sys show their hardware counters, family by family."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path

RAPL = ("2.3283064365386962890625e-10", "Joules")
LINES = ("6.103515625e-5", "MiB")  # 64 bytes
INTEL = {"event": "config:0-7", "umask": "config:8-15", "inv": "config:23"}
# What Zen 1 to 3 have, and what later ones do.
OLD_FABRIC = {"event": "config:0-7,32-35,59-60", "umask": "config:8-15"}
NEW_FABRIC = {"event": "config:0-7,32-37", "umask": "config:8-15,24-27"}

Event = str | tuple[str, str, str]  # terms, or terms, scale and unit


class Machine:
    """A folder with proc/ and sys/, of so many sockets with so many CPUs each."""

    def __init__(self, folder: Path, cpu: str = "", sockets: int = 2, cpus: int = 2) -> None:
        self.sysfs = folder / "sys"
        self.procfs = folder / "proc"
        self.devices = self.sysfs / "bus/event_source/devices"
        self.first_cpus = [socket * cpus for socket in range(sockets)]
        self._types = 10
        self.devices.mkdir(parents=True)
        self.procfs.mkdir(parents=True)
        for number in range(sockets * cpus):
            path = f"devices/system/cpu/cpu{number}/topology/physical_package_id"
            self.write(path, f"{number // cpus}\n")
        if cpu:
            (self.procfs / "cpuinfo").write_text(cpuinfo(cpu))

    def write(self, path: str, text: str | bytes) -> None:
        """Write below sys/."""
        file = self.sysfs / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)

    def pmu(
        self,
        name: str,
        formats: Mapping[str, str] = INTEL,
        events: Mapping[str, Event] = {},
        cpus: list[int] | None = None,
        newline: str = "\n",
    ) -> Path:
        """Add a PMU, by default on the first CPU of each socket; returns its folder."""
        mask = self.first_cpus if cpus is None else cpus
        files = {"type": str(self._types), "cpumask": ",".join(map(str, mask))}
        files |= {f"format/{term}": bits for term, bits in formats.items()}
        for event, says in events.items():
            terms, *scale = (says,) if isinstance(says, str) else says
            files[f"events/{event}"] = terms
            files |= zip((f"events/{event}.scale", f"events/{event}.unit"), scale, strict=False)
        for path, text in files.items():
            self.write(f"bus/event_source/devices/{name}/{path}", text + newline)
        self._types += 1
        return self.devices / name

    def memory_module(self, number: int, **fields: int) -> None:
        """Add an SMBIOS record of type 17, as root may read it."""
        self.write(f"firmware/dmi/entries/17-{number}/raw", memory_record(**fields))


def cpuinfo(cpu: str, processors: int = 2) -> str:
    """The /proc/cpuinfo of a CPU that is given as VENDOR:FAMILY:MODEL."""
    vendor, family, model = cpu.split(":")
    if vendor == "ARM":
        says = f"CPU implementer\t: {int(family):#x}\nCPU part\t: {int(model):#x}\n"
    else:
        says = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
        says += "model name\t: A CPU\n"
    return "".join(f"processor\t: {number}\n{says}\n" for number in range(processors))


def memory_record(
    *, gib: int = 32, bits: int = 64, configured: int = 3200, technology: int = 3
) -> bytes:
    """Return what SMBIOS 3.3 says of a module; ``gib`` 0 is an empty slot."""
    record = bytearray(0x5C)
    record[0:2] = bytes((17, len(record)))
    struct.pack_into("<HHH", record, 0x08, bits + 8, bits, min(gib * 1024, 0x7FFF))
    struct.pack_into("<H", record, 0x20, min(configured, 0xFFFF))
    record[0x28] = technology
    struct.pack_into("<II", record, 0x54, 0, configured)
    return bytes(record) + b"\0\0"


def cas(code: str, read: str, write: str, suffix: str = "") -> dict[str, Event]:
    """The two events of an Intel memory controller."""
    return {
        f"cas_count_read{suffix}": (f"event={code},umask={read}", *LINES),
        f"cas_count_write{suffix}": (f"event={code},umask={write}", *LINES),
    }


def add_power(machine: Machine, *, dram: bool = True) -> None:
    """Add the energy counters (RAPL)."""
    events: dict[str, Event] = {"energy-pkg": ("event=0x02", *RAPL)}
    if dram:
        events["energy-ram"] = ("event=0x03", *RAPL)
    machine.pmu("power", {"event": "config:0-7"}, events)


def sandy_bridge(folder: Path) -> Machine:
    """An old kernel: no scales, and no newline at the end of a file."""
    machine = Machine(folder, "GenuineIntel:6:45")
    for number in range(4):
        events = {"cas_count_read": "event=0x04,umask=0x03", "clockticks": "event=0xff"}
        events["cas_count_write"] = "event=0x04,umask=0x0c"
        machine.pmu(f"uncore_imc_{number}", INTEL, events, newline="")
    machine.pmu("uncore_qpi_0", INTEL | {"event": "config:0-7,21"}, newline="")
    return machine


def ice_lake(folder: Path) -> Machine:
    machine = Machine(folder, "GenuineIntel:6:106")
    free = {"read": ("event=0xff,umask=0x20", *LINES), "write": ("event=0xff,umask=0x21", *LINES)}
    for number in range(4):
        machine.pmu(f"uncore_imc_free_running_{number}", INTEL, {"dclk": "event=0xff", **free})
        machine.pmu(f"uncore_imc_{number}", INTEL, cas("0x04", "0x0f", "0x30"))
    machine.pmu("uncore_upi_0")
    ports = {
        f"bw_in_port{port}": (f"event=0xff,umask={0x20 + port:#x}", "3.814697266e-6", "MiB")
        for port in range(8)
    }
    machine.pmu("uncore_iio_free_running_0", INTEL, {"ioclk": "event=0xff,umask=0x10", **ports})
    add_power(machine)
    return machine


def snow_ridge(folder: Path) -> Machine:
    """One box of a kind has no number."""
    machine = Machine(folder, "GenuineIntel:6:134", sockets=1)
    free = {"read": ("event=0xff,umask=0x20", *LINES), "write": ("event=0xff,umask=0x21", *LINES)}
    machine.pmu("uncore_imc_free_running", INTEL, free)
    return machine


def sapphire_rapids(folder: Path, *, hbm: int = 0) -> Machine:
    machine = Machine(folder, "GenuineIntel:6:143")
    for number in range(8):
        machine.pmu(f"uncore_imc_{number}", INTEL, cas("0x05", "0xcf", "0xf0"))
    for number in range(hbm):
        machine.pmu(f"uncore_hbm_{number}")
    free: dict[str, Event] = {"dclk": "event=0xff,umask=0x10"}
    machine.pmu("uncore_imc_free_running_0", INTEL, free)
    machine.pmu("uncore_upi_0", INTEL | {"umask": "config:8-15,32-55"})
    add_power(machine)
    return machine


def granite_rapids(folder: Path, *, named: bool = True, model: int = 0xAD) -> Machine:
    """``named``: whether the kernel names both halves of a channel."""
    machine = Machine(folder, f"GenuineIntel:6:{model}")
    both = cas("0x05", "0xcf", "0xf0", "_sch0") | cas("0x06", "0xcf", "0xf0", "_sch1")
    for number in range(12):
        machine.pmu(f"uncore_imc_{number}", INTEL, both if named else cas("0x05", "0xcf", "0xf0"))
    machine.pmu("uncore_upi_0")
    return machine


def rome(folder: Path, sockets: int = 2) -> Machine:
    machine = Machine(folder, "AuthenticAMD:23:49", sockets)
    machine.pmu("amd_df", OLD_FABRIC)
    machine.pmu("amd_l3", {"event": "config:0-7"})
    add_power(machine, dram=False)
    return machine


def genoa(folder: Path, *, controllers: int = 12, cpu: str = "AuthenticAMD:25:17") -> Machine:
    """``controllers``: of both sockets; none with a kernel before 6.7."""
    machine = Machine(folder, cpu)
    machine.pmu("amd_df", NEW_FABRIC)
    for number in range(controllers):
        owner = machine.first_cpus[number * 2 // controllers]
        terms = {"event": "config:0-7", "rdwrmask": "config:8-9"}
        machine.pmu(f"amd_umc_{number}", terms, cpus=[owner])
    add_power(machine, dram=False)
    return machine


def turin(folder: Path) -> Machine:
    return genoa(folder, controllers=24, cpu="AuthenticAMD:26:2")


def grace(folder: Path) -> Machine:
    machine = Machine(folder, "ARM:65:3407")
    for socket, cpu in enumerate(machine.first_cpus):
        events: dict[str, Event] = {
            "cmem_rd_data": "event=0x1a5",
            "cmem_wr_total_bytes": "event=0x1db",
            "gmem_rd_data": "event=0x16d",
            "remote_socket_rd_data": "event=0x1a2",
            "remote_socket_wr_total_bytes": "event=0x1a1",
        }
        machine.pmu(f"nvidia_scf_pmu_{socket}", {"event": "config:0-63"}, events, cpus=[cpu])
    return machine


FAMILIES: dict[str, Callable[[Path], Machine]] = {
    "sandy_bridge": sandy_bridge,
    "ice_lake": ice_lake,
    "snow_ridge": snow_ridge,
    "sapphire_rapids": sapphire_rapids,
    "granite_rapids": granite_rapids,
    "rome": rome,
    "genoa": genoa,
    "turin": turin,
    "grace": grace,
}

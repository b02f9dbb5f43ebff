#include "attach/interpreter.h"

#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "attach/image.h"
#include "attach/maps.h"
#include "attach/memory.h"
#include "attach/refused.h"
#include "attach/registers.h"

namespace haiprof::attach {

namespace {

[[noreturn]] void refuse_errno(int error, const char* what) {
  if (error == ESRCH || error == ENOENT) throw Refused("gone", "it has ended");
  throw Refused("permission", std::string(what) + ": " + std::strerror(error));
}

// Refuses a process that must not be touched, by what /proc says of it.
void check(pid_t pid) {
  Status status;
  if (const int error = read_status(pid, status); error != 0) {
    if (error == ENOENT || error == ESRCH) throw Refused("gone", "there is no such process");
    refuse_errno(error, "its status cannot be read");
  }
  if (status.state == 'Z' || status.state == 'X') {
    throw Refused("zombie", "it has ended; its parent has not collected it yet");
  }
  if (status.tracer != 0) {
    std::string name;
    read_proc(status.tracer, "comm", name);
    while (!name.empty() && name.back() == '\n') name.pop_back();
    throw Refused("traced", "process " + std::to_string(status.tracer) +
                                (name.empty() ? "" : " (" + name + ")") + " is tracing it");
  }
  if (status.state == 'T') throw Refused("stopped", "it is stopped");
  if (status.seccomp == 1) throw Refused("seccomp", "it runs in strict seccomp mode");
  if (syscall(SYS_kcmp, pid, status.parent, KCMP_VM, 0UL, 0UL) == 0) {
    throw Refused("vfork", "it still runs in the memory of its parent, process " +
                               std::to_string(status.parent));
  }
}

// Objects by where their headers are; those that are named after Python come first.
std::vector<const Mapping*> objects(const std::vector<Mapping>& maps) {
  std::vector<const Mapping*> headers;
  for (const Mapping& mapping : maps) {
    if (mapping.inode != 0 && mapping.offset == 0 && mapping.readable) headers.push_back(&mapping);
  }
  std::stable_partition(headers.begin(), headers.end(), [](const Mapping* mapping) {
    const std::size_t slash = mapping->path.rfind('/');
    return mapping->path.find("python", slash == std::string::npos ? 0 : slash) !=
           std::string::npos;
  });
  return headers;
}

const Mapping* around(const std::vector<Mapping>& maps, std::uint64_t address) {
  for (const Mapping& mapping : maps) {
    if (mapping.begin <= address && address < mapping.end) return &mapping;
  }
  return nullptr;
}

// A file may also be mapped to be read: then nothing is where its headers say.
bool callable(const std::vector<Mapping>& maps, std::uint64_t address) {
  const Mapping* mapping = around(maps, address);
  return mapping != nullptr && mapping->executable;
}

// The beginning of _PyRuntime since CPython 3.13, for debuggers that look from outside.
struct ForDebuggers {
  char cookie[8];
  std::uint64_t version;
  std::uint64_t free_threaded;
};

bool free_threaded(const Memory& memory, std::uint64_t runtime) {
  ForDebuggers offsets{};
  if (runtime == 0 || memory.read_value(runtime, offsets) != 0) return false;
  return std::memcmp(offsets.cookie, "xdebugpy", sizeof offsets.cookie) == 0 &&
         offsets.free_threaded != 0;
}

std::optional<Interpreter> in_object(const Memory& memory, const std::vector<Mapping>& maps,
                                     const Mapping& object) {
  const std::optional<Image> image = Image::at(memory, object.begin);
  if (!image) return std::nullopt;
  Interpreter interpreter;
  interpreter.add_pending_call = image->symbol("Py_AddPendingCall");
  if (interpreter.add_pending_call == 0) return std::nullopt;
  interpreter.run_simple_string = image->symbol("PyRun_SimpleString");
  interpreter.is_initialized = image->symbol("Py_IsInitialized");
  for (const std::uint64_t function :
       {interpreter.add_pending_call, interpreter.run_simple_string, interpreter.is_initialized}) {
    if (!callable(maps, function)) return std::nullopt;
  }
  const Mapping* relocated = around(maps, image->read_only_after_relocation());
  if (relocated != nullptr && relocated->writable) {
    throw Refused("starting", "its interpreter is being loaded");
  }
  std::uint64_t version = 0;
  const std::uint64_t version_symbol = image->symbol("Py_Version");
  if (version_symbol != 0 && memory.read_value(version_symbol, version) == 0) {
    interpreter.version = static_cast<std::uint32_t>(version);
  }
  interpreter.free_threaded = free_threaded(memory, image->symbol("_PyRuntime"));
  interpreter.library = object.path;
  return interpreter;
}

std::uint64_t find_system_call(const Memory& memory, const std::vector<Mapping>& maps) {
  for (const Mapping& mapping : maps) {
    if (mapping.path != "[vdso]") continue;
    std::vector<std::byte> text(mapping.end - mapping.begin);
    if (memory.read(mapping.begin, text) != 0) break;
    const auto instruction = system_call_instruction();
    const auto at = std::search(text.begin(), text.end(), instruction.begin(), instruction.end());
    if (at != text.end()) {
      return mapping.begin + static_cast<std::uint64_t>(at - text.begin());
    }
  }
  return 0;
}

}  // namespace

Interpreter find_interpreter(pid_t pid) {
  check(pid);
  std::vector<Mapping> maps;
  if (const int error = read_maps(pid, maps); error != 0) {
    refuse_errno(error, "its memory map cannot be read");
  }
  const Memory memory(pid);
  const std::vector<const Mapping*> headers = objects(maps);
  if (headers.empty()) throw Refused("not_python", "it runs no program of a file");
  std::uint8_t byte = 0;
  if (const int error = memory.read_value(headers.front()->begin, byte);
      error == EPERM || error == ESRCH) {
    refuse_errno(error, "its memory cannot be read");
  }
  std::optional<Interpreter> interpreter;
  std::uint64_t post = 0;
  bool natives = false;
  for (const Mapping* object : headers) {
    natives |= native(memory, object->begin);
    if (!interpreter) interpreter = in_object(memory, maps, *object);
    if (interpreter && post != 0) break;
    if (post == 0) {
      const std::optional<Image> image = Image::at(memory, object->begin);
      const std::uint64_t address = image ? image->symbol("sem_post") : 0;
      if (callable(maps, address)) post = address;
    }
  }
  if (!natives) throw Refused("bits", "it is not a program of this architecture and word size");
  if (!interpreter) throw Refused("not_python", "there is no CPython in its memory");
  if (post == 0) throw Refused("not_python", "its C library gives no sem_post to others");
  interpreter->sem_post = post;
  interpreter->system_call = find_system_call(memory, maps);
  return *interpreter;
}

}  // namespace haiprof::attach

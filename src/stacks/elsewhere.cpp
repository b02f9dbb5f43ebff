#include "stacks/elsewhere.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "attach/image.h"
#include "attach/maps.h"
#include "attach/memory.h"

namespace haiprof::stacks {
namespace {

using attach::Image;
using attach::Mapping;
using attach::Memory;

std::string version_text(std::uint64_t version) {
  return std::to_string(version >> 24 & 0xFF) + "." + std::to_string(version >> 16 & 0xFF);
}

// Objects by where their headers are; those that are named after Python come first.
std::vector<Mapping> objects(const std::vector<Mapping>& maps) {
  std::vector<Mapping> found;
  for (const Mapping& mapping : maps) {
    if (mapping.inode != 0 && mapping.offset == 0 && mapping.readable) found.push_back(mapping);
  }
  std::ranges::stable_partition(found, [](const Mapping& mapping) {
    return mapping.path.find("python", mapping.path.rfind('/') + 1) != std::string::npos;
  });
  return found;
}

// The beginning of _PyRuntime since 3.13.
struct ForDebuggers {
  char cookie[8];
  std::uint64_t version;
  std::uint64_t free_threaded;
};

// Why the Python of an object is not the one that the layout is of; empty: it is.
std::string difference(const Memory& memory, const Image& image, const Mapping& object,
                       std::uint64_t runtime, std::uint32_t own) {
  std::uint64_t version = 0;
  const std::uint64_t symbol = image.symbol("Py_Version");
  if (symbol == 0) {  // before 3.11
    const std::string name = version_text(own);
    const bool same = own < 0x030B0000 && object.path.find(name) != std::string::npos;
    return same ? "" : "it runs an older Python than this haiprof, which is for " + name;
  }
  if (memory.read_value(symbol, version) != 0) return "its Python's version cannot be read";
  if (version >> 16 != own >> 16) {
    return "it runs Python " + version_text(version) + ", and this haiprof is for " +
           version_text(own) + ": use the haiprof of that Python";
  }
  ForDebuggers begin{};
  if (own >= 0x030D0000 && memory.read_value(runtime, begin) == 0 &&
      std::memcmp(begin.cookie, "xdebugpy", sizeof begin.cookie) == 0 && begin.free_threaded != 0) {
    return "it runs a free-threaded Python";
  }
  return "";
}

}  // namespace

Elsewhere layout_of(pid_t pid, const ring::PythonLayout& own, std::uint64_t own_runtime) {
  Elsewhere found;
  std::vector<Mapping> maps;
  if (const int error = attach::read_maps(pid, maps); error != 0) {
    found.forbidden = error == EPERM || error == EACCES;
    found.reason = found.forbidden ? "its memory may not be read" : "it has ended";
    return found;
  }
  const Memory memory(pid);
  found.reason = maps.empty() ? "it has ended" : "there is no CPython in its memory";
  for (const Mapping& object : objects(maps)) {
    std::uint8_t signature[sizeof own.signature];
    if (const int error = memory.read_value(object.begin, signature); error != 0) {
      if (error != EPERM && error != ESRCH) continue;
      found.forbidden = error == EPERM;
      found.reason = found.forbidden ? "its memory may not be read" : "it has ended";
      return found;
    }
    const std::optional<Image> image = Image::at(memory, object.begin);
    if (!image) continue;
    const std::uint64_t runtime = image->symbol("_PyRuntime");
    const std::uint64_t code_type = image->symbol("PyCode_Type");
    const std::uint64_t bytes_type = image->symbol("PyBytes_Type");
    if (runtime == 0 || code_type == 0 || bytes_type == 0) continue;
    found.reason = difference(memory, *image, object, runtime, own.version);
    if (!found.reason.empty()) return found;
    found.layout = own;
    found.layout.interpreters = runtime + (own.interpreters - own_runtime);
    if (own.gil != 0) found.layout.gil = runtime + (own.gil - own_runtime);
    found.layout.code_type = code_type;
    found.layout.bytes_type = bytes_type;
    found.layout.codes_freed = 0;  // nobody counts them there
    // The header of the object: another program has another object there, or none.
    found.layout.signature_address = object.begin;
    std::memcpy(found.layout.signature, signature, sizeof signature);
    return found;
  }
  return found;
}

}  // namespace haiprof::stacks

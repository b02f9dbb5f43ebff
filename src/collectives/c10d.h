// Records the communication of torch.distributed, whoever asks for it: Python, DDP's reducer, or
// compiled code. All of them call the methods of a process group's backend through the table of
// its class; ours stand in those tables.
//
// Of gloo the end of each operation is seen, too: its threads execute works, and the job waits for
// them. What NCCL does on the device is not seen here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace haiprof::collectives {

// Once, before anything else: a child that is forked while another thread is in one of these finds
// no lock taken, of ours or of the loader's.
void survive_forks() noexcept;

// Puts ours into the tables of the backends that are loaded; idempotent. Returns their names, each
// with what of it is not seen ("nccl: its ends"); empty: none is loaded, or none is known.
std::vector<std::string> watch();
// Puts back what was there.
void leave() noexcept;

// The next call of a backend's getSequenceNumberForGroup() on this thread says which object the
// group is. Null: none was called, so it is not known.
class Naming {
 public:
  Naming(std::string name, std::uint32_t size);
  Naming(const Naming&) = delete;
  Naming& operator=(const Naming&) = delete;
  ~Naming();

  bool done() const noexcept { return done_; }
  void is(const void* backend, std::uint64_t sequence) noexcept;

 private:
  std::string name_;
  std::uint32_t size_;
  bool done_ = false;
};

}  // namespace haiprof::collectives

// The reading side of a ring file: any process, any time, also after the writer's death.
//
// A reader never trusts the file. It keeps the super block as it was when the file was opened,
// reads everything else by copying it, and checks each copy before use. A chunk that was
// overwritten while it was copied is thrown away and counted. A file that contradicts itself, or
// has become shorter, is broken: nothing more is read from it. How much one call reads is bounded,
// whatever the file says.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ring/clock.h"
#include "ring/file.h"
#include "ring/layout.h"
#include "ring/progress.h"

namespace haiprof::ring {

// Why a file could not be opened as a ring; empty = it could.
struct Refusal {
  std::string reason;
  bool not_ready = false;  // the writer is still making it: look again later
  bool ok() const noexcept { return reason.empty(); }
};

// One record as it was written, with its time base resolved. payload is valid during the call.
struct RecordView {
  std::uint32_t lane;
  std::uint32_t thread;
  std::uint64_t number;  // counted along the lane from 0
  std::uint64_t ticks;
  std::uint16_t type;
  std::uint16_t payload_bytes;
  const std::uint8_t* payload;

  // The text that it brings along under this number; nothing if that is none of its own, or leads
  // out of it.
  std::optional<std::string_view> text(std::uint32_t id) const noexcept;
};

class Reader {
 public:
  Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Refusal open(const std::string& path);

  // As it was when the file was opened; the reader's own copy.
  const SuperBlock& super() const noexcept { return super_; }
  // Damage found since then; empty if none.
  const std::string& broken() const noexcept { return broken_; }
  RingState state() const noexcept;

  // An earlier reader took records [0, number) of `lane`: overwritten ones are not lost. Those that
  // are still there are delivered again; the caller knows which of them it has.
  void resume(std::uint32_t lane, std::uint64_t number);

  // Delivers every committed record behind the cursors, lane by lane, oldest first; stops early
  // after about `most` records. Returns how many were delivered.
  std::uint64_t drain(std::uint64_t most, const std::function<void(const RecordView&)>& take);

  // The number of the next record along the lane.
  std::uint64_t position(std::uint32_t lane) const noexcept;
  // How many lanes there were at the last drain.
  std::uint32_t lanes() const noexcept { return live_.lanes_used; }

  // Records overwritten before they were read: exact.
  std::uint64_t lost() const noexcept { return lost_; }
  // Chunks that were overwritten while being copied, and chunks whose content made no sense.
  std::uint64_t torn_chunks() const noexcept { return torn_; }
  std::uint64_t corrupt_chunks() const noexcept { return corrupt_; }
  // Until the last drain.
  std::uint64_t dropped(Drop reason) const noexcept;

  // How many texts the string table can hold: no larger id is one.
  std::uint32_t most_strings() const noexcept;
  // The texts appended since the last call, in the order of their ids.
  std::vector<std::string> new_strings();

  // The clock slots written since the last call.
  std::vector<ClockReading> new_snapshots();

  // How far communication has come.
  ProgressCopy progress() const { return read_progress(file_, super_); }

  std::uint32_t flush_requested() const noexcept;
  void answer_flush(std::uint32_t ticket, int error) noexcept;

  // Frees the names and records of a file that its writer has closed. Its removal alone would not:
  // forked children may still have the counters mapped.
  void free_records() const noexcept;

 private:
  struct Cursor {
    std::uint64_t sequence = 0;  // chunk to read next; 0 = not begun
    std::uint32_t offset = 0;    // bytes of it already taken
    std::uint64_t base_ticks = 0;
    std::uint32_t thread = 0;
    std::uint64_t number = 0;       // next record's number
    std::uint64_t taken_below = 0;  // what resume() said

    void begin(std::uint64_t chunk) noexcept {
      sequence = chunk;
      offset = 0;
    }
  };

  // The changing fields of a super block, in one copy.
  struct Live {
    RingState state;
    std::uint32_t lanes_used;
    std::uint64_t string_committed;
    std::uint64_t clock_written;
    std::uint64_t dropped[static_cast<std::size_t>(Drop::count)];
  };
  struct Lane {
    std::uint64_t first_chunk;
    std::uint64_t chunk_count;
    std::uint64_t head_sequence;
  };
  struct Chunk {
    std::uint64_t sequence;
    std::uint64_t base_ticks;
    std::uint64_t first_record;
    std::uint32_t thread;
    std::uint32_t committed;
  };
  enum class Copied : std::uint8_t { whole, torn, corrupt, failed };

  bool read(std::uint64_t at, void* to, std::size_t bytes);
  void break_off(const std::string& why);
  bool renew_live();
  bool read_lane(std::uint32_t lane, Lane& to);
  const char* wrong_lane(const Lane& lane, const Cursor& cursor) const noexcept;
  bool plausible(const Chunk& chunk, const Cursor& cursor) const noexcept;
  Copied copy_chunk(const Lane& lane, const Cursor& cursor, Chunk& chunk);
  std::uint64_t drain_lane(std::uint32_t lane, std::uint64_t most,
                           const std::function<void(const RecordView&)>& take);
  bool parse(std::uint32_t lane, Cursor& cursor, const std::uint8_t* bytes, std::size_t length,
             const std::function<void(const RecordView&)>& take, std::uint64_t& delivered);

  File file_;
  SuperBlock super_{};
  Live live_{};
  std::string broken_;
  std::vector<Cursor> cursors_;
  std::vector<std::uint64_t> scratch_;
  std::uint64_t budget_ = 0;  // bytes that this drain may still copy
  std::uint64_t string_offset_ = 0;
  std::uint32_t string_count_ = 0;
  std::uint64_t snapshots_taken_ = 0;
  std::uint64_t lost_ = 0;
  std::uint64_t torn_ = 0;
  std::uint64_t corrupt_ = 0;
};

}  // namespace haiprof::ring

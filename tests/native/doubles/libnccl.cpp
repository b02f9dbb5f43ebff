// Stands in for NCCL: finds its profiler plugin as NCCL does, calls it as NCCL does, from threads
// that enqueue and one of a proxy for each communicator, and writes down what it has done.
//
// The interface is declared here once more, from NCCL's headers, so that a mistake in ours shows.
//
//   FAKE_NCCL_VERSIONS   versions of the interface that it knows, newest first; default "6 5 4"
#include <dlfcn.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <iterator>
#include <latch>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

// -- the interface -------------------------------------------------------------------------------

enum { kGroup = 1, kColl = 2, kP2p = 4, kProxyOp = 8, kCeColl = 4096 };
constexpr int kInProgress = 19;

struct Coll {
  uint64_t seqNumber;
  const char* func;
  void const* sendBuff;
  void* recvBuff;
  size_t count;
  int root;
  const char* datatype;
  uint8_t nChannels;
  uint8_t nWarps;
  const char* algo;
  const char* proto;
  void* parentGroup;  // since version 5
};
struct P2p {
  const char* func;
  void* buff;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t nChannels;
  void* parentGroup;  // since version 5
};
struct ProxyOp {
  pid_t pid;
  uint8_t channelId;
  int peer;
  int nSteps;
  int chunkSize;
  int isSend;
};
struct CeColl {
  uint64_t seqNumber;
  const char* func;
  void const* sendBuff;
  void* recvBuff;
  size_t count;
  int root;
  const char* datatype;
  const char* syncStrategy;
  bool intraBatchSync;
  uint32_t batchSize;
  uint32_t numBatches;
  uint32_t ceSeqNum;
  void* stream;
};
union Details {
  Coll coll;
  P2p p2p;
  ProxyOp proxyOp;
  CeColl ceColl;
};
struct Descr4 {
  uint8_t type;
  void* parentObj;
  int rank;
  Details of;
};
struct Descr5 {
  uint64_t type;
  void* parentObj;
  int rank;
  Details of;
};
using Log = void (*)(int, unsigned long, const char*, int, const char*, ...);
template <typename Init, typename Descr>
struct Table {
  const char* name;
  Init init;
  int (*startEvent)(void* context, void** handle, Descr* descr);
  int (*stopEvent)(void* handle);
  int (*recordEventState)(void* handle, int state, void* args);
  int (*finalize)(void* context);
};
using Table4 = Table<int (*)(void**, int*, const char*, uint64_t, int, int, int, Log), Descr4>;
using Table5 = Table<int (*)(void**, uint64_t, int*, const char*, int, int, int, Log), Descr5>;

void log(int, unsigned long, const char*, int, const char*, ...) {}

// -- the plugin ----------------------------------------------------------------------------------

// As src/plugin/profiler.cc has it: loaded with the first communicator, unloaded with the last.
struct Plugin {
  std::mutex mutex;
  void* library = nullptr;
  int version = 0;
  const void* table = nullptr;
  int users = 0;
  int loads = 0, unloads = 0, refusals = 0;
  int mask = 0;

  void load() {
    const std::lock_guard lock(mutex);
    if (users++ > 0) return;
    const char* name = std::getenv("NCCL_PROFILER_PLUGIN");
    if (name == nullptr) name = "libnccl-profiler.so";
    if (strcasecmp(name, "none") == 0) return;
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const char* known = std::getenv("FAKE_NCCL_VERSIONS");
    std::istringstream versions(known == nullptr ? "6 5 4" : known);
    for (int each = 0; table == nullptr && versions >> each;) {
      table = dlsym(library, ("ncclProfiler_v" + std::to_string(each)).c_str());
      version = each;
    }
    if (table == nullptr) {
      ++refusals;
      dlclose(library);
      library = nullptr;
    } else {
      ++loads;
    }
  }
  void unload() {
    const std::lock_guard lock(mutex);
    if (--users > 0 || library == nullptr) return;
    dlclose(library);
    library = nullptr;
    table = nullptr;
    ++unloads;
  }

  int wanted() { return __atomic_load_n(&mask, __ATOMIC_RELAXED); }
  bool old() const { return version < 5; }
  const Table4& v4() const { return *static_cast<const Table4*>(table); }
  const Table5& v5() const { return *static_cast<const Table5*>(table); }

  void* init(uint64_t hash, const char* name, int nodes, int ranks, int rank) {
    void* context = nullptr;
    if (table == nullptr) return context;
    const int failed = old() ? v4().init(&context, &mask, name, hash, nodes, ranks, rank, log)
                             : v5().init(&context, hash, &mask, name, nodes, ranks, rank, log);
    if (failed != 0) std::abort();
    return context;
  }
  void* start(void* context, uint64_t type, void* parent, int rank, const Details& of) {
    void* handle = reinterpret_cast<void*>(0x5A5A);  // what was there before
    if (table == nullptr) return nullptr;
    if (old()) {
      Descr4 descr{static_cast<uint8_t>(type), parent, rank, of};
      v4().startEvent(context, &handle, &descr);
    } else {
      Descr5 descr{type, parent, rank, of};
      v5().startEvent(context, &handle, &descr);
    }
    return handle;
  }
  // The tables are the same from here on.
  void stop(void* handle) {
    if (table != nullptr && handle != nullptr) v5().stopEvent(handle);
  }
  void record(void* handle, int state) {
    if (table != nullptr && handle != nullptr) v5().recordEventState(handle, state, nullptr);
  }
  void finalize(void* context) {
    if (table != nullptr) v5().finalize(context);  // 2.27 does so without a context, too
  }
};
Plugin& plugin = *new Plugin;

// -- what was done -------------------------------------------------------------------------------

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

struct Done {
  uint64_t hash;
  std::string name;
  int nodes, ranks, rank;
  const char* func;
  const char* datatype;
  const char* algo;
  const char* proto;
  int64_t sequence;  // -1: none
  uint64_t count;    // another for each operation
  int root_or_peer;
  int channels;
  int64_t start[2], stop[2];  // before and after the call
  bool recorded = false;      // it got a handle
  bool cut = false;
  std::atomic<int> transfers{0};
  std::atomic<int64_t> first{0}, last{0};
};

std::atomic<uint64_t> counted{0};
std::atomic<int> borrowed{0};  // transfers for another process that got a handle
std::mutex all_mutex;
std::deque<std::unique_ptr<Done>>& all = *new std::deque<std::unique_ptr<Done>>;

Done* add() {
  const std::lock_guard lock(all_mutex);
  all.push_back(std::make_unique<Done>());
  return all.back().get();
}

// -- communicators -------------------------------------------------------------------------------

struct Transfer {
  void* parent;
  pid_t pid;
  Done* done;
  bool stays;  // it does not end
};

// The proxy's thread, which a communicator shares with those split from it.
class Proxy {
 public:
  explicit Proxy(void* context) : context_(context), thread_([this] { run(); }) {}
  ~Proxy() { end(); }
  void post(const std::vector<Transfer>& transfers) {
    const std::lock_guard lock(mutex_);
    for (const Transfer& each : transfers) queue_.push_back(each);
    changed_.notify_one();
  }
  void wait_idle() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return queue_.empty() && !busy_; });
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }
  // Of transfers that stay; they are ended too late.
  void end_late() {
    for (void* handle : staying_) plugin.stop(handle);
    staying_.clear();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ended_ || !queue_.empty(); });
      if (queue_.empty()) return;
      // As NCCL does: all that there are begin, then they progress and end.
      std::vector<Transfer> now(queue_.begin(), queue_.end());
      queue_.clear();
      busy_ = true;
      lock.unlock();
      std::vector<void*> handles;
      for (const Transfer& each : now) {
        Details of{};
        of.proxyOp = {each.pid, 3, 1, 8, 1 << 17, 1};
        handles.push_back(plugin.start(context_, kProxyOp, each.parent, 0, of));
        if (each.done == nullptr && handles.back() != nullptr) ++borrowed;
      }
      for (std::size_t i = 0; i < now.size(); ++i) {
        if (now[i].done != nullptr && now[i].done->first == 0) now[i].done->first = now_ns();
        plugin.record(handles[i], kInProgress);
      }
      for (std::size_t i = 0; i < now.size(); ++i) {
        if (now[i].stays) {
          staying_.push_back(handles[i]);
          continue;
        }
        plugin.stop(handles[i]);
        if (now[i].done != nullptr) {
          now[i].done->last = now_ns();
          ++now[i].done->transfers;
        }
      }
      lock.lock();
      busy_ = false;
      idle_.notify_all();
    }
  }

  void* context_;
  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<Transfer> queue_;
  std::vector<void*> staying_;
  bool busy_ = false, ended_ = false;
  std::thread thread_;
};

constexpr const char* kFunctions[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast",
                                      "NewFunction"};
constexpr const char* kTypes[] = {"ncclFloat32", "ncclBfloat16", "ncclInt8", "Unknown"};
constexpr const char* kAlgorithms[] = {"RING", "TREE", "NVLS"};
constexpr const char* kProtocols[] = {"LL", "LL128", "SIMPLE"};

class Communicator {
 public:
  Communicator(uint64_t hash, std::string name, int nodes, int ranks, int rank)
      : hash_(hash), name_(std::move(name)), nodes_(nodes), ranks_(ranks), rank_(rank) {
    plugin.load();
    context_ = plugin.init(hash_, name_.empty() ? nullptr : name_.c_str(), nodes, ranks, rank);
    if (nodes > 1) proxy_ = std::make_unique<Proxy>(context_);
  }

  // As ncclCommDestroy(): what was asked for is done first.
  void destroy() {
    if (proxy_) proxy_->wait_idle();
    proxy_.reset();
    plugin.finalize(context_);
    plugin.unload();
  }

  // As ncclCommAbort(): an operation is being enqueued, and another is on the network, and both
  // end too late.
  void abort() {
    Done* const open = describe(false);
    void* const handle = begin(*open);
    Done* const waiting = describe(false);
    void* const enqueued = begin(*waiting);
    if (proxy_) {
      proxy_->post({{enqueued, getpid(), waiting, true}, {enqueued, getpid(), waiting, false}});
      proxy_->wait_idle();
    }
    end(*waiting, enqueued);
    plugin.finalize(context_);
    open->stop[0] = waiting->stop[0];
    open->stop[1] = now_ns();
    open->cut = open->recorded;
    if (proxy_) {
      waiting->cut = waiting->recorded;
      waiting->last = now_ns();
      proxy_->end();
      proxy_->end_late();
    }
    plugin.stop(handle);
    plugin.unload();
  }

  void operate(int n) {
    Done* const done = describe(n % 5 == 4, n % 11 == 10);
    Details none{};
    void* const group = plugin.start(context_, kGroup, nullptr, rank_, none);
    if (plugin.old() && group == nullptr) {  // 2.27 leaves out what is in it
      plugin.stop(group);
      return;
    }
    void* const handle = begin(*done);
    if (proxy_) {
      std::vector<Transfer> transfers(2 * static_cast<std::size_t>(done->channels),
                                      {handle, getpid(), done, false});
      // Another process's, which this one's proxy does for it.
      if (n % 7 == 0) transfers.push_back({handle, getppid(), nullptr, false});
      proxy_->post(transfers);
    }
    end(*done, handle);
    // NCCL's network ends what may never have begun, or has ended long ago.
    plugin.stop(handle);
    plugin.stop(reinterpret_cast<void*>(0xFFFF'0000'1234'5671ULL + static_cast<uintptr_t>(n)));
    plugin.stop(group);
  }

 private:
  Done* describe(bool message, bool copies = false) {
    Done& done = *add();
    const uint64_t n = counted++;
    copies = copies && plugin.version >= 6 && (plugin.wanted() & kCeColl) != 0 && nodes_ == 1;
    done.hash = hash_;
    done.name = name_;
    done.nodes = nodes_;
    done.ranks = ranks_;
    done.rank = rank_;
    done.count = 1000 + n;
    done.func = message ? (n % 2 == 0 ? "Send" : "Recv") : kFunctions[n % std::size(kFunctions)];
    done.datatype = kTypes[n % std::size(kTypes)];
    done.algo = message ? nullptr : copies ? "CE" : kAlgorithms[n % std::size(kAlgorithms)];
    done.proto = message || copies ? nullptr : kProtocols[n / 2 % std::size(kProtocols)];
    done.sequence = message ? -1 : static_cast<int64_t>(sequence_++);
    done.root_or_peer = static_cast<int>(n % static_cast<uint64_t>(ranks_));
    done.channels = copies ? 0 : static_cast<int>(1 + n % 3);
    return &done;
  }

  void* begin(Done& done) {
    Details of{};
    uint64_t type = kColl;
    // NCCL's texts are its own; these go away at once.
    const std::string func = done.func, datatype = done.datatype;
    const std::string algo = done.algo == nullptr ? "" : done.algo;
    const std::string proto = done.proto == nullptr ? "" : done.proto;
    if (done.sequence < 0) {
      type = kP2p;
      of.p2p = {func.c_str(), nullptr,           datatype.c_str(),
                done.count,   done.root_or_peer, static_cast<uint8_t>(done.channels),
                nullptr};
    } else if (done.channels == 0) {
      type = kCeColl;
      of.ceColl = {static_cast<uint64_t>(done.sequence),
                   func.c_str(),
                   nullptr,
                   nullptr,
                   done.count,
                   done.root_or_peer,
                   datatype.c_str(),
                   "MC",
                   true,
                   7,
                   7,
                   7,
                   nullptr};
    } else {
      of.coll = {static_cast<uint64_t>(done.sequence),
                 func.c_str(),
                 nullptr,
                 nullptr,
                 done.count,
                 done.root_or_peer,
                 datatype.c_str(),
                 static_cast<uint8_t>(done.channels),
                 16,
                 algo.c_str(),
                 proto.c_str(),
                 nullptr};
    }
    done.start[0] = now_ns();
    void* const handle = plugin.start(context_, type, nullptr, rank_, of);
    done.start[1] = now_ns();
    done.recorded = handle != nullptr;
    return handle;
  }
  void end(Done& done, void* handle) {
    done.stop[0] = now_ns();
    plugin.stop(handle);
    done.stop[1] = now_ns();
  }

  uint64_t hash_;
  std::string name_;
  int nodes_, ranks_, rank_;
  uint64_t sequence_ = 0;
  void* context_ = nullptr;
  std::unique_ptr<Proxy> proxy_;
};

// A thread of the job: two communicators, of which one is split from the other and aborted, and a
// third that takes its place.
void work(int thread, int turn, int operations, double per_second, std::latch& all_began) {
  const auto hash = [&](int n) {
    return 0xABCDEF0000000000ULL + static_cast<uint64_t>(turn * 1000 + thread * 10 + n);
  };
  const std::string name = thread % 2 == 0 ? "world \xC3\xA9 " + std::to_string(thread) : "";
  Communicator world(hash(0), name, 2, 16, thread);
  all_began.arrive_and_wait();  // or the plugin might be unloaded in between
  std::unique_ptr<Communicator> child;
  const auto began = std::chrono::steady_clock::now();
  for (int n = 0; n < operations; ++n) {
    if (n == operations / 4) child = std::make_unique<Communicator>(hash(1), "", 1, 8, thread % 8);
    if (n == operations / 2) {
      child->abort();
      child = std::make_unique<Communicator>(hash(2), "again", 2, 8, thread % 8);
    }
    if (n == operations * 3 / 4) {
      child->abort();
      child = std::make_unique<Communicator>(hash(3), "", 1, 4, 0);
    }
    (child && n % 3 == 0 ? *child : world).operate(n);
    if (per_second > 0) {
      std::this_thread::sleep_until(began + std::chrono::duration<double>((n + 1) / per_second));
    }
  }
  if (child) child->destroy();
  world.destroy();
}

void write_text(std::ostream& out, const char* key, const char* text) {
  out << ", \"" << key << "\": ";
  if (text == nullptr || *text == '\0') {
    out << "null";
  } else {
    out << '"' << text << '"';
  }
}

void write(std::ostream& out, const Done& d) {
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(d.hash));
  out << "{\"communicator\": \"" << hash << '"';
  write_text(out, "name", d.name.c_str());
  write_text(out, "func", d.func);
  write_text(out, "datatype", d.datatype);
  write_text(out, "algorithm", d.algo);
  write_text(out, "protocol", d.proto);
  out << ", \"nodes\": " << d.nodes << ", \"ranks\": " << d.ranks << ", \"place\": " << d.rank
      << ", \"sequence\": " << d.sequence << ", \"count\": " << d.count
      << ", \"end\": " << d.root_or_peer << ", \"channels\": " << d.channels << ", \"start\": ["
      << d.start[0] << ", " << d.start[1] << "], \"stop\": [" << d.stop[0] << ", " << d.stop[1]
      << "], \"recorded\": " << (d.recorded ? "true" : "false")
      << ", \"cut\": " << (d.cut ? "true" : "false") << ", \"transfers\": " << d.transfers
      << ", \"network\": [" << d.first << ", " << d.last << "]}\n";
}

}  // namespace

// Works in turns, between which no communicator is left, and the plugin is unloaded. Writes what it
// has done to a file: a line for each operation, and one about the plugin.
extern "C" int fake_nccl_run(const char* path, int turns, int threads, int operations,
                             double per_second) {
  for (int turn = 0; turn < turns; ++turn) {
    std::latch all_began(threads);
    std::vector<std::thread> all_threads;
    for (int n = 0; n < threads; ++n) {
      all_threads.emplace_back(work, n, turn, operations, per_second / threads,
                               std::ref(all_began));
    }
    for (std::thread& each : all_threads) each.join();
  }
  std::ofstream out(path);
  for (const auto& each : all) write(out, *each);
  all.clear();
  out << "{\"version\": " << plugin.version << ", \"loads\": " << plugin.loads
      << ", \"unloads\": " << plugin.unloads << ", \"refusals\": " << plugin.refusals
      << ", \"mask\": " << plugin.mask << ", \"borrowed\": " << borrowed << "}\n";
  return out.good() ? 0 : 1;
}

// libcuda.so.1: the machine's state, and the driver API that torch, triton and cuDNN's AOT ask for.
#include "standin.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <vector>

namespace standin {
namespace {

constexpr int MOST_CARDS = 16, MOST_PROCESSES = 512;

std::string env(const char* name, const char* otherwise) {
  const char* v = getenv(name);
  return v && *v ? v : otherwise;
}

std::string lower(std::string s) {
  for (char& c : s) c = tolower(c);
  return s;
}

std::vector<std::string> split(const std::string& s, char by) {
  std::vector<std::string> out;
  std::stringstream in(s);
  for (std::string part; std::getline(in, part, by);) out.push_back(part);
  return out;
}

std::vector<Card> table() {
  Dl_info here;
  dladdr(reinterpret_cast<void*>(&table), &here);
  std::string dir(here.dli_fname);
  dir = dir.substr(0, dir.rfind('/'));
  std::ifstream in(env("STANDIN_CARDS", (dir + "/cards.tsv").c_str()));
  std::vector<Card> out;
  for (std::string line; std::getline(in, line);) {
    auto f = split(line, '\t');
    if (f.size() < 16) continue;
    Card c{};
    c.key = f[0], c.name = f[1];
    c.total = std::stoul(f[2]), c.nvml_total = std::stoul(f[3]), c.context = std::stoul(f[4]), c.l2 = std::stoul(f[5]);
    c.processors = std::stoi(f[6]), c.major = std::stoi(f[7]), c.minor = std::stoi(f[8]);
    c.sm_threads = std::stoi(f[9]), c.sm_blocks = std::stoi(f[10]);
    c.sm_shared = std::stoi(f[11]), c.block_shared = std::stoi(f[12]);
    for (int i = 0; i < 3; ++i) c.handles[i] = std::stoul(f[size_t(13 + i)]);
    if (auto total = std::stoul(env("STANDIN_TOTAL", "0"))) c.total = c.nvml_total = total;
    out.push_back(c);
  }
  return out;
}

std::vector<Card> machine() {
  auto known = table();
  std::vector<Card> out;
  std::string wanted = env("STANDIN_GPU", "H100 80GB");
  if (lower(wanted) == "none") return out;
  for (auto& name : split(wanted, ',')) {
    auto it = std::find_if(known.begin(), known.end(), [&](const Card& c) {
      return lower(c.key) == lower(name) || lower(c.name) == lower(name);
    });
    if (it == known.end()) {
      fprintf(stderr, "stand-in: no card '%s' in cards.tsv\n", name.c_str());
      exit(2);
    }
    out.push_back(*it);
  }
  size_t count = std::stoul(env("STANDIN_COUNT", "0"));
  while (out.size() < count && out.size() < MOST_CARDS) out.push_back(out.back());
  return out;
}

const std::vector<Card>& all() {
  static const std::vector<Card> cards = machine();
  return cards;
}

const std::vector<int>& visible() {
  static const std::vector<int> seen = [] {
    std::vector<int> out;
    const char* v = getenv("CUDA_VISIBLE_DEVICES");
    if (!v) {
      for (size_t i = 0; i < all().size(); ++i) out.push_back(int(i));
      return out;
    }
    for (auto& name : split(v, ',')) {  // as in the driver: an unknown or ambiguous one ends the list, a repeated one empties it
      int at = -1, fits = 0;
      for (int i = 0; i < int(all().size()); ++i)
        if (name == std::to_string(i) || (name.size() > 4 && uuid_text(i).rfind(name, 0) == 0)) at = i, ++fits;
      if (fits != 1) break;
      if (std::find(out.begin(), out.end(), at) != out.end()) return std::vector<int>();
      out.push_back(at);
    }
    return out;
  }();
  return seen;
}

// ---- what each process holds of each card, seen by all of them
struct Slot {
  std::atomic<int> pid;
  std::atomic<long> used[MOST_CARDS];
};

Slot* slots() {
  static Slot* shared = [] {
    std::string path = env("STANDIN_STATE", ("/dev/shm/standin-" + std::to_string(getuid())).c_str());
    int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    size_t bytes = sizeof(Slot) * MOST_PROCESSES;
    if (fd < 0 || ftruncate(fd, off_t(bytes))) perror("stand-in"), exit(2);
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) perror("stand-in"), exit(2);
    return static_cast<Slot*>(p);
  }();
  return shared;
}

bool alive(int pid) { return pid && (kill(pid, 0) == 0 || errno == EPERM); }

// A forked child has its parent's handlers: one that never was on a card has nothing to give back.
void leave() {
  for (int i = 0; i < MOST_PROCESSES; ++i) {
    int self = getpid();
    slots()[i].pid.compare_exchange_strong(self, 0);
  }
}

Slot& mine() {
  static thread_local Slot* slot = nullptr;
  int self = getpid();
  if (slot && slot->pid == self) return *slot;
  static std::mutex m;
  std::lock_guard<std::mutex> hold(m);
  for (int i = 0; i < MOST_PROCESSES; ++i)
    if (slots()[i].pid == self) return *(slot = &slots()[i]);
  for (int i = 0; i < MOST_PROCESSES; ++i) {
    int was = slots()[i].pid;
    if (!alive(was) && slots()[i].pid.compare_exchange_strong(was, self)) {
      for (auto& u : slots()[i].used) u = 0;
      slot = &slots()[i];
      std::atexit(leave);
      return *slot;
    }
  }
  fprintf(stderr, "stand-in: too many processes\n");
  exit(2);
}

size_t used_by_all(int physical) {
  static const long others = std::stol(env("STANDIN_OTHERS", "0"));
  long sum = others;
  for (int i = 0; i < MOST_PROCESSES; ++i)
    if (slots()[i].pid && alive(slots()[i].pid)) sum += slots()[i].used[physical];
  return size_t(sum);
}

// With values, somebody computes what kernels would have written, and writes it where it belongs: there
// is memory behind the addresses.
const bool VALUES = !env("STANDIN_VALUES", "").empty();

// ---- addresses
std::mutex mutex_, written_mutex;
void forget(uintptr_t at, size_t n);
std::map<uintptr_t, Range> ranges;  // by base: device memory, pinned memory, reserved address space

// As seen on an H100: address space is taken in chunks of 32 MiB, each below the last, and smaller
// pieces go into what larger ones leave of their chunks. Without values there is no memory behind them.
class Addresses {
 public:
  uintptr_t take(size_t size) {
    if (!lowest_) reserve();
    for (size_t room = size; room < CHUNK; room += GRAIN) {
      auto it = left_.find(room);
      if (it == left_.end() || it->second.empty()) continue;
      uintptr_t at = it->second.back();
      it->second.pop_back();
      return rest(at, room, size);
    }
    size_t room = (size + CHUNK - 1) / CHUNK * CHUNK;
    if (room > SPACE - CHUNK) return 0;  // on a card without a limit
    if (lowest_ - room < floor_) reserve();
    lowest_ -= room;
    return rest(lowest_, room, size);
  }

 private:
  static constexpr size_t CHUNK = 32 * MiB, SPACE = size_t(4) << 40;
  uintptr_t lowest_ = 0, floor_ = 0;
  std::map<size_t, std::vector<uintptr_t>> left_;

  uintptr_t rest(uintptr_t at, size_t room, size_t size) {
    if (room > size) left_[room - size].push_back(at + size);
    return at;
  }
  void reserve() {
    void* p = mmap(nullptr, SPACE, VALUES ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) perror("stand-in: address space"), exit(2);
    floor_ = (reinterpret_cast<uintptr_t>(p) + CHUNK - 1) / CHUNK * CHUNK;
    lowest_ = (reinterpret_cast<uintptr_t>(p) + SPACE) / CHUNK * CHUNK;
  }
};
Addresses addresses[MOST_CARDS];
bool context[MOST_CARDS];
thread_local int device_ = 0;

}  // namespace

int machine_cards() { return int(all().size()); }
int cards() { return int(visible().size()); }
int physical(int device) { return visible().at(size_t(device)); }
const Card& card(int p) { return all().at(size_t(p)); }
std::string bus_id(int p) {
  char text[32];
  snprintf(text, sizeof text, "00000000:%02X:00.0", 0x10 + p);
  return text;
}
void uuid(int p, unsigned char out[16]) {
  for (int i = 0; i < 16; ++i) out[i] = (unsigned char)(0x5A ^ (i * 17));
  out[15] = (unsigned char)p;
}
std::string uuid_text(int p) {
  unsigned char u[16];
  uuid(p, u);
  std::string text = "GPU-";
  char hex[3];
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    snprintf(hex, sizeof hex, "%02x", u[i]);
    text += hex;
  }
  return text;
}

int current() { return device_; }
void set_current(int d) { device_ = d; }
bool touched(int d) { return context[physical(d)]; }
void touch(int d) {
  int p = physical(d);
  std::lock_guard<std::mutex> hold(mutex_);
  if (context[p]) return;
  context[p] = true;
  mine().used[p] += long(card(p).context);
}

size_t free_bytes(int d) {
  int p = physical(d);
  size_t used = used_by_all(p);
  return used < card(p).total ? card(p).total - used : 0;
}

bool charge(int d, long bytes) {
  if (bytes > 0 && size_t(bytes) > free_bytes(d)) return false;
  mine().used[physical(d)] += bytes;
  return true;
}

void* take(int d, size_t bytes) {
  touch(d);
  size_t room = (bytes + GRAIN - 1) / GRAIN * GRAIN;
  std::lock_guard<std::mutex> hold(mutex_);
  if (!charge(d, long(room))) return nullptr;
  uintptr_t at = addresses[physical(d)].take(room);
  if (!at) return charge(d, -long(room)), nullptr;
  ranges[at] = {at, bytes, Kind::device, d};
  return reinterpret_cast<void*>(at);
}

bool give(void* p) {
  std::lock_guard<std::mutex> hold(mutex_);
  auto it = ranges.find(reinterpret_cast<uintptr_t>(p));
  if (it == ranges.end() || it->second.kind != Kind::device) return false;
  size_t room = (it->second.size + GRAIN - 1) / GRAIN * GRAIN;
  charge(it->second.device, -long(room));
  ranges.erase(it);
  if (VALUES) madvise(p, room, MADV_DONTNEED);
  std::lock_guard<std::mutex> hold_written(written_mutex);
  forget(reinterpret_cast<uintptr_t>(p), room);
  return true;
}

void pin(void* p, size_t bytes) {
  std::lock_guard<std::mutex> hold(mutex_);
  auto at = reinterpret_cast<uintptr_t>(p);
  ranges[at] = {at, bytes, Kind::pinned, current()};
}
void unpin(void* p) {
  std::lock_guard<std::mutex> hold(mutex_);
  ranges.erase(reinterpret_cast<uintptr_t>(p));
}
Range find(const void* p) {
  std::lock_guard<std::mutex> hold(mutex_);
  auto at = reinterpret_cast<uintptr_t>(p);
  auto it = ranges.upper_bound(at);
  if (it == ranges.begin()) return {};
  const Range& r = (--it)->second;
  return at < r.base + std::max<size_t>(r.size, 1) ? r : Range{};
}

// ---- what was copied to the card or set there, as long as it can be told from what a kernel would have written
namespace {
const size_t SMALL = std::stoul(env("STANDIN_COPY_BYTES", "1048576")), MOST_KEPT = 256 * MiB;
struct Written { std::string bytes; unsigned long launches; };
std::map<uintptr_t, Written> written;
size_t kept = 0;
std::atomic<unsigned long> launches{0};

void forget(uintptr_t at, size_t n) {
  auto it = written.upper_bound(at);
  if (it != written.begin() && std::prev(it)->first + std::prev(it)->second.bytes.size() > at) --it;
  while (it != written.end() && it->first < at + n) kept -= it->second.bytes.size(), it = written.erase(it);
}
void write(void* to, std::string bytes, size_t n) {
  auto at = reinterpret_cast<uintptr_t>(to);
  std::lock_guard<std::mutex> hold(written_mutex);
  forget(at, n);
  if (n > SMALL) return;
  while (kept + n > MOST_KEPT) kept -= written.begin()->second.bytes.size(), written.erase(written.begin());
  kept += n;
  written[at] = {std::move(bytes), launches};
}
// Scalars are believed until the next kernel, tensors as long as they are read as they were written.
// Anything else was a kernel's to write: zeros.
std::string read(const void* from, size_t n) {
  auto at = reinterpret_cast<uintptr_t>(from);
  std::lock_guard<std::mutex> hold(written_mutex);
  auto it = written.upper_bound(at);
  if (it == written.begin()) return std::string(n, 0);
  const auto& [base, w] = *--it;
  bool inside = at + n <= base + w.bytes.size(), same = base == at && n == w.bytes.size() && n > 8;
  return inside && (same || w.launches == launches) ? w.bytes.substr(at - base, n) : std::string(n, 0);
}
}  // namespace

// A count that a kernel makes and its operator reads at once, such as how many elements are not zero.
namespace {
thread_local int64_t expected_ = -1;
bool counted(void* to, size_t n) {
  if (expected_ < 0 || (n != 4 && n != 8)) return false;
  return memcpy(to, &expected_, n), true;
}
}  // namespace
extern "C" void standin_count(int64_t count) { expected_ = count; }

// With values, what is too large to be followed is zeros again, and takes none of the host's memory.
static void drop(void* to, size_t n) {
  constexpr uintptr_t PAGE = 4096;
  uintptr_t begin = (reinterpret_cast<uintptr_t>(to) + PAGE - 1) / PAGE * PAGE, end = (reinterpret_cast<uintptr_t>(to) + n) / PAGE * PAGE;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void launched() { ++launches; }
void copy(void* to, const void* from, size_t n) {
  if (!n || to == from) return;
  bool to_card = find(to).kind == Kind::device, from_card = find(from).kind == Kind::device;
  if (!to_card && from_card && counted(to, n)) return;
  if ((!to_card && !from_card) || (VALUES && n <= SMALL) || (VALUES && !to_card && n <= 64 * SMALL)) memmove(to, from, n);
  else if (VALUES && to_card) drop(to, n);
  else if (to_card && n > SMALL) write(to, {}, n);
  else if (to_card) write(to, from_card ? read(from, n) : std::string(static_cast<const char*>(from), n), n);
  else if (n <= SMALL) memcpy(to, read(from, n).data(), n);
  else if (n <= 64 * SMALL) memset(to, 0, n);
}
void fill(void* to, int value, size_t n) {
  if (!n) return;
  if (find(to).kind != Kind::device || (VALUES && n <= SMALL)) memset(to, value, n);
  else if (VALUES) drop(to, n);
  else write(to, n > SMALL ? std::string() : std::string(n, char(value)), n);
}

size_t process_bytes(int p, int pid) {
  for (int i = 0; i < MOST_PROCESSES; ++i)
    if (slots()[i].pid == pid) return size_t(slots()[i].used[p].load());
  return 0;
}
int processes(int p, int* pids, size_t* used, int room) {
  int n = 0;
  for (int i = 0; i < MOST_PROCESSES; ++i) {
    int pid = slots()[i].pid;
    if (!alive(pid) || slots()[i].used[p] <= 0) continue;
    if (n < room) pids[n] = pid, used[n] = size_t(slots()[i].used[p].load());
    ++n;
  }
  return n;
}

}  // namespace standin

// The environment is read once: from here on it may change.
extern "C" int standin_begin() { return standin::cards() ? (standin::free_bytes(0), standin::cards()) : 0; }
extern "C" void standin_handle(int library, int change) {
  if (!standin::cards()) return;
  const standin::Card& c = standin::card(standin::physical(standin::current()));
  standin::charge(standin::current(), change * long(c.handles[library]));
}

// ---- the driver API
using namespace standin;
#define API extern "C" __attribute__((visibility("default"))) CUresult

namespace {
struct Memory { size_t size; int device; };
std::mutex vmm_mutex;
std::map<CUmemGenericAllocationHandle, Memory> memories;
std::map<CUdeviceptr, std::pair<size_t, CUmemGenericAllocationHandle>> mappings;
CUmemGenericAllocationHandle next_memory = 1;
void* dummy() {
  static std::atomic<uintptr_t> n{0x1000};
  return reinterpret_cast<void*>(n += 16);
}
}  // namespace

API cuInit(unsigned) { return cards() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
API cuDriverGetVersion(int* v) { return *v = DRIVER, CUDA_SUCCESS; }
API cuDeviceGetCount(int* n) { return *n = cards(), CUDA_SUCCESS; }
API cuDeviceGet(CUdevice* d, int n) { return *d = n, n >= 0 && n < cards() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; }
API cuDeviceGetName(char* text, int room, CUdevice d) { return snprintf(text, size_t(room), "%s", card(physical(d)).name.c_str()), CUDA_SUCCESS; }
API cuDeviceTotalMem_v2(size_t* n, CUdevice d) { return *n = card(physical(d)).total, CUDA_SUCCESS; }
API cuDeviceGetUuid_v2(CUuuid* u, CUdevice d) { return uuid(physical(d), reinterpret_cast<unsigned char*>(u->bytes)), CUDA_SUCCESS; }
#undef cuDeviceGetUuid
API cuDeviceGetUuid(CUuuid* u, CUdevice d) { return cuDeviceGetUuid_v2(u, d); }
API cuDeviceGetPCIBusId(char* text, int room, CUdevice d) { return snprintf(text, size_t(room), "%s", bus_id(physical(d)).substr(4).c_str()), CUDA_SUCCESS; }

API cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) {
  const Card& c = card(physical(d));
  switch (int(a)) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *v = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *v = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *v = 2147483647; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *v = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *v = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *v = c.block_shared; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *v = c.sm_shared; break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *v = c.major >= 8 ? 1024 : 0; break;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: *v = 65536; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *v = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: *v = 2147483647; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *v = 65536; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *v = 1980000; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *v = 2619000; break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *v = 5120; break;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: *v = 512; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *v = c.processors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *v = c.sm_threads; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *v = c.sm_blocks; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *v = int(c.l2); break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *v = c.major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *v = c.minor; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *v = 0x10 + physical(d); break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *v = 3; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED: case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *v = 1; break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: *v = c.major >= 9; break;
    default: *v = 0;  // no multicast, no RDMA, no fabric, nothing integrated
  }
  return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxGetState(CUdevice d, unsigned* flags, int* active) { return *flags = 0, *active = touched(d), CUDA_SUCCESS; }
API cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice d) { return touch(d), *c = reinterpret_cast<CUcontext>(uintptr_t(d) + 1), CUDA_SUCCESS; }
API cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
API cuCtxGetCurrent(CUcontext* c) { return *c = cards() && touched(current()) ? reinterpret_cast<CUcontext>(uintptr_t(current()) + 1) : nullptr, CUDA_SUCCESS; }
API cuCtxSetCurrent(CUcontext c) { if (c) set_current(int(reinterpret_cast<uintptr_t>(c)) - 1), touch(current()); return CUDA_SUCCESS; }
API cuCtxGetDevice(CUdevice* d) { return *d = current(), CUDA_SUCCESS; }
API cuCtxPushCurrent_v2(CUcontext c) { return cuCtxSetCurrent(c); }
API cuCtxPopCurrent_v2(CUcontext* c) { return cuCtxGetCurrent(c); }
API cuCtxSynchronize() { return CUDA_SUCCESS; }
API cuCtxGetLimit(size_t* v, CUlimit) { return *v = 0, CUDA_SUCCESS; }
API cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
API cuMemGetInfo_v2(size_t* f, size_t* t) { return *f = free_bytes(current()), *t = card(physical(current())).total, CUDA_SUCCESS; }

API cuGetErrorString(CUresult r, const char** s) {
  return *s = r == CUDA_SUCCESS ? "no error" : r == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "error of the stand-in driver", CUDA_SUCCESS;
}
API cuGetErrorName(CUresult r, const char** s) {
  return *s = r == CUDA_SUCCESS ? "CUDA_SUCCESS" : r == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_STAND_IN", CUDA_SUCCESS;
}

API cuMemAlloc_v2(CUdeviceptr* p, size_t n) { void* at = take(current(), n); return *p = CUdeviceptr(at), at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY; }
API cuMemFree_v2(CUdeviceptr p) { return !p || give(reinterpret_cast<void*>(p)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
API cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr p) {
  Range r = find(reinterpret_cast<void*>(p));
  if (r.kind == Kind::none) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = r.base;
  if (size) *size = r.size;
  return CUDA_SUCCESS;
}
API cuMemGetAllocationGranularity(size_t* n, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) { return *n = GRAIN, CUDA_SUCCESS; }
API cuMemAddressReserve(CUdeviceptr* p, size_t n, size_t, CUdeviceptr, unsigned long long) {
  char* at = static_cast<char*>(mmap(nullptr, n + GRAIN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  uintptr_t base = (uintptr_t(at) + GRAIN - 1) / GRAIN * GRAIN;
  std::lock_guard<std::mutex> hold(mutex_);
  ranges[base] = {base, n, Kind::device, current()};
  return *p = base, CUDA_SUCCESS;
}
API cuMemAddressFree(CUdeviceptr p, size_t n) {
  std::lock_guard<std::mutex> hold(mutex_);
  ranges.erase(p);
  return munmap(reinterpret_cast<void*>(p), n), CUDA_SUCCESS;
}
API cuMemCreate(CUmemGenericAllocationHandle* h, size_t n, const CUmemAllocationProp* prop, unsigned long long) {
  int d = prop ? prop->location.id : current();
  touch(d);
  std::lock_guard<std::mutex> hold(vmm_mutex);
  if (!charge(d, long(n))) return CUDA_ERROR_OUT_OF_MEMORY;
  memories[*h = next_memory++] = {n, d};
  return CUDA_SUCCESS;
}
API cuMemRelease(CUmemGenericAllocationHandle h) {  // memory goes back when it is mapped nowhere, too
  std::lock_guard<std::mutex> hold(vmm_mutex);
  for (auto& m : mappings)
    if (m.second.second == h) return memories[h].device |= 1 << 16, CUDA_SUCCESS;
  auto it = memories.find(h);
  if (it == memories.end()) return CUDA_ERROR_INVALID_VALUE;
  charge(it->second.device & 0xffff, -long(it->second.size));
  memories.erase(it);
  return CUDA_SUCCESS;
}
API cuMemMap(CUdeviceptr p, size_t n, size_t, CUmemGenericAllocationHandle h, unsigned long long) {
  std::lock_guard<std::mutex> hold(vmm_mutex);
  return mappings[p] = {n, h}, CUDA_SUCCESS;
}
API cuMemUnmap(CUdeviceptr p, size_t n) {
  std::vector<CUmemGenericAllocationHandle> gone;
  {
    std::lock_guard<std::mutex> hold(vmm_mutex);
    for (auto it = mappings.lower_bound(p); it != mappings.end() && it->first < p + n; it = mappings.erase(it))
      if (auto m = memories.find(it->second.second); m != memories.end() && m->second.device >> 16) gone.push_back(m->first);
  }
  for (auto h : gone) cuMemRelease(h);
  std::lock_guard<std::mutex> hold(written_mutex);
  return forget(p, n), CUDA_SUCCESS;
}
API cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
API cuMemExportToShareableHandle(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long) { return CUDA_ERROR_NOT_SUPPORTED; }
API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType) { return CUDA_ERROR_NOT_SUPPORTED; }
API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle*, void*) { return CUDA_ERROR_NOT_SUPPORTED; }
API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp*, CUmemGenericAllocationHandle) { return CUDA_ERROR_NOT_SUPPORTED; }
API cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream) {
  std::vector<unsigned> values(std::min<size_t>(n, SMALL / 4), v);
  return copy(reinterpret_cast<void*>(p), values.data(), 4 * values.size()), CUDA_SUCCESS;
}
API cuStreamWriteValue32_v2(CUstream, CUdeviceptr p, cuuint32_t v, unsigned) { return copy(reinterpret_cast<void*>(p), &v, sizeof v), CUDA_SUCCESS; }
API cuPointerGetAttribute(void* out, CUpointer_attribute a, CUdeviceptr p) {
  Range r = find(reinterpret_cast<void*>(p));
  if (r.kind == Kind::none) return CUDA_ERROR_INVALID_VALUE;
  switch (int(a)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(out) = reinterpret_cast<CUcontext>(uintptr_t(r.device) + 1); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *static_cast<int*>(out) = r.kind == Kind::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: case CU_POINTER_ATTRIBUTE_HOST_POINTER: *static_cast<CUdeviceptr*>(out) = p; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(out) = r.device; break;
    default: *static_cast<int*>(out) = 0;
  }
  return CUDA_SUCCESS;
}

// Code: any image is a module, any name a function; launching one does nothing.
API cuModuleLoad(CUmodule* m, const char*) { return *m = CUmodule(dummy()), CUDA_SUCCESS; }
API cuModuleLoadData(CUmodule* m, const void*) { return *m = CUmodule(dummy()), CUDA_SUCCESS; }
API cuModuleLoadDataEx(CUmodule* m, const void*, unsigned, CUjit_option*, void**) { return *m = CUmodule(dummy()), CUDA_SUCCESS; }
API cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
API cuModuleGetFunction(CUfunction* f, CUmodule, const char*) { return *f = CUfunction(dummy()), CUDA_SUCCESS; }
API cuModuleGetGlobal_v2(CUdeviceptr* p, size_t* n, CUmodule, const char*) {
  static char nothing[4096];
  if (p) *p = CUdeviceptr(nothing);
  if (n) *n = sizeof nothing;
  return CUDA_SUCCESS;
}
API cuLibraryLoadData(CUlibrary* l, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) { return *l = CUlibrary(dummy()), CUDA_SUCCESS; }
API cuLibraryGetKernel(CUkernel* k, CUlibrary, const char*) { return *k = CUkernel(dummy()), CUDA_SUCCESS; }
API cuLibraryGetModule(CUmodule* m, CUlibrary) { return *m = CUmodule(dummy()), CUDA_SUCCESS; }
API cuKernelGetFunction(CUfunction* f, CUkernel k) { return *f = CUfunction(k), CUDA_SUCCESS; }
API cuKernelGetAttribute(int* v, CUfunction_attribute a, CUkernel, CUdevice) {
  return *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0, CUDA_SUCCESS;
}
API cuLinkCreate_v2(unsigned, CUjit_option*, void**, CUlinkState* s) { return *s = CUlinkState(dummy()), CUDA_SUCCESS; }
API cuLinkAddData_v2(CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned, CUjit_option*, void**) { return CUDA_SUCCESS; }
API cuLinkComplete(CUlinkState, void** image, size_t* n) { static char nothing[16]; return *image = nothing, *n = sizeof nothing, CUDA_SUCCESS; }
API cuLinkDestroy(CUlinkState) { return CUDA_SUCCESS; }
API cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction) {
  return *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0, CUDA_SUCCESS;
}
API cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
API cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction, int threads, size_t) {
  const Card& c = card(physical(current()));
  return *n = std::min(c.sm_blocks, c.sm_threads / std::max(threads, 1)), CUDA_SUCCESS;
}
API cuOccupancyMaxActiveClusters(int* n, CUfunction, const CUlaunchConfig*) { return *n = card(physical(current())).processors, CUDA_SUCCESS; }
API cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**) { return launched(), CUDA_SUCCESS; }
API cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**) { return launched(), CUDA_SUCCESS; }
API cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**) { return launched(), CUDA_SUCCESS; }
API cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) { return CUDA_SUCCESS; }

API cuGetExportTable(const void**, const CUuuid*) { return CUDA_ERROR_NOT_FOUND; }  // a real runtime gives up here
static CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

// Names without a version are looked up in their newest one that is here.
API cuGetProcAddress_v2(const char* name, void** f, int, cuuint64_t, CUdriverProcAddressQueryResult* found) {
  std::string n(name);
  for (const char* version : {"_v2", ""})
    if ((*f = dlsym(RTLD_DEFAULT, (n + version).c_str()))) break;
  bool here = *f;
  if (!here) *f = reinterpret_cast<void*>(unsupported);
  if (found) *found = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
